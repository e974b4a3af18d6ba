"""System calls on an open object: reads, writes, holes, what the page cache has of it; behind whom, and at what pace.

Every method of `ObjectIO` blocks and may raise OSError, unless it says otherwise; those that read from the disk or
write to it are called in threads. Tests replace that class by one that fails or dies at the Nth call.

The kernel has classes of I/O, by which a disk's scheduler chooses whom to serve; a thread is put into one for a while:

    idle_io      when nobody else wants the disk: what nobody waits for, and may starve
    staging_io   behind readers, and not to starve: the last of the eight levels of the usual class

Only some schedulers heed them: bfq both, mq-deadline idle alone, and an NVMe drive mostly has none. Of what is written
through the page cache the class says nothing: the kernel writes it back in threads of its own. Where the system call is
not known or refused nothing happens.

So staging steps back by itself, too (`WritePace`). A drive takes what it is given in the order in which it comes, or
nearly so: a read behind 8 MiB waits until these are written. While a reader waits a chunk goes in pieces, and while
readers of other mounts do, with a rest behind each that is the longer the less is to be written (`share`, which
policies/prefetch/yielding.py finds out; the event loop says it, threads write by it). Bounded: whoever writes goes on
after each rest, so no chunk is held up for ever, and what another mount's daemon says costs no more than that. What is
small is written through the page cache, which a sync then empties at once: while readers of other mounts wait it is
written back file by file before that.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from hfs.mountd.native.cachestat import resident_of
from hfs.policies.cache.admission import BLOCK_BYTES
from hfs.policies.prefetch.yielding import rest_s

_SET_AND_GET = {"x86_64": (251, 252), "aarch64": (30, 31)}
"""ioprio_set(2) and ioprio_get(2), which no C library has."""

_THIS_THREAD = (1, 0)  # IOPRIO_WHO_PROCESS, and nobody else
_CLASS_SHIFT = 13
_IDLE = 3 << _CLASS_SHIFT
_LAST_OF_BEST_EFFORT = 2 << _CLASS_SHIFT | 7

_libc = ctypes.CDLL(None, use_errno=True)
_calls = _SET_AND_GET.get(platform.machine())


@contextmanager
def idle_io() -> Iterator[None]:
    """What this thread reads inside is read when the disk has nothing else to do."""
    with _io_class(_IDLE):
        yield


@contextmanager
def staging_io() -> Iterator[None]:
    """What this thread writes and syncs inside goes behind what others read, and goes on."""
    with _io_class(_LAST_OF_BEST_EFFORT):
        yield


def io_class_here() -> int:
    """As ioprio_get(2) says of this thread: class << 13 | level; -1 where that is not known."""
    return int(_libc.syscall(_calls[1], *_THIS_THREAD)) if _calls is not None else -1


@contextmanager
def _io_class(wanted: int) -> Iterator[None]:
    before = io_class_here()
    # Whoever was put into the idle class from outside (ionice -c 3) stays there.
    lowers = before >= 0 and before >> _CLASS_SHIFT != _IDLE >> _CLASS_SHIFT
    changed = lowers and _calls is not None and _libc.syscall(_calls[0], *_THIS_THREAD, wanted) == 0
    try:
        yield
    finally:
        if changed and _calls is not None:
            _libc.syscall(_calls[0], *_THIS_THREAD, before)


_FALLOC_FL_KEEP_SIZE = 0x01
_FALLOC_FL_PUNCH_HOLE = 0x02
_SYNC_FILE_RANGE_ALL = 0x07
"""Wait for what is being written, write, and wait for that."""

_READ_AHEAD_BYTES = 128 << 10
"""Of more the kernel reads the beginning: as much as the readahead of the disk, or its largest request
(force_page_cache_ra in mm/readahead.c)."""

_libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


class Damaged(OSError):
    """Staged bytes are not what was staged."""


class ObjectIO:
    """Stateless. `fd` is a descriptor that `Disk` has opened."""

    def write(self, fd: int, parts: Sequence[memoryview | mmap.mmap], offset: int) -> None:
        """All of `parts` from `offset` on. With O_DIRECT every part is aligned in memory and in length."""
        total = sum(len(part) for part in parts)
        done = os.pwritev(fd, parts, offset)
        while done < total:
            # Short writes: near a full disk or a quota; the rest gives the error, or succeeds.
            rest: list[memoryview] = []
            skip = done
            for part in parts:
                view = memoryview(part)
                if skip < len(view):
                    rest.append(view[skip:])
                skip = max(0, skip - len(view))
            more = os.pwritev(fd, rest, offset + done)
            if more == 0:
                raise OSError(errno.ENOSPC, "a write to the cache wrote nothing")
            done += more

    def set_length(self, fd: int, size: int) -> None:
        """Make the file `size` bytes long; what was not written reads as zeros."""
        os.ftruncate(fd, size)

    def read(self, fd: int, offset: int, size: int) -> bytearray:
        """`size` bytes, fewer only at the end of the file."""
        data = bytearray(size)
        done = os.preadv(fd, [data], offset)
        while 0 < done < size:
            more = os.preadv(fd, [memoryview(data)[done:]], offset + done)
            if more == 0:
                break
            done += more
        if done < size:
            del data[done:]
        return data

    def read_into(self, fd: int, offset: int, buffer: memoryview) -> bool:
        """Fill `buffer`. False if the file ends before."""
        done = 0
        while done < len(buffer):
            more = os.preadv(fd, [buffer[done:]], offset + done)
            if more == 0:
                return False
            done += more
        return True

    def read_part(self, fd: int, offset: int, buffer: memoryview) -> int:
        """As many bytes as there are, at most a full `buffer`, which is aligned for O_DIRECT like `offset`."""
        done = os.preadv(fd, [buffer], offset)
        while done < len(buffer) and done % BLOCK_BYTES == 0:
            more = os.preadv(fd, [buffer[done:]], offset + done)
            if more == 0:
                break
            done += more
        return done

    def has_cached(self, fd: int, offset: int, size: int) -> bool:
        """Whether the page cache seems to have `size` bytes: their first, middle and last one."""
        byte = memoryview(bytearray(1))
        try:
            return all(self.read_cached(fd, at, byte) for at in (offset, offset + size // 2, offset + size - 1))
        except OSError:
            return True  # it is memory

    def is_resident(self, fd: int) -> bool:
        """Whether the page cache has all bytes of an object; False where the kernel does not tell. Reads none: a read
        that may not wait begins to, and finds on a fast disk what was not there."""
        found = resident_of(fd)
        return found is not None and found[0] >= found[1]

    def only_asked_for(self, fd: int) -> None:
        """Read no bytes into the page cache that were not asked for."""
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)

    def let_go(self, fd: int, offset: int, size: int) -> None:
        """Drop bytes from the page cache, as far as they are on the disk."""
        os.posix_fadvise(fd, offset, size, os.POSIX_FADV_DONTNEED)

    def read_cached(self, fd: int, offset: int, buffer: memoryview) -> bool:
        """Fill `buffer` if the page cache has all of it. Raises OSError (EOPNOTSUPP: never on this disk)."""
        try:
            return os.preadv(fd, [buffer], offset, os.RWF_NOWAIT) == len(buffer)
        except BlockingIOError:
            return False

    def will_need(self, fd: int, offset: int, size: int) -> None:
        """Begin to read bytes into the page cache; does not wait for them. Raises OSError."""
        for start in range(offset, offset + size, _READ_AHEAD_BYTES):
            wanted = min(_READ_AHEAD_BYTES, offset + size - start)
            os.posix_fadvise(fd, start, wanted, os.POSIX_FADV_WILLNEED)

    def write_out(self, fd: int, offset: int, size: int) -> None:
        """Have bytes written that only memory has, and wait for that; durable they are after a sync.

        A failed write-back is told once: whoever hears of it here must give the bytes up. Raises OSError.
        """
        if _libc.sync_file_range(fd, offset, size, _SYNC_FILE_RANGE_ALL) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"writing back: {os.strerror(number)}")

    def sync(self, fd: int) -> None:
        """The bytes of one object, durable."""
        os.fdatasync(fd)

    def is_hole(self, fd: int, start: int, end: int) -> bool:
        """Whether the file has bytes `[start, end)` and none of them is on the disk, as far as that can be told."""
        try:
            return os.lseek(fd, start, os.SEEK_DATA) >= end
        except OSError as error:
            return error.errno == errno.ENXIO and os.fstat(fd).st_size >= end

    def punch(self, fd: int, start: int, end: int) -> None:
        """Give the blocks of `[start, end)` back; the length stays."""
        if _libc.fallocate(fd, _FALLOC_FL_KEEP_SIZE | _FALLOC_FL_PUNCH_HOLE, start, end - start) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"punching a hole: {os.strerror(number)}")

    def close(self, fd: int) -> None:
        """Close a descriptor of an object. The last one of a removed object frees its blocks, which takes a while."""
        os.close(fd)


_PIECE_BYTES = 512 << 10
"""A SATA drive writes it in a millisecond or three: hardly longer than a read takes. Of more, few drives are faster."""


class WritePace:
    """Of one cache."""

    def __init__(
        self,
        readers_wait: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """`readers_wait`: whether any of ours wait for the disk; asked in threads. `sleep` blocks."""
        self._readers_wait = readers_wait
        self._clock = clock
        self._sleep = sleep
        self.share = 1.0
        """The part of the time in which there may be something to write; 1: all."""

    def write(
        self, io: ObjectIO, fd: int, parts: Sequence[memoryview | mmap.mmap], offset: int, *, rests: bool
    ) -> None:
        """In a thread: as `ObjectIO.write`. Without `rests` in pieces at most. Raises OSError."""
        if self.share >= 1 and not self._readers_wait():
            io.write(fd, parts, offset)
            return
        for part in parts:
            for start in range(0, len(part), _PIECE_BYTES):
                began_s = self._clock()
                piece = memoryview(part)[start : start + _PIECE_BYTES]
                io.write(fd, [piece], offset)
                offset += len(piece)
                if rests and self.share < 1:
                    self._sleep(rest_s(self._clock() - began_s, self.share))

    def write_back(self, io: ObjectIO, fd: int, size_bytes: int) -> None:
        """In a thread: have what memory alone has of an object written, as long as readers of others wait. Raises
        OSError, after which nobody knows what of it is on the disk."""
        for start in range(0, size_bytes, _PIECE_BYTES):
            if self.share >= 1:
                return
            began_s = self._clock()
            io.write_out(fd, start, _PIECE_BYTES)
            self._sleep(rest_s(self._clock() - began_s, self.share))
