"""Nodes and dentries: what is remembered of one inode and of one name.

Plain records, written in this room only; others read them, and keep what they know of a node in tables of their own. A
million of them may exist: slots, no back-references but the parent, which every path is made from. A node has one name:
each hard link of a file is a node of its own, with a page cache of its own, of the same version and shown with the same
inode number; what is staged of that version is there for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

from hfs.mountd.cache import Delegation
from hfs.mountd.core.attributes import Attributes, Version


class Node:
    """One inode: a directory, one version of a file, or anything else that has attributes."""

    __slots__ = (
        "answers",
        "attributes",
        "changes",
        "children",
        "delegated",
        "delegation",
        "expires_s",
        "gives_bytes",
        "holds",
        "id",
        "lookups",
        "name",
        "own_opens",
        "own_passed",
        "parent",
        "pushed",
        "retired",
        "stale",
        "version",
        "without_acl",
    )

    def __init__(self, attributes: Attributes, version: Version | None, parent: Node | None, name: bytes) -> None:
        self.id = 0
        """0 until the kernel is told of it."""
        self.attributes = attributes
        self.version = version
        """None unless a regular file."""
        self.parent = parent
        self.name = name
        self.expires_s = 0.0
        """trio time until which the attributes need not be asked for again."""
        self.lookups = 0
        self.own_opens = 0
        """Open handles that we count, of either mode."""
        self.own_passed = 0
        """Those of them that the kernel reads from the staged file by itself; all or none."""
        self.delegation: Delegation | None = None
        """Who answers further opens, and counts them."""
        self.retired = False
        """Its name leads to another node of the same version now, with an I/O mode of its own."""
        self.holds = 0
        """Work under way that names the node to the kernel: its id must not go to another meanwhile."""
        self.pushed = False
        """All its bytes were put into the kernel's page cache."""
        self.stale = False
        """The source has another version under this name now."""
        self.answers: dict[Hashable, Any] | None = None
        """What else the source has said of it. Known to `answers` alone."""
        self.without_acl = False
        """This version of the file was seen to have no ACL: a change of it moves the ctime."""
        self.gives_bytes: bool | None = None if version is not None and not version.size else False
        """It says that it has no bytes, and gives some; None: that was not tried."""
        self.changes = False
        """Of a directory: names in it have come or gone, so what is known of others may be older than it is."""
        self.delegated = False
        """Of a directory: others look at names in it and put slots there, but for those that are ours."""
        self.children: dict[bytes, Dentry] | None = {} if attributes.is_directory else None

    def see_again(self, attributes: Attributes) -> None:
        """It is a directory, and these are its attributes now."""
        before, self.attributes = self.attributes, attributes
        if (before.mtime_ns, before.ctime_ns) != (attributes.mtime_ns, attributes.ctime_ns):
            self.changes = True

    @property
    def opens(self) -> int:
        """Open handles, of either mode."""
        return self.own_opens if self.delegation is None else self.own_opens + self.delegation.opens

    @property
    def passed(self) -> int:
        """Those of them that the kernel reads from the staged file by itself; all or none."""
        if self.delegation is None or not self.delegation.passes:
            return self.own_passed
        return self.own_passed + self.delegation.opens

    @property
    def is_held(self) -> bool:
        """Its id may not go to another file: the kernel knows it, or a handle, or work under way."""
        return self.lookups > 0 or self.opens > 0 or self.holds > 0

    @property
    def dentry(self) -> Dentry | None:
        """Of its name; None if that is not remembered, or leads elsewhere."""
        siblings = self.parent.children if self.parent is not None else None
        dentry = siblings.get(self.name) if siblings is not None else None
        return dentry if dentry is not None and dentry.node is self else None

    @property
    def path(self) -> bytes:
        """Where it was last seen, relative to the source; empty for the root."""
        parts: list[bytes] = []
        node: Node | None = self
        while node is not None and node.name:
            parts.append(node.name)
            node = node.parent
        return b"/".join(reversed(parts))

    @property
    def directory(self) -> bytes:
        """The path of the directory it was last seen in."""
        return self.parent.path if self.parent is not None else b""


class Dentry:
    """What a name meant when it was last looked up: a node, or None for a name that did not exist."""

    __slots__ = ("directory", "expires_s", "name", "node", "used")

    def __init__(self, node: Node | None, expires_s: float, directory: Node | None = None, name: bytes = b"") -> None:
        self.node = node
        """Never another one: a name that leads elsewhere gets another dentry."""
        self.expires_s = expires_s
        self.directory = directory
        """None once the name is not remembered any more."""
        self.name = name
        self.used = False
        """Asked for since `Names` came by last."""


def expire(node: Node) -> None:
    """What is known of `node` is past its time: it is asked for at the next look. For one whose bytes or attributes the
    source has refused."""
    recall(node)
    node.expires_s = -math.inf
    if node.dentry is not None:
        node.dentry.expires_s = -math.inf


def recall(node: Node) -> None:
    """Opens of `node` come to us again: what they are answered by is about to change."""
    if node.delegation is not None:
        node.delegation.recall()


def tried(node: Node, gives_bytes: bool) -> None:
    """It is known whether `node`, which says that it has no bytes, gives some."""
    node.gives_bytes = gives_bytes


def pages_given(node: Node) -> None:
    """All bytes of `node` were put into the kernel's page cache."""
    node.pushed = node.is_held  # else the kernel has forgotten it meanwhile, and the pages with it


def pages_lost(node: Node) -> None:
    """The kernel has let some of them go."""
    if node.pushed:
        recall(node)
        node.pushed = False


def place_of(attributes: Attributes) -> tuple[str, int, int]:
    """What identifies a directory while the daemon lives: inode numbers repeat on file systems mounted below, and what
    is mounted later may have the st_dev of what was there before."""
    return attributes.file_system, attributes.device, attributes.inode


def same_inode(one: Attributes, other: Attributes) -> bool:
    """Whether these are of one inode that is not a regular file, as far as that can be told."""
    return place_of(one) == place_of(other) and one.mode == other.mode and one.rdev == other.rdev


def same_version(one: Node, other: Node) -> bool:
    """One node, or two of one version: then they differ in I/O mode only."""
    return one is other or (one.version is not None and one.version == other.version)


def is_renumbered(one: Attributes, other: Attributes) -> bool:
    """Whether a name that led to one leads to the other because the source makes inode numbers anew. Who replaces a
    file by a copy, with its mtime kept, gives it another ctime."""
    return one.inode != other.inode and _but_number(one) == _but_number(other)


def _but_number(attributes: Attributes) -> tuple[object, ...]:
    return attributes.system, attributes.mode, attributes.size, attributes.mtime_ns, attributes.ctime_ns


def is_at(node: Node, attributes: Attributes) -> bool:
    """Whether `node` is the directory with these attributes."""
    return node.children is not None and place_of(node.attributes) == place_of(attributes)


def is_below(node: Node | None, directory: Node) -> bool:
    """Whether `node` is `directory` or below it."""
    while node is not None and node is not directory:
        node = node.parent
    return node is directory
