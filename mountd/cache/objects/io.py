"""System calls on an open object: reads, writes, holes, and what the page cache has of it.

Every method blocks and may raise OSError, unless it says otherwise; those that read from the disk or write to it are
called in threads. Tests replace this class by one that fails or dies at the Nth call.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Sequence

from hfs.mountd.native.cachestat import resident_of
from hfs.policies.cache.admission import BLOCK_BYTES

_FALLOC_FL_KEEP_SIZE = 0x01
_FALLOC_FL_PUNCH_HOLE = 0x02
_SYNC_FILE_RANGE_ALL = 0x07
"""Wait for what is being written, write, and wait for that."""

_READ_AHEAD_BYTES = 128 << 10
"""Of more the kernel reads the beginning: as much as the readahead of the disk, or its largest request
(force_page_cache_ra in mm/readahead.c)."""

_libc = ctypes.CDLL(None, use_errno=True)
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
