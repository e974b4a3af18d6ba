"""Opening directories strictly below another one: openat2(2) with RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS.

O_NOFOLLOW guards only the last component of a path; a directory that somebody swaps for a symlink while we walk would
lead out of the source. Where the system call is missing or forbidden (old kernels, some container sandboxes), or the
path is too long for it, it is walked one component at a time with O_NOFOLLOW, which promises the same and costs a
system call a component. Blocks.
"""

from __future__ import annotations

import ctypes
import errno
import os

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


_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WALKED = {errno.ENOSYS, errno.EPERM, errno.ENAMETOOLONG}
"""EPERM: seccomp filters that predate openat2 answer so. ENAMETOOLONG: a path has 4095 bytes at most, a tree more."""

_HOW = How(_DIRECTORY, BENEATH | NO_SYMLINKS | NO_MAGICLINKS)


def open_directory(root_fd: int, path: bytes) -> int:
    """An O_PATH descriptor of the directory `path` (relative, no leading slash; empty for the root itself).

    Raises OSError: ELOOP or ENOTDIR where a component is a symlink or no directory, EXDEV where it leads out.
    """
    relative = path or b"."
    while True:
        fd = open_waiting(root_fd, relative, _HOW)
        if fd >= 0:
            return fd
        number = -fd
        if number in _WALKED:
            return _walk(root_fd, path)
        if number not in (errno.EINTR, errno.EAGAIN):  # EAGAIN: a rename raced with the walk (openat2(2))
            raise OSError(number, os.strerror(number), path)


def _walk(root_fd: int, path: bytes) -> int:
    fd = os.open(b".", _DIRECTORY, dir_fd=root_fd)
    try:
        for component in filter(None, path.split(b"/")):
            if component == b"..":
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
            below = os.open(component, _DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = below
    except BaseException:
        os.close(fd)
        raise
    return fd
