"""The nodes that are remembered: found by the id that the kernel knows, by version, and by a directory's place.

The id is the source's inode number where that is free, else, and on file systems mounted below SOURCE, a number of our
own. Daemons that served the mount before may have given out any inode number, and the kernel may hold pages of it that
are of another version: those that follow have numbers of their own only, each from its own range.

A directory is noted in the journal when the kernel is told of it, a file when it is opened (see `journal`), and the
directories above with it. Never decides how long a node stays: that is `NodeHolds` and `Names`. Event loop only.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence

from hfs.mountd.core.attributes import Attributes, Version
from hfs.mountd.core.errors import SourceError
from hfs.mountd.namespace.journal import Journal
from hfs.mountd.namespace.nodes.node import Node, place_of, recall

ROOT_ID = 1
"""FUSE's number of the root, whatever its inode at the source."""

_FIRST_OWN_ID = 1 << 62
"""Ids for files whose inode number is taken: far above what file systems number."""

_GENERATION_BITS = 40
"""Ids of our own that one daemon of a mount has: half of them for nodes, a quarter for slots (see `slots`), the last
quarter for nodes that take another's place: of two nodes of one version the later has the larger id."""


class NodeTable:
    """`len()`: how many nodes the kernel knows."""

    def __init__(
        self, journal: Journal, is_uncertain: Callable[[Version], bool], gone: Sequence[Callable[[Node], object]] = ()
    ) -> None:
        """`is_uncertain(version)`: what was read of it may be wrong; see `source.second_looks`. All of `gone` are
        told of each node that is let go, perhaps twice."""
        self._journal = journal
        self._is_uncertain = is_uncertain
        self._gone = gone
        self._by_id: dict[int, Node] = {}
        self._by_version: dict[Version, Node] = {}
        self._others: dict[Version, dict[Node, None]] = {}
        """More of one version: other names of the file, and a node whose name another one has now."""
        self._directories: dict[tuple[str, int, int], Node] = {}
        first_id = _FIRST_OWN_ID + (journal.generation << _GENERATION_BITS)
        self.first_slot_id = first_id + (1 << _GENERATION_BITS - 1)
        """From here on ids belong to slots."""
        first_later = first_id + 3 * (1 << _GENERATION_BITS - 2)
        self._own_ids = iter(range(first_id, self.first_slot_id))
        self._later_ids = iter(range(first_later, first_id + (1 << _GENERATION_BITS)))

    def __len__(self) -> int:
        return len(self._by_id)

    # -- finding ------------------------------------------------------------------------------------------------------

    @property
    def root(self) -> Node:
        """The directory SOURCE."""
        return self._by_id[ROOT_ID]

    def node(self, node_id: int) -> Node:
        """The node the kernel knows as `node_id`. Raises SourceError(ESTALE) for an id that is not there."""
        try:
            return self._by_id[node_id]
        except KeyError:
            raise SourceError(errno.ESTALE, f"node {node_id}") from None

    def known(self) -> Iterator[Node]:
        """The nodes that the kernel knows."""
        return iter(self._by_id.values())

    def files(self) -> Iterator[Node]:
        """The regular files that the kernel knows."""
        return (node for node in self._by_id.values() if node.version is not None)

    def of_version(self, version: Version) -> list[Node]:
        """All nodes of it: one for each name of the file that is remembered, and those that have lost theirs."""
        first = self._by_version.get(version)
        return [first, *self._others.get(version, ())] if first is not None else []

    def directory_at(self, attributes: Attributes) -> Node | None:
        """The directory that has these attributes' place."""
        return self._directories.get(place_of(attributes))

    # -- entering -----------------------------------------------------------------------------------------------------

    def enter(self, node: Node) -> None:
        """`node` is one of those of its version; or what its place is found by, unless another one is."""
        if node.version is not None:
            if self._by_version.setdefault(node.version, node) is not node:
                self._others.setdefault(node.version, {})[node] = None
        elif node.children is not None:
            self._directories.setdefault(place_of(node.attributes), node)

    def identify_later(self, node: Node) -> None:
        """`node`, which takes another's place, gets an id above all that were given out before."""
        self.attach(node, next(self._later_ids))

    def attach(self, node: Node, node_id: int) -> None:
        """The kernel knows `node` by this id already."""
        node.id = node_id
        self._by_id[node_id] = node

    def identify(self, node: Node) -> None:
        """`node` has no id, and gets one."""
        inode = node.attributes.inode
        is_free = ROOT_ID < inode < _FIRST_OWN_ID and inode not in self._by_id and not self._journal.nodes.knows(inode)
        is_free = is_free and not self._journal.generation and self._is_own(node)
        self.attach(node, inode if is_free else next(self._own_ids))

    def _is_own(self, node: Node) -> bool:
        """It lies on the root's file system, not on one mounted below."""
        return node.attributes.device == self.root.attributes.device

    def shown_inode(self, node: Node) -> int:
        """The number that stat(2) shows of `node`: that of the source, also of a second node of one file.

        Not of another file system mounted below the source, where it may be taken: equal numbers would make hard links
        of files, and loops of directories. So would a directory that is mounted below itself.
        """
        if not self._is_own(node):
            return node.id
        again = node.children is not None and self.directory_at(node.attributes) is not node
        return node.id if again else node.attributes.inode

    # -- letting go ---------------------------------------------------------------------------------------------------

    def take_id(self, node: Node) -> None:
        """`node` loses its id, if it has one."""
        if node.id:
            recall(node)
            del self._by_id[node.id]
            self._journal.nodes.gone(node.id)
            node.id = 0

    def let_go(self, node: Node) -> None:
        """Nothing holds `node` any more, and no name leads to it, or none will."""
        self.take_id(node)
        if node.version is not None:
            self._leave_version(node, node.version)
        if node.children is not None and self.directory_at(node.attributes) is node:
            del self._directories[place_of(node.attributes)]
        for tell in self._gone:
            tell(node)

    def _leave_version(self, node: Node, version: Version) -> None:
        others = self._others.get(version, {})
        if self._by_version.get(version) is not node:
            others.pop(node, None)
        elif others:
            self._by_version[version], _ = others.popitem()
        else:
            del self._by_version[version]
        if not others:
            self._others.pop(version, None)

    # -- the journal --------------------------------------------------------------------------------------------------

    def told(self, node: Node) -> None:
        """The kernel is told of `node`."""
        if self._journal.nodes.wants(node):
            self.note(node)

    def note(self, node: Node) -> None:
        """Have `node`, and the directories above it, in the journal: the kernel may ask for it without having opened
        it. Those above need ids too: one that the kernel does not hold may be part of a path all the same."""
        if not self._journal.on:
            return
        above = node.parent
        if above is not None and not self._journal.nodes.knows(above.id):
            if above.id == 0:
                self.identify(above)
            self.note(above)
        self._journal.nodes.note(node)
        if node.version is not None:
            self._journal.nodes.note_uncertain(node.id, uncertain=self._is_uncertain(node.version))

    def note_uncertain(self, version: Version, *, uncertain: bool) -> None:
        """Whether what was read of `version` may be wrong."""
        for node in self.of_version(version):
            self._journal.nodes.note_uncertain(node.id, uncertain=uncertain)
