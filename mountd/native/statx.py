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

from hfs.mountd.core.attributes import Attributes
from hfs.mountd.core.version import stored_ns
from hfs.mountd.native.beneath import BENEATH, CACHED, NO_SYMLINKS, How, open_now
from hfs.mountd.native.libc import checked, libc

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
_NAME = How(os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, CACHED | NO_SYMLINKS | BENEATH)

_libc_quick = ctypes.PyDLL(None)
"""For a call that cannot wait: see mountd/native/openat2.py."""
_room = ctypes.create_string_buffer(_STATX_BYTES)


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
