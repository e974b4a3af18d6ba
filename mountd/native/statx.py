"""statx(2) of an open file for just what a version is made of, and for where it lies.

fstat(2) asks for the access time too, and every read makes the access time that a FUSE or network client remembers
unknown: each check of the version then cost a round trip to the source (1 ms on a simulated Lustre, 100 checks of 100
reads). Asked without it, the client answers from what it knows.

Also a stat of a name that never waits, for a source on a local disk: a look into the kernel's own caches, 8 us on the
event loop where the way to a thread and back costs ten times as much.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import NamedTuple

from hfs.mountd.core.attributes import Attributes, stored_ns

_AT_EMPTY_PATH = 0x1000
_WANTED = 0x001 | 0x040 | 0x080 | 0x100 | 0x200  # STATX_TYPE, _MTIME, _CTIME, _INO, _SIZE
_STATX_BYTES = 256
_FIELDS = struct.Struct("=28xH2xQQ")  # stx_mode, stx_ino, stx_size
_TIMES_AT = 96  # struct statx_timestamp {s64 seconds, u32 nanoseconds, s32}: stx_ctime, then stx_mtime
_TIMES = struct.Struct("=qI4xqI4x")

_MNT_ID = 0x1000  # Linux 5.8
_MNT_ID_UNIQUE = 0x4000  # Linux 6.8
_PLACE = struct.Struct("=I132xIIQ")  # stx_mask, stx_dev_major and _minor, stx_mnt_id

_BASIC = 0x7FF  # STATX_BASIC_STATS
_ALL = struct.Struct("=4xI8xIIIH2xQQQ8xqI4x16xqI4xqI4xIIII")
"""blksize; nlink, uid, gid, mode, ino, size, blocks; atime, (btime), ctime, mtime; rdev and dev, major and minor."""

_AT_STATX_DONT_SYNC = 0x4000

_libc_quick = ctypes.PyDLL(None)
"""For a call that cannot wait: see mountd/native/openat2.py."""
_room = ctypes.create_string_buffer(_STATX_BYTES)


libc = ctypes.CDLL(None, use_errno=True)


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
    """Opening directories strictly below another one: openat2(2) with RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS.

    O_NOFOLLOW guards only the last component of a path; a directory that somebody swaps for a symlink while we walk
    would lead out of the source. Where the system call is missing or forbidden (old kernels, some container sandboxes),
    or the path is too long for it, it is walked one component at a time with O_NOFOLLOW, which promises the same and
    costs a system call a component. Blocks.

    struct open_how. Make one for each kind of open, once.
    """

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


def checked(result: int, what: str) -> int:
    """libc by ctypes: system calls that Python has no function for. A call gives the interpreter's lock away.

    The result of a call, which is `what` for people. Raises OSError, with the errno of this thread, if it is negative.
    """
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def identity(fd: int) -> tuple[int, int, int, int, int]:
    """Mode, inode, size, mtime_ns and ctime_ns of the open file `fd`, times as in a version. Raises OSError."""
    room = _statx(fd, 0, _WANTED)
    mode, inode, size = _FIELDS.unpack_from(room, 0)
    ctime_s, ctime_part, mtime_s, mtime_part = _TIMES.unpack_from(room, _TIMES_AT)
    return mode, inode, size, stored_ns(mtime_s * 10**9 + mtime_part), stored_ns(ctime_s * 10**9 + ctime_part)


class InodeLocation(NamedTuple):
    """Where an inode lies. st_dev alone is given to another mount as soon as this one is gone."""

    device: int
    """st_dev"""
    mount: int
    """The kernel's number of the mount, which no other ever gets; 0 where it has none (Linux < 6.8)."""


def place(fd: int) -> InodeLocation:
    """Where the open file or directory `fd` lies: asked of the kernel alone, never of a server. Raises OSError."""
    room = _statx(fd, _AT_STATX_DONT_SYNC, _MNT_ID_UNIQUE)
    mask, major, minor, mount = _PLACE.unpack_from(room)
    return InodeLocation(os.makedev(major, minor), mount if mask & _MNT_ID_UNIQUE else 0)


def mount_number(fd: int) -> int:
    """The number of its mount as mountinfo has it, which is given to another one once this is gone (Linux 5.8).

    Raises OSError.
    """
    room = _statx(fd, _AT_STATX_DONT_SYNC, _MNT_ID)
    mask, _, _, mount = _PLACE.unpack_from(room)
    if not mask & _MNT_ID:
        raise OSError(errno.ENOSYS, "statx(2) does not tell the mount")
    return int(mount)


def is_still(fd: int, attributes: Attributes) -> bool:
    """Whether the open `fd`, which may be open as a path only, is the inode with these attributes, unchanged since; a
    directory may have changed. Raises OSError."""
    _, inode, _, _, ctime_ns = identity(fd)
    if inode != attributes.inode or place(fd).device != attributes.device:
        return False
    return attributes.is_directory or ctime_ns == stored_ns(attributes.ctime_ns)


_NAME = How(os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, CACHED | NO_SYMLINKS | BENEATH)


def stat_cached(directory_fd: int, name: bytes) -> Attributes | None:
    """What lstat(2) would say of `name`, if the kernel knows it without asking anybody; None if not, or on any fault.

    On a network file system that may be old: for local ones only. Event loop only.
    """
    fd = open_now(directory_fd, name, _NAME)
    if fd < 0:
        return None
    failed = _libc_quick.statx(fd, b"", _AT_EMPTY_PATH | _AT_STATX_DONT_SYNC, _BASIC, _room)
    os.close(fd)
    if failed:
        return None
    block_bytes, nlink, uid, gid, mode, inode, size, blocks, *times, r_major, r_minor, major, minor = _ALL.unpack_from(
        _room
    )
    atime_s, atime_part, ctime_s, ctime_part, mtime_s, mtime_part = times
    return Attributes(
        mode,
        inode,
        nlink,
        uid,
        gid,
        os.makedev(r_major, r_minor),
        size,
        blocks,
        block_bytes,
        atime_s * 10**9 + atime_part,
        mtime_s * 10**9 + mtime_part,
        ctime_s * 10**9 + ctime_part,
        os.makedev(major, minor),
    )


def _statx(fd: int, flags: int, wanted: int) -> ctypes.Array[ctypes.c_char]:
    """A struct statx of the open file `fd`. Raises OSError."""
    room = ctypes.create_string_buffer(_STATX_BYTES)
    checked(libc.statx(fd, b"", _AT_EMPTY_PATH | flags, wanted, room), "statx")
    return room
