"""Node ids: which node the kernel knows by which number, and the journal's part of that.

The id is the source's inode number where that is free (then `st_ino` is equal without the extension too), else, and on
file systems mounted below SOURCE, a number of our own. Daemons that served the mount before may have given out any
inode number, and the kernel may hold pages of it that are of another version: those that follow have numbers of their
own only, each from its own range.

A directory is noted in the journal when the kernel is told of it, a file when it is opened (see `journal`), and the
directories above with it. Used by `namespace` only. Event loop only.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from mountd.base.errors import SourceError
from mountd.base.version import Version
from mountd.namespace.journal import Journal
from mountd.namespace.node import Node

__all__ = ["ROOT_ID", "NodeIds"]

ROOT_ID = 1
"""FUSE's number of the root, whatever its inode at the source."""

_FIRST_OWN_ID = 1 << 62
"""Ids for files whose inode number is taken: far above what file systems number."""

_GENERATION_BITS = 40
"""Ids of our own that one daemon of a mount has: a thousand a second for 30 years."""


class NodeIds:
    """The nodes with an id, in `nodes`."""

    def __init__(self, journal: Journal, doubts: Callable[[Version], bool]) -> None:
        """`doubts(version)`: what was read of it may be wrong; see `source.doubts`."""
        self._doubts = doubts
        self.nodes: dict[int, Node] = {}
        self._journal = journal
        self._own_ids = iter(range(_FIRST_OWN_ID + (journal.generation << _GENERATION_BITS), 1 << 63))

    def __len__(self) -> int:
        return len(self.nodes)

    def node(self, node_id: int) -> Node:
        """The node with this id. Raises SourceError(ESTALE) for an id that is not there."""
        try:
            return self.nodes[node_id]
        except KeyError:
            raise SourceError(errno.ESTALE, f"node {node_id}") from None

    def give(self, node: Node) -> None:
        """`node` has no id, and gets one."""
        inode = node.attributes.inode
        is_free = ROOT_ID < inode < _FIRST_OWN_ID and inode not in self.nodes and not self._journal.knows(inode)
        is_free = is_free and not self._journal.generation and self.is_own(node)
        node.id = inode if is_free else next(self._own_ids)
        self.nodes[node.id] = node

    def is_own(self, node: Node) -> bool:
        """It lies on the root's file system, not on one mounted below."""
        return node.attributes.device == self.nodes[ROOT_ID].attributes.device

    def take(self, node: Node) -> None:
        """`node` loses its id, if it has one."""
        if node.id:
            del self.nodes[node.id]
            self._journal.gone(node.id)
            node.id = 0

    def told(self, node: Node) -> None:
        """The kernel is told of `node`."""
        if self._journal.wants(node):
            self.note(node)

    def note(self, node: Node) -> None:
        """Have `node`, and the directories above it, in the journal. Those need ids too: one that the kernel does not
        hold may be part of a path all the same."""
        if not self._journal.on:
            return
        above = node.parent
        if above is not None and not self._journal.knows(above.id):
            if above.id == 0:
                self.give(above)
            self.note(above)
        self._journal.note(node)
        if node.version is not None:
            self.doubt(node, doubted=self._doubts(node.version))

    def doubt(self, node: Node, *, doubted: bool) -> None:
        """Whether what was read of `node` may be wrong."""
        self._journal.doubt(node.id, doubted=doubted)
