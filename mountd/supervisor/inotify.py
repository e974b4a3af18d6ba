"""What the kernel says of directories and file systems (inotify(7)): a name was moved in, one has gone with its last
user. A watch keeps nothing alive."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from typing import NamedTuple

MOVED_TO, IGNORED = 0x80, 0x8000  # <sys/inotify.h>
_NEVER = 0x400
"""IN_DELETE_SELF of a root: what ends a watch is told whatever was asked for."""
_EVENT = struct.Struct("iIII")  # struct inotify_event
_BUFFER_BYTES = 65536

_libc = ctypes.CDLL(None, use_errno=True)


class Heard(NamedTuple):
    """One event."""

    watch: int
    mask: int


class Inotify:
    """`descriptor` is readable when there is something to be heard."""

    def __init__(self) -> None:
        """Raises OSError."""
        self.descriptor = _checked(_libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))

    def watch_end(self, path: str) -> int:
        """A number, which `heard` has with IGNORED once the file system with this root has gone. -1: we may not read
        that, and nobody will tell."""
        try:
            return _checked(_libc.inotify_add_watch(self.descriptor, os.fsencode(path), ctypes.c_uint32(_NEVER)))
        except OSError:
            return -1

    def watch_names(self, directory: str) -> int:
        """A number, which `heard` has with MOVED_TO for each name that is moved in. Raises OSError."""
        return _checked(_libc.inotify_add_watch(self.descriptor, os.fsencode(directory), ctypes.c_uint32(MOVED_TO)))

    def heard(self) -> list[Heard]:
        """What there is; never waits."""
        try:
            data = os.read(self.descriptor, _BUFFER_BYTES)
        except BlockingIOError:
            return []
        found, at = [], 0
        while at < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size + length
            found.append(Heard(watch, mask))
        return found

    def close(self) -> None:
        """All watches end."""
        with contextlib.suppress(OSError):  # it was closed before
            os.close(self.descriptor)
        self.descriptor = -1


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
