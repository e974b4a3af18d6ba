"""The journal: what the kernel has been told, noted before the reply leaves, so that a daemon that is killed costs
nothing.

The kernel names nodes and handles by numbers that we gave it. The next daemon on the same connection must know

- the directories that the kernel knows: somebody may work in one. At most 65 536; the ones without anything below them
  that were noted first go.
- files that are open, and how each handle is read.
- files that were open: their pages are still in the page cache, and the same version is given the same node id again.
  The 65 536 last ones. In stateless mode each file that was looked up: the kernel opens it without asking.
- that the mount has become stateless.

All others get node ids that were never given out before: each daemon of a mount has a range of its own for node ids and
handle numbers, by its generation. So an old page can never be shown as a new version, whatever was noted.

Without a keeper there is nobody to go on, and nothing is noted. Where memory for the journal cannot be had it is given
up whole: a journal without its last change could lie. A handle that was noted and whose reply did not leave is found
again by the number of the request, which the kernel sends again; if the one who asked was killed meanwhile, nobody
will ever close it, and its file stays pinned while the mount lives.

Called by `namespace`, `handles` and `fuse`; read once, by `inheritance`. Event loop only, never waits.
"""

from __future__ import annotations

import logging
import os
import struct
from collections import OrderedDict
from typing import Protocol

from mountd.base.attributes import Attributes
from mountd.base.version import Version, is_lasting
from mountd.namespace.journal.facts import (
    DIRECTORY,
    DOUBT,
    FILE,
    MOUNT,
    NODE,
    DirectoryFact,
    MountFact,
    NodeFact,
    handle_value,
)
from mountd.namespace.journal.inherited import Inherited, read_inherited
from mountd.namespace.journal.log import JournalLog
from mountd.namespace.journal.segment import open_memory
from mountd.wire.handover import Handover

__all__ = ["Inherited", "Journal", "open_journal"]

log = logging.getLogger(__name__)

_MAX_DIRECTORIES = 65_536
_MAX_FILES = 65_536
"""Each costs 200 bytes of the journal, twice while it is compacted, and as much in our memory: 50 MB when all is full.
A data set of more files than these reads the others from the cache disk once more after a crash."""

_RESENT = 1 << 63
"""In the number of a request that the kernel has sent again."""


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


