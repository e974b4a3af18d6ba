"""The journal: what the kernel has been told, noted before the reply leaves, so that a daemon that is killed costs
nothing.

The kernel names nodes and handles by numbers that we gave it. The next daemon on the same connection must know

    nodes      the directories that the kernel knows, the files that are open, and the last ones that were
    handles    what is open, and how it is read
    mount      that the mount has become stateless, and what SOURCE's file system is called

All others get node ids that were never given out before: each daemon of a mount has a range of its own for node ids and
handle numbers, by its generation. So an old page can never be shown as a new version, whatever was noted.

Without a keeper there is nobody to go on, and nothing is noted. Event loop only, never waits.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hfs.mountd.namespace.journal.facts import (
    DIRECTORY,
    FILE,
    MOUNT,
    NODE,
    UNCERTAIN,
    DirectoryFact,
    HandleFact,
    MountFact,
    NodeFact,
    handle_value,
)
from hfs.mountd.namespace.journal.log import JournalLog, JournalWriter, open_memory
from hfs.mountd.namespace.journal.noted_nodes import NotedMount, NotedNodes
from hfs.mountd.wire.handover import Handover

log = logging.getLogger(__name__)

_MAX_DIRECTORIES = 65_536
_MAX_FILES = 65_536
"""Each costs 200 bytes of the journal, twice while it is compacted, and as much in our memory: 50 MB when all is full.
A data set of more files than these reads the others from the cache disk once more after a crash."""


_RESENT = 1 << 63
"""In the number of a request that the kernel has sent again."""


class Inherited(NamedTuple):
    """What an earlier daemon has noted."""

    nodes: Sequence[NodeFact] = ()
    """Parents before what is below them; every parent is there, and is a directory."""
    files: Sequence[HandleFact] = ()
    directories: Sequence[DirectoryFact] = ()
    """Open directories."""
    mount: MountFact = MountFact()


def read_inherited(log: JournalLog) -> Inherited:
    """All that is of use in `log`: nodes whose parents are there up to the root, handles whose nodes are.

    What is not of use is taken out of the log.
    """
    facts: dict[int, NodeFact] = {}
    files: list[HandleFact] = []
    directories: list[DirectoryFact] = []
    mount = MountFact()
    uncertain: set[int] = set()
    for kind, number, value in log.items():
        if kind == NODE:
            facts[number] = NodeFact.read(number, value)
        elif kind == FILE:
            files.append(HandleFact.read(number, value))
        elif kind == DIRECTORY:
            directories.append(DirectoryFact.read(number, value))
        elif kind == MOUNT:
            mount = MountFact.read(value)
        elif kind == UNCERTAIN:
            uncertain.add(number)
    nodes = [fact._replace(uncertain=fact.node_id in uncertain) for fact in _parents_first(facts)]
    kept = {fact.node_id: fact for fact in nodes}
    inherited = Inherited(
        nodes,
        [handle for handle in files if handle.node_id in kept and kept[handle.node_id].version is not None],
        [handle for handle in directories if handle.node_id in kept and kept[handle.node_id].version is None],
        mount,
    )
    for node_id in facts.keys() - kept.keys():
        log.drop(NODE, node_id)
    for node_id in uncertain - kept.keys():
        log.drop(UNCERTAIN, node_id)
    for lost in set(files).difference(inherited.files):
        log.drop(FILE, lost.number)
    for shut in set(directories).difference(inherited.directories):
        log.drop(DIRECTORY, shut.number)
    return inherited


def _parents_first(facts: dict[int, NodeFact]) -> Iterator[NodeFact]:
    """Each node behind its parent. What does not lead through directories to the root is left out."""
    done: set[int] = set()
    for start in facts.values():
        way: list[NodeFact] = []
        fact: NodeFact | None = start
        while fact is not None and fact.node_id not in done and len(way) < len(facts):
            way.append(fact)
            fact = facts.get(fact.parent_id)
            if fact is not None and fact.version is not None:
                fact = None
        if fact is None:
            leads_up = way[-1].parent_id == 0
        else:
            leads_up = fact.node_id in done
        if leads_up:
            for node in reversed(way):
                done.add(node.node_id)
                yield node


class NotedHandles:
    """Which open file or directory the kernel knows by which number. `len()`: how many.

    A handle whose reply did not leave is found again by the number of the request, which the kernel sends again; if the
    one who asked was killed meanwhile, nobody will ever close it, and its file stays pinned while the mount lives. A
    handle of a node that is not noted is not noted either.
    """

    def __init__(self, writer: JournalWriter, nodes: NotedNodes, inherited: Inherited) -> None:
        self._writer = writer
        self._nodes = nodes
        self._handles = {handle.number: handle.node_id for handle in inherited.files}
        """Node ids, of files and of directories."""
        self._handles.update((handle.number, handle.node_id) for handle in inherited.directories)
        for node_id in self._handles.values():
            nodes.opened(node_id)

    def __len__(self) -> int:
        return len(self._handles)

    def clear(self) -> None:
        """The journal is given up."""
        self._handles.clear()

    def opened(self, number: int, node_id: int, backing_id: int, backing_inode: int, unique: int) -> None:
        """An open of a noted node, by request `unique` of the kernel (0: not known), is answered with handle `number`
        now, and passed through to a backing file if its id is not 0."""
        if self._nodes.knows(node_id):
            self._note(FILE, number, node_id, handle_value(node_id, backing_id, backing_inode, unique & ~_RESENT))

    def opened_directory(self, number: int, node_id: int, unique: int) -> None:
        """The same of a directory."""
        if self._nodes.knows(node_id):
            self._note(DIRECTORY, number, node_id, DirectoryFact(number, node_id, unique & ~_RESENT).value())

    def _note(self, kind: int, number: int, node_id: int, value: bytes) -> None:
        if self._writer.put(kind, number, value):
            self._handles[number] = node_id
            self._nodes.opened(node_id)

    def shown(self, number: int, unique: int, shown: int, digest: int) -> None:
        """The reader of directory `number`, opened by request `unique`, is shown names before position `shown`."""
        node_id = self._handles.get(number)
        if node_id is not None:
            fact = DirectoryFact(number, node_id, unique & ~_RESENT, shown, digest)
            self._writer.put(DIRECTORY, number, fact.value())

    def closed(self, number: int) -> None:
        """The kernel lets go of file handle `number`."""
        self._closed(FILE, number)

    def closed_directory(self, number: int) -> None:
        """The same of a directory."""
        self._closed(DIRECTORY, number)

    def _closed(self, kind: int, number: int) -> None:
        node_id = self._handles.pop(number, None)
        if node_id is not None:
            self._writer.drop(kind, number)
            self._nodes.closed(node_id)


class Journal:
    """`Journal()` notes nothing."""

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
        self._inherited = read_inherited(entries) if entries is not None else Inherited()
        self._writer = JournalWriter(entries, self._forget_all)
        self.mount = NotedMount(self._writer, self._inherited.mount)
        self.nodes = NotedNodes(
            self._writer, self.mount, self._inherited.nodes, max_directories=max_directories, max_files=max_files
        )
        self.handles = NotedHandles(self._writer, self.nodes, self._inherited)

    @property
    def on(self) -> bool:
        """Something is noted."""
        return self._writer.on

    def _forget_all(self) -> None:
        self.nodes.clear()
        self.handles.clear()

    def take_inherited(self) -> Inherited:
        """What the daemons before have noted; once."""
        inherited, self._inherited = self._inherited, Inherited()
        return inherited

    def statistics(self) -> dict[str, int]:
        """What is noted, and the memory that it takes."""
        directories = self.nodes.directories
        return {
            "directories": directories,
            "files": len(self.nodes) - directories,
            "handles": len(self.handles),
            "bytes": self._writer.memory_bytes,
        }


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
