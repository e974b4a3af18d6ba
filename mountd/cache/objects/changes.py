"""Changes of objects: by other programs, which stamps show; by us, one at a time; and what of them is to be given up.

Every change of a file, whoever makes it, gives it a new time of change (ctime), which no program can set. So inode
number and ctime together, as they were after our own last change, say that an object is as we left it: its *stamp*. It
is compared at every read and every open, which costs a microsecond, and kept in the index, so that a later daemon
believes an object that still has it. An object without its stamp is not wrong; nobody knows, and each chunk of it is
verified by its checksum before it is used (by the reader).

Our own changes move the stamp too: a chunk is written, a hole is punched. Of each object one such change is under way
at a time (`ObjectLocks`). It begins with a look whether the stamp is still the one of the change before, and ends with
the new one. If another program was in between, nothing that was verified before counts any more. What is changed in the
milliseconds of a change of ours in the same object cannot be told from it; the scrub finds it.

A file system that stamps whole seconds (ext4 with small inodes) tells nobody what was changed twice in a second: its
stamps are compared, and never kept (`stamp_to_keep`). Changes that leave the ctime as it was, below the file system or
by setting the clock back, are left to the scrub as well.

What is to be given up is decided at once (`ReclaimQueue`) and carried out by the reclaimer later: a chunk that is given
up is not used from that very moment on, and nobody can pin or use a file between the look at it and the mark on it.

`Change` is begun and ended in threads; all else lives on the event loop. Nothing here opens a file.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from hfs.mountd.cache.index import Stamp
from hfs.mountd.cache.objects.disk import Descriptors
from hfs.mountd.cache.objects.file import StagedFile, recall
from hfs.mountd.core.attributes import Version

_SECOND_NS = 1_000_000_000


def stamp_of(fd: int, size: int) -> Stamp | None:
    """The stamp of an open object; None if it is no regular file of `size` bytes. Raises OSError."""
    found = os.fstat(fd)
    if found.st_size != size or not stat.S_ISREG(found.st_mode):
        return None
    return Stamp(found.st_ino, found.st_ctime_ns)


def stamp_to_keep(file: StagedFile, committed: int) -> Stamp | None:
    """What a later daemon may rely on, if is committed `committed` chunks of the file.

    None unless all that lies in the object is right and committed. Always None of a file that is not plain, which only
    we read, and where the file system has no fractions of a second.
    """
    stamp = file.stamp
    if stamp is None or not stamp.ctime_ns % _SECOND_NS or not file.plain:
        return None
    at_rest = file.changing is None and file.barred is None and not file.stray
    return stamp if file.sound and at_rest and len(file.present) == committed else None


class Change:
    """One change of ours to one object, by one thread."""

    __slots__ = ("_size", "after", "before", "begun", "expected")

    def __init__(self, file: StagedFile) -> None:
        self.expected = file.stamp
        """How we left the object; None: there is none yet, or it is not known."""
        self.before: Stamp | None = None
        """How the thread found it."""
        self.after: Stamp | None = None
        """How the thread left it; None: not known, or it has not come to its end."""
        self.begun = False
        """From here on a new stamp may be ours. Set in the thread, read on the event loop at any moment."""
        self._size = file.size

    def begin(self, fd: int) -> bool:
        """In the thread, before anything is changed of the open object. False if it has not the length that it should
        have. Raises OSError."""
        self.before = stamp_of(fd, self._size)
        self.begun = self.expected is not None and self.before == self.expected
        return self.before is not None

    def end(self, fd: int) -> None:
        """In the thread, after the last change. Raises OSError."""
        self.after = stamp_of(fd, self._size)


class ObjectLocks:
    """Who may change which object now. Event loop only."""

    def __init__(self) -> None:
        self.freed = trio.lowlevel.ParkingLot()
        """Writers wait here; all of them are woken when a turn ends, and one when there is something to write."""
        self._next = trio.lowlevel.ParkingLot()
        self._waiting: set[StagedFile] = set()

    def begin_nowait(self, file: StagedFile) -> Change | None:
        """A turn at the object of `file`, which `end` ends; None: others change it, or wait for their turn."""
        if file.changing is not None or file in self._waiting:
            return None
        return self._begin(file)

    async def begin(self, file: StagedFile) -> Change:
        """Wait for a turn at the object of `file`, which `end` ends. One at a time may wait."""
        self._waiting.add(file)
        try:
            while file.changing is not None:
                await self._next.park()
        finally:
            self._waiting.discard(file)
        return self._begin(file)

    def end(self, file: StagedFile) -> None:
        """The change came to its end, one way or the other."""
        change, file.changing = file.changing, None
        assert change is not None
        if not change.before == change.expected == file.stamp or change.after is None:
            file.suspect()
        file.stamp = change.after
        self.freed.unpark_all()
        self._next.unpark_all()

    def _begin(self, file: StagedFile) -> Change:
        file.changing = change = Change(file)
        return change


def is_ours(file: StagedFile, stamp: Stamp | None) -> bool:
    """Whether an object with this stamp is as we left it, or is being changed by us."""
    if stamp is not None and stamp == file.stamp:
        return True
    return file.changing is not None and file.changing.begun


@dataclass(frozen=True, slots=True)
class Repair:
    """Chunks of one file that were given up: forgotten by the index first, then punched."""

    file: StagedFile
    object_id: int
    indexes: list[int]


class ReclaimQueue:
    """`more` is set whenever something is added; the reclaimer takes out of the other public attributes."""

    def __init__(self, descriptors: Descriptors, changes: Callable[[int], object]) -> None:
        """`changes` is told of each object that is about to change or to go."""
        self.changes = changes
        self.descriptors = descriptors
        self.more = trio.Event()
        self.repairs: deque[Repair] = deque()
        self.retired: deque[tuple[int, int]] = deque()
        """Objects that never got a row: (number, bytes of room)."""
        self.evictions: dict[int, Version] = {}
        """Files that go as a whole, by object number."""
        self.emptied: set[int] = set()
        """Of these, what goes only if it holds nothing when its turn comes: a put may come before."""

    @property
    def empty(self) -> bool:
        """Nothing waits for the reclaimer."""
        return not (self.repairs or self.retired or self.evictions)

    def evict(self, object_id: int, version: Version) -> None:
        """This object goes, unless it is busy when its turn comes."""
        self.evictions[object_id] = version
        self.emptied.discard(object_id)
        self.more.set()

    def give_up(self, file: StagedFile, indexes: Sequence[int]) -> None:
        """Chunks of the file are not to be used any more, from this moment on. Those not present are ignored."""
        dropped = [index for index in indexes if index in file.present]
        if not dropped or file.object_id is None:
            return
        for index in dropped:
            file.drop(index)
            file.bar(index)
        self.changes(file.object_id)
        file.unsettled += 1
        self.repairs.append(Repair(file, file.object_id, dropped))
        self.more.set()

    def lost(self, file: StagedFile) -> None:
        """The object of the file is gone from the disk: so are all its chunks. The next put makes it anew."""
        if file.object_id is not None:
            file.created = False
            file.suspect()
            self.descriptors.drop(file.object_id)
            self.give_up(file, list(file.present))

    def supersede(self, file: StagedFile) -> None:
        """A newer version of the file exists: what is staged of this one goes as soon as it is not open."""
        recall(file)
        file.superseded = True
        self.settled(file)

    def settled(self, file: StagedFile) -> None:
        """Something about the file came to an end: look whether it is still wanted."""
        self.retire_if_empty(file)
        if file.object_id is None or file.busy:
            return
        if file.superseded and not file.has_row:
            self.give_up(file, list(file.present))  # it was open when it was found wrong
        elif file.superseded:
            self.evict(file.object_id, file.version)
        elif not file.present and file.object_id not in self.evictions:
            self.evict(file.object_id, file.version)
            self.emptied.add(file.object_id)

    def retire_if_empty(self, file: StagedFile) -> None:
        """Remove the object of a file that has no chunk and no row, and none on the way."""
        if file.object_id is None or file.has_row or file.unsettled or file.present:
            return
        number, room_bytes = file.detach()
        assert number is not None
        self.retired.append((number, room_bytes))
        self.more.set()
