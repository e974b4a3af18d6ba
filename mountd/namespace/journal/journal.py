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

from hfs.mountd.namespace.journal.facts import MOUNT, MountFact
from hfs.mountd.namespace.journal.inherited import Inherited, read_inherited
from hfs.mountd.namespace.journal.log import JournalLog
from hfs.mountd.namespace.journal.noted_handles import NotedHandles
from hfs.mountd.namespace.journal.noted_mount import NotedMount
from hfs.mountd.namespace.journal.noted_nodes import NotedNodes
from hfs.mountd.namespace.journal.segment import open_memory
from hfs.mountd.namespace.journal.writer import JournalWriter
from hfs.mountd.wire.handover import Handover

log = logging.getLogger(__name__)

_MAX_DIRECTORIES = 65_536
_MAX_FILES = 65_536
"""Each costs 200 bytes of the journal, twice while it is compacted, and as much in our memory: 50 MB when all is full.
A data set of more files than these reads the others from the cache disk once more after a crash."""


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
