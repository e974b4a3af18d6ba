"""openat2(2): opening a name below a directory under rules that open(2) does not know.

Knows no paths of its own.
"""

from __future__ import annotations

import ctypes

NO_MAGICLINKS = 0x02
NO_SYMLINKS = 0x04
BENEATH = 0x08
CACHED = 0x20
"""RESOLVE_CACHED (Linux 5.12): EAGAIN unless the kernel has every name of the path in memory."""

_SYS_OPENAT2 = 437  # the same on every architecture (since Linux 5.6)

_waiting = ctypes.CDLL(None, use_errno=True)
_now = ctypes.PyDLL(None, use_errno=True)
"""The interpreter's lock is kept: to give it to a thread and have it back costs more than a call that cannot wait."""


class How(ctypes.Structure):
    """struct open_how. Make one for each kind of open, once."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))

    def __init__(self, flags: int, resolve: int) -> None:
        super().__init__(flags, 0, resolve)
        self.at = ctypes.byref(self)


_HOW_BYTES = ctypes.sizeof(How)


def open_waiting(directory_fd: int, path: bytes, how: How) -> int:
    """A descriptor, or the errno below zero. Blocks: for threads."""
    fd = int(_waiting.syscall(_SYS_OPENAT2, directory_fd, path, how.at, _HOW_BYTES))
    return fd if fd >= 0 else -ctypes.get_errno()


def open_now(directory_fd: int, path: bytes, how: How) -> int:
    """The same, on the event loop: `how` has CACHED, so it never waits."""
    fd = int(_now.syscall(_SYS_OPENAT2, directory_fd, path, how.at, _HOW_BYTES))
    return fd if fd >= 0 else -ctypes.get_errno()
