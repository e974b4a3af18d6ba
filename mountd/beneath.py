"""Opening directories strictly below another one: openat2(2) with RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS.

O_NOFOLLOW guards only the last component of a path; a directory that somebody swaps for a symlink while we walk would
lead out of the source. Called by `mountd/source.py` only. Blocking: runs in its threads. Where the system call is
missing or forbidden (old kernels, some container sandboxes) the path is walked one component at a time with O_NOFOLLOW,
which promises the same and costs a system call a component.
"""

from __future__ import annotations

import ctypes
import errno
import os

__all__ = ["open_directory"]

_SYS_OPENAT2 = 437  # the same on every architecture (since Linux 5.6)
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MISSING = {errno.ENOSYS, errno.EPERM}
"""EPERM: seccomp filters that predate openat2 answer so."""

_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_HOW = _OpenHow(_DIRECTORY, 0, _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS)


def open_directory(root_fd: int, path: bytes) -> int:
    """An O_PATH descriptor of the directory `path` (relative, no leading slash; empty for the root itself).

    Raises OSError: ELOOP or ENOTDIR where a component is a symlink or no directory, EXDEV where it leads out.
    """
    relative = path or b"."
    while True:
        fd = int(_libc.syscall(_SYS_OPENAT2, root_fd, relative, ctypes.byref(_HOW), ctypes.sizeof(_HOW)))
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        if number in _MISSING:
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
