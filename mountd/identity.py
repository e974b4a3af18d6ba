"""Which file system the source is: a stable id, the same after a remount and on every node.

st_dev is neither. The file system's own id (f_fsid) is derived from its UUID for the ones listed here and taken as it
is. For all others (network and FUSE file systems, where f_fsid is zero or made from st_dev) it is a hash of what the
administrator mounted: type and device, `nfs4 server:/export`. Versions hold the inode and both times besides, so two
file systems that share an id by mistake would still have to agree on four numbers for a wrong byte. Called once, by
`daemon`.
"""

from __future__ import annotations

import ctypes
import os
import struct

import xxhash

__all__ = ["is_local", "source_id"]

_UUID_BASED = {
    0xEF53,  # ext2, ext3, ext4: the UUID, folded
    0x9123683E,  # btrfs: UUID and subvolume
}
"""Not XFS: its f_fsid is the device number (xfs_fs_statfs)."""

_LOCAL = {
    0xEF53,  # ext2, ext3, ext4
    0x9123683E,  # btrfs
    0x58465342,  # XFS
    0xF2F52010,  # F2FS
    0x01021994,  # tmpfs
    0x73717368,  # squashfs
    0xE0F5E1E2,  # EROFS
}
"""On disks of this machine: what the kernel remembers of a file is what the file is."""

_libc = ctypes.CDLL(None, use_errno=True)


def source_id(root_fd: int, path: str) -> str:
    """16 hexadecimal digits for the file system that holds the open directory `root_fd`, mounted below `path`."""
    kind, fsid = _statfs(root_fd)
    if kind in _UUID_BASED and fsid:
        return f"{fsid:016x}"
    status = os.fstat(root_fd)
    return xxhash.xxh3_64_hexdigest(_mounted(f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}", path))


def is_local(fd: int) -> bool:
    """Whether the open file or directory lies on a file system of this machine alone."""
    return _statfs(fd)[0] in _LOCAL


def _statfs(fd: int) -> tuple[int, int]:
    """f_type and f_fsid of statfs(2); the fields stand at the same places on every 64-bit Linux."""
    room = ctypes.create_string_buffer(256)
    if _libc.fstatfs(fd, room) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    kind: int = struct.unpack_from("q", room, 0)[0]
    fsid: int = struct.unpack_from("Q", room, 56)[0]
    return kind, fsid


def _mounted(device: str, path: str) -> bytes:
    """`type source` of the mount with that device, from mountinfo; with the path where the source names nothing."""
    found = b"unknown"
    with open("/proc/self/mountinfo", "rb") as lines:
        for line in lines:
            fields, _, tail = line.partition(b" - ")
            if fields.split()[2] == device.encode():
                found = b" ".join(tail.split()[:2])
    if b"/" not in found and b":" not in found:
        found += b" " + os.fsencode(path)
    return found
