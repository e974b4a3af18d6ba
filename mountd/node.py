"""Nodes and dentries: what is remembered of one inode and of one name.

Plain records, changed only by `namespace` (and `pushed`, `passed` and `sent_away` by `read_path`). A million of them
may exist: slots, no back-references but the parent, which every path is made from.
"""

from __future__ import annotations

from typing import Any

from mountd.attributes import Attributes
from mountd.version import Version

__all__ = ["Dentry", "Node", "place_of", "same_inode"]


class Node:
    """One inode: a directory, one version of a file, or anything else that has attributes."""

    __slots__ = (
        "attributes",
        "children",
        "expires_s",
        "hinted",
        "holds",
        "id",
        "lookups",
        "name",
        "opens",
        "parent",
        "passed",
        "pushed",
        "retired",
        "sent_away",
        "stale",
        "version",
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
        self.opens = 0
        """Open handles, of either mode."""
        self.passed = 0
        """Those of them that the kernel reads from the staged file by itself; all or none."""
        self.retired = False
        """Its name leads to another node of the same version now, with an I/O mode of its own."""
        self.sent_away: set[int] | None = None
        """Threads whose open was answered with ESTALE because of the I/O mode."""
        self.holds = 0
        """Work under way that names the node to the kernel: its id must not go to another meanwhile."""
        self.hinted: tuple[Any, int] | None = None
        """The course that names it, and its unit there. Known to `hints` alone."""
        self.pushed = False
        """All its bytes were put into the kernel's page cache."""
        self.stale = False
        """The source has another version under this name now."""
        self.children: dict[bytes, Dentry] | None = {} if attributes.is_directory else None

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

    __slots__ = ("expires_s", "node")

    def __init__(self, node: Node | None, expires_s: float) -> None:
        self.node = node
        self.expires_s = expires_s


def place_of(attributes: Attributes) -> tuple[int, int]:
    """What identifies a directory while the daemon lives: inode numbers repeat on file systems mounted below."""
    return attributes.device, attributes.inode


def same_inode(one: Attributes, other: Attributes) -> bool:
    """Whether these are of one inode that is not a regular file, as far as that can be told."""
    return one.inode == other.inode and one.mode == other.mode and one.rdev == other.rdev
