"""Stamps: how staging sees that another program has changed an object.

Every change of a file, whoever makes it, gives it a new time of change (ctime), which no program can set. So inode
number and ctime together, as they were after our own last change, say that an object is as we left it: its *stamp*. It
is compared at every read and every open, which costs a microsecond, and kept in the index, so that a later daemon
believes an object that still has it. An object without its stamp is not wrong; nobody knows, and each chunk of it is
verified by its checksum before it is used (by the reader).

Our own changes move the stamp too: a chunk is written, a hole is punched. Of each object one such change is under way
at a time (`Turns`). It begins with a look whether the stamp is still the one of the change before, and ends with the
new one. If another program was in between, nothing that was verified before counts any more. What is changed in the
milliseconds of a change of ours in the same object cannot be told from it; the scrub finds it.

A file system that stamps whole seconds (ext4 with small inodes) tells nobody what was changed twice in a second: its
stamps are compared, and never kept (`stamp_to_keep`). Changes that leave the ctime as it was, below the file system or
by setting the clock back, are left to the scrub as well.

`Turns` lives on the event loop, `Change` is begun and ended in threads. Neither opens a file.
"""

from __future__ import annotations

import os
import stat

import trio

from hfs.mountd.cache.index import Stamp
from hfs.mountd.cache.objects.file import StagedFile

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

    def made(self, stamp: Stamp) -> None:
        """In the thread: the object is new, and was left like this."""
        self.after = stamp


class Turns:
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
        """As `begin_nowait`, once the others have done. One at a time may wait."""
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
            file.doubt()
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