class Journal:
    """See the file's story. `Journal()` notes nothing."""

    def __init__(
        self,
        entries: JournalLog | None = None,
        generation: int = 0,
        *,
        max_directories: int = _MAX_DIRECTORIES,
        max_files: int = _MAX_FILES,
    ) -> None:
        """`generation`: how many daemons have served the mount before."""
        self.generation = generation
        self._log = entries
        self._max_directories = max_directories
        self._max_files = max_files
        self._nodes: dict[int, _Noted] = {}
        self._handles: dict[int, int] = {}
        """Node ids of the noted handles, of files and of directories."""
        self._idle_files: OrderedDict[int, None] = OrderedDict()
        self._leaves: OrderedDict[int, None] = OrderedDict()
        """Directories with nothing below them and not open."""
        self._doubted: set[int] = set()
        self._directories = 0
        self._mount = MountFact()
        self._inherited = read_inherited(entries) if entries is not None else Inherited()
        self._adopt(self._inherited)

    @property
    def on(self) -> bool:
        """Something is noted."""
        return self._log is not None

    @property
    def mount(self) -> MountFact:
        """What holds for the mount."""
        return self._mount

    def statistics(self) -> dict[str, int]:
        """What is noted, and the memory that it takes."""
        return {
            "directories": self._directories,
            "files": len(self._nodes) - self._directories,
            "handles": len(self._handles),
            "bytes": self._log.memory_bytes if self._log is not None else 0,
        }

    # -- nodes --------------------------------------------------------------------------------------------------------

    def knows(self, node_id: int) -> bool:
        """Whether the node is noted."""
        return node_id in self._nodes

    def wants(self, node: _Node) -> bool:
        """Whether `node` is to be noted when the kernel is told of it: it need not be asked for at an open."""
        if self._log is None:
            return False
        return node.children is not None or (self._mount.stateless and node.version is not None)

    def note(self, node: _Node) -> None:
        """The kernel knows `node`, whose parent is noted, by its id. What is noted already costs a look."""
        node_id = node.id
        parent_id = node.parent.id if node.parent is not None else 0
        noted = self._nodes.get(node_id)
        if noted is not None and noted.parent_id == parent_id and noted.name == node.name:
            if node_id in self._idle_files:
                self._idle_files.move_to_end(node_id)
            return
        try:
            value = NodeFact(node_id, parent_id, node.name, node.attributes, node.version).value()
        except struct.error:
            return  # a number that no file system should give: after a crash the node is not known
        if not self._put(NODE, node_id, value):
            return
        if noted is not None:
            self._detached(noted)
            noted.parent_id, noted.name, noted.forgotten = parent_id, node.name, False
        else:
            noted = self._nodes[node_id] = _Noted(parent_id, node.name, is_directory=node.children is not None)
            self._directories += noted.is_directory
        self._attached(noted)
        self._settled(node_id, noted)
        self._bound(node_id)

    def doubt(self, node_id: int, *, doubted: bool) -> None:
        """Whether what was read of a noted node may be wrong: then no later daemon's opens are to see its pages."""
        if node_id not in self._nodes or doubted == (node_id in self._doubted):
            return
        if not doubted:
            self._doubted.discard(node_id)
            self._drop(DOUBT, node_id)
        elif self._put(DOUBT, node_id, b""):
            self._doubted.add(node_id)

    def gone(self, node_id: int) -> None:
        """The kernel has forgotten the node, or nobody may use it any more."""
        noted = self._nodes.get(node_id)
        if noted is not None:
            noted.forgotten = True
            self._settled(node_id, noted)

    def _remove(self, node_id: int, noted: _Noted) -> None:
        del self._nodes[node_id]
        self._directories -= noted.is_directory
        self._idle_files.pop(node_id, None)
        self._leaves.pop(node_id, None)
        self._drop(NODE, node_id)
        if node_id in self._doubted:
            self._doubted.discard(node_id)
            self._drop(DOUBT, node_id)
        self._detached(noted)

    def _attached(self, noted: _Noted) -> None:
        above = self._nodes.get(noted.parent_id)
        if above is not None:
            above.below += 1
            self._leaves.pop(noted.parent_id, None)

    def _detached(self, noted: _Noted) -> None:
        above = self._nodes.get(noted.parent_id)
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
            self._remove(node_id, self._nodes[node_id])
        while self._directories > self._max_directories and len(self._leaves) > 1:
            node_id = next(leaf for leaf in self._leaves if leaf != newest)
            self._remove(node_id, self._nodes[node_id])

    # -- handles ------------------------------------------------------------------------------------------------------

    def opened(self, number: int, node_id: int, backing_id: int, backing_inode: int, unique: int) -> None:
        """An open of a noted node, by request `unique` of the kernel (0: not known), is answered with handle `number`
        now, and passed through to a backing file if its id is not 0."""
        noted = self._nodes.get(node_id)
        if noted is not None and self._put(
            FILE, number, handle_value(node_id, backing_id, backing_inode, unique & ~_RESENT)
        ):
            self._handles[number] = node_id
            noted.opens += 1
            self._idle_files.pop(node_id, None)

    def opened_directory(self, number: int, node_id: int, unique: int) -> None:
        """The same of a directory."""
        noted = self._nodes.get(node_id)
        fact = DirectoryFact(number, node_id, unique & ~_RESENT)
        if noted is not None and self._put(DIRECTORY, number, fact.value()):
            self._handles[number] = node_id
            noted.opens += 1
            self._leaves.pop(node_id, None)

    def shown(self, number: int, unique: int, shown: int, digest: int) -> None:
        """The reader of directory `number`, opened by request `unique`, is shown names before position `shown`."""
        node_id = self._handles.get(number)
        if node_id is not None:
            self._put(DIRECTORY, number, DirectoryFact(number, node_id, unique & ~_RESENT, shown, digest).value())

    def closed(self, number: int) -> None:
        """The kernel lets go of file handle `number`."""
        self._closed(FILE, number)

    def closed_directory(self, number: int) -> None:
        """The same of a directory."""
        self._closed(DIRECTORY, number)

    def _closed(self, kind: int, number: int) -> None:
        node_id = self._handles.pop(number, None)
        if node_id is None:
            return
        self._drop(kind, number)
        noted = self._nodes.get(node_id)
        if noted is None:
            return  # the journal was given up with this change
        noted.opens -= 1
        if not noted.opens:
            self._settled(node_id, noted)
            self._bound()

    # -- the mount ----------------------------------------------------------------------------------------------------

    def becomes_stateless(self) -> None:
        """The kernel is told to open without asking."""
        if not self._mount.stateless:
            self._mount = self._mount._replace(stateless=True)
            self._put(MOUNT, 0, self._mount.value())

    def source_id(self, found: str) -> str:
        """What SOURCE's file system is called as long as the mount lives; `found`: by this daemon."""
        if self._log is None or is_lasting(found):
            return found
        if not self._mount.source_id:
            self._mount = self._mount._replace(source_id=found)
            self._put(MOUNT, 0, self._mount.value())
        return self._mount.source_id

    # -- the log ------------------------------------------------------------------------------------------------------

    def _put(self, kind: int, number: int, value: bytes) -> bool:
        if self._log is None:
            return False
        try:
            self._log.put(kind, number, value)
        except (OSError, ValueError) as error:
            self._give_up(error)
            return False
        return True

    def _drop(self, kind: int, number: int) -> None:
        if self._log is None:
            return
        try:
            self._log.drop(kind, number)
        except (OSError, ValueError) as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        log.error("the journal is given up: %s; after a crash of this daemon what is open answers ESTALE", error)
        if self._log is not None:
            self._log.clear()
        self._log = None
        self._directories = 0
        for table in (self._nodes, self._handles, self._idle_files, self._leaves):
            table.clear()

    # -- what was noted before ----------------------------------------------------------------------------------------

    def take_inherited(self) -> Inherited:
        """What the daemons before have noted; once."""
        inherited, self._inherited = self._inherited, Inherited()
        return inherited

    def _adopt(self, inherited: Inherited) -> None:
        self._mount = inherited.mount
        for fact in inherited.nodes:
            noted = self._nodes[fact.node_id] = _Noted(fact.parent_id, fact.name, is_directory=fact.version is None)
            self._directories += noted.is_directory
            self._attached(noted)
        self._doubted = {fact.node_id for fact in inherited.nodes if fact.doubted}
        self._handles = {handle.number: handle.node_id for handle in inherited.files}
        self._handles.update((handle.number, handle.node_id) for handle in inherited.directories)
        for node_id in self._handles.values():
            self._nodes[node_id].opens += 1
        for node_id, noted in self._nodes.items():
            self._settled(node_id, noted)


def open_journal(handover: Handover) -> Journal:
    """The journal of the mount that is handed over.

    What another mount has left there, or cannot be read, is not used. One that cannot be written notes nothing.
    """
    try:
        memories = open_memory(handover.journal_fds[0]), open_memory(handover.journal_fds[1])
        major, _, minor = handover.device.partition(":")
        device = os.makedev(int(major), int(minor))
        entries = JournalLog(memories)
        mount = entries.get(MOUNT, 0)
        if mount is None or MountFact.read(mount).device != device:
            entries.clear()
            entries = JournalLog(memories)
            entries.put(MOUNT, 0, MountFact(device=device).value())
        return Journal(entries, handover.generation)
    except (OSError, ValueError, struct.error) as error:
        log.error("no journal: %s; after a crash of this daemon what is open answers ESTALE", error)
        return Journal(None, handover.generation)
