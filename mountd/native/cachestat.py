"""Which pages of files are in the page cache: cachestat(2), Linux 6.5. Waits for nothing, and reads nothing.

Also a program, for `files.residency`: standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Iterable

_SYS_CACHESTAT = 451

_libc = ctypes.CDLL(None, use_errno=True)


def _resident(paths: Iterable[bytes]) -> tuple[int, int] | None:
    cached = total = 0
    for path in paths:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue  # gone meanwhile
        try:
            found = _cached_bytes(fd)
            if found is None:
                return None
            size = os.fstat(fd).st_size
            cached += min(found, size)
            total += size
        finally:
            os.close(fd)
    return cached, total


def resident_of(fd: int) -> tuple[int, int] | None:
    """Of one file on a local disk: (bytes in the page cache, bytes that it has there). None where the kernel cannot
    tell. Raises OSError."""
    found = _cached_bytes(fd)
    if found is None:
        return None
    stat = os.fstat(fd)
    return min(found, stat.st_size), min(stat.st_size, max(found, stat.st_blocks * 512))


def _cached_bytes(fd: int) -> int | None:
    whole = ctypes.create_string_buffer(struct.pack("QQ", 0, 0))
    figures = ctypes.create_string_buffer(5 * 8)
    if _libc.syscall(_SYS_CACHESTAT, fd, whole, figures, 0) != 0:
        number = ctypes.get_errno()
        if number in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
            return None
        raise OSError(number, os.strerror(number))
    pages: int = struct.unpack_from("Q", figures)[0]
    return pages * os.sysconf("SC_PAGESIZE")


if __name__ == "__main__":  # see `files.residency`
    found = _resident(filter(None, sys.stdin.buffer.read().split(b"\0")))
    print(*(found or ()))
