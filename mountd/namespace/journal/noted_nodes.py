"""The nodes in the journal, and which of them go when there are too many.

- The directories that the kernel knows: somebody may work in one. The ones without anything below them that were noted
  first go.
- Files that are open.
- Files that were open: their pages are still in the page cache, and the same version is given the same node id again.
  The last ones stay. In stateless mode each file that was looked up: the kernel opens it without asking.

A node stays while something noted lies below it, whether the kernel knows it or not: the paths of those are made of it.
Event loop only, never waits.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from hfs.mountd.core.attributes import Attributes, Version, is_lasting
from hfs.mountd.namespace.journal.facts import MOUNT, NODE, UNCERTAIN, MountFact, NodeFact
from hfs.mountd.namespace.journal.log import JournalWriter


class NotedMount:
    """What holds as long as the mount lives, whichever daemon serves it: that it is stateless, and the name of SOURCE's
    file system. Begins with `fact`, as an earlier daemon has left it.
    """

    def __init__(self, writer: JournalWriter, fact: MountFact) -> None:
        self._writer = writer
        self._fact = fact

    @property
    def stateless(self) -> bool:
        """The kernel was told to open without asking."""
        return self._fact.stateless

    def becomes_stateless(self) -> None:
        """The kernel is told to open without asking."""
        if not self._fact.stateless:
            self._note(self._fact._replace(stateless=True))

    def source_id(self, found: str) -> str:
        """What SOURCE's file system is called as long as the mount lives; `found`: by this daemon."""
        if not self._writer.on or is_lasting(found):
            return found
        if not self._fact.source_id:
            self._note(self._fact._replace(source_id=found))
        return self._fact.source_id

    def _note(self, fact: MountFact) -> None:
        self._fact = fact
        self._writer.put(MOUNT, 0, fact.value())


class _Noted:
    """A node in the journal."""

    __slots__ = ("below", "forgotten", "is_directory", "name", "opens", "parent_id")

    def __init__(self, parent_id: int, name: bytes, *, is_directory: bool) -> None:
        self.parent_id = parent_id
        self.name = name
        self.is_directory = is_directory
        self.below = 0
        """Noted nodes whose parent it is."""
        self.opens = 0
        """Noted handles."""
        self.forgotten = False
        """It is needed for the paths of those below it only."""


class _Node(Protocol):
    """What is noted of a node of the namespace."""

    @property
    def id(self) -> int: ...
    @property
    def parent(self) -> _Node | None: ...
    @property
    def name(self) -> bytes: ...
    @property
    def attributes(self) -> Attributes: ...
    @property
    def version(self) -> Version | None: ...
    @property
    def children(self) -> object | None:
        """None: it is no directory."""
        ...


class NotedNodes:
    """`len()`: how many."""

    def __init__(
        self,
        writer: JournalWriter,
        mount: NotedMount,
        inherited: Sequence[NodeFact],
        *,
        max_directories: int,
        max_files: int,
    ) -> None:
        """`inherited`: what an earlier daemon has noted, parents first."""
        self._writer = writer
        self._mount = mount
        self._max_directories = max_directories
        self._max_files = max_files
        self._noted: dict[int, _Noted] = {}
        self._idle_files: OrderedDict[int, None] = OrderedDict()
        self._leaves: OrderedDict[int, None] = OrderedDict()
        """Directories with nothing below them and not open."""
        self._directories = 0
        self._uncertain = {fact.node_id for fact in inherited if fact.uncertain}
        for fact in inherited:
            self._enter(fact.node_id, _Noted(fact.parent_id, fact.name, is_directory=fact.version is None))
        for node_id, noted in self._noted.items():
            self._settled(node_id, noted)

    def __len__(self) -> int:
        return len(self._noted)

    @property
    def directories(self) -> int:
        """How many of them are directories."""
        return self._directories

    def knows(self, node_id: int) -> bool:
        """Whether the node is noted."""
        return node_id in self._noted

    def wants(self, node: _Node) -> bool:
        """Whether `node` is to be noted when the kernel is told of it: it need not be asked for at an open."""
        if not self._writer.on:
            return False
        return node.children is not None or (self._mount.stateless and node.version is not None)

    # -- noting -------------------------------------------------------------------------------------------------------

    def note(self, node: _Node) -> None:
        """The kernel knows `node`, whose parent is noted, by its id. What is noted already costs a look."""
        node_id = node.id
        parent_id = node.parent.id if node.parent is not None else 0
        noted = self._noted.get(node_id)
        if noted is not None and noted.parent_id == parent_id and noted.name == node.name:
            if node_id in self._idle_files:
                self._idle_files.move_to_end(node_id)
            return
        try:
            value = NodeFact(node_id, parent_id, node.name, node.attributes, node.version).value()
        except struct.error:
            return  # a number that no file system should give: after a crash the node is not known
        if not self._writer.put(NODE, node_id, value):
            return
        if noted is not None:
            self._detached(noted)
            noted.parent_id, noted.name, noted.forgotten = parent_id, node.name, False
            self._attached(noted)
        else:
            noted = _Noted(parent_id, node.name, is_directory=node.children is not None)
            self._enter(node_id, noted)
        self._settled(node_id, noted)
        self._bound(node_id)

    def note_uncertain(self, node_id: int, *, uncertain: bool) -> None:
        """Whether what was read of a noted node may be wrong: then no later daemon's opens are to see its pages."""
        if node_id not in self._noted or uncertain == (node_id in self._uncertain):
            return
        if not uncertain:
            self._uncertain.discard(node_id)
            self._writer.drop(UNCERTAIN, node_id)
        elif self._writer.put(UNCERTAIN, node_id, b""):
            self._uncertain.add(node_id)

    def opened(self, node_id: int) -> None:
        """A handle of this noted node is noted."""
        self._noted[node_id].opens += 1
        self._idle_files.pop(node_id, None)
        self._leaves.pop(node_id, None)

    def closed(self, node_id: int) -> None:
        """Undo one `opened`."""
        noted = self._noted.get(node_id)
        if noted is None:
            return  # the journal was given up meanwhile
        noted.opens -= 1
        if not noted.opens:
            self._settled(node_id, noted)
            self._bound()

    def gone(self, node_id: int) -> None:
        """The kernel has forgotten the node, or nobody may use it any more."""
        noted = self._noted.get(node_id)
        if noted is not None:
            noted.forgotten = True
            self._settled(node_id, noted)

    def clear(self) -> None:
        """The journal is given up."""
        self._directories = 0
        for table in (self._noted, self._idle_files, self._leaves):
            table.clear()
        self._uncertain.clear()

    # -- which ones stay ----------------------------------------------------------------------------------------------

    def _enter(self, node_id: int, noted: _Noted) -> None:
        self._noted[node_id] = noted
        self._directories += noted.is_directory
        self._attached(noted)

    def _remove(self, node_id: int, noted: _Noted) -> None:
        del self._noted[node_id]
        self._directories -= noted.is_directory
        self._idle_files.pop(node_id, None)
        self._leaves.pop(node_id, None)
        self._writer.drop(NODE, node_id)
        if node_id in self._uncertain:
            self._uncertain.discard(node_id)
            self._writer.drop(UNCERTAIN, node_id)
        self._detached(noted)

    def _attached(self, noted: _Noted) -> None:
        above = self._noted.get(noted.parent_id)
        if above is not None:
            above.below += 1
            self._leaves.pop(noted.parent_id, None)

    def _detached(self, noted: _Noted) -> None:
        above = self._noted.get(noted.parent_id)
        if above is not None:
            above.below -= 1
            self._settled(noted.parent_id, above)

    def _settled(self, node_id: int, noted: _Noted) -> None:
        """If nothing needs it, it goes, or is one of those that may."""
        if noted.opens or noted.below or not noted.parent_id:  # without a parent: the root
            return
        if noted.forgotten:
            self._remove(node_id, noted)
        else:
            (self._leaves if noted.is_directory else self._idle_files)[node_id] = None

    def _bound(self, newest: int = 0) -> None:
        """`newest`: stays, as what comes next may lie below it."""
        while len(self._idle_files) > self._max_files:
            node_id = next(iter(self._idle_files))
            self._remove(node_id, self._noted[node_id])
        while self._directories > self._max_directories and len(self._leaves) > 1:
            node_id = next(leaf for leaf in self._leaves if leaf != newest)
            self._remove(node_id, self._noted[node_id])
