"""Which file system a file lies on: an identity, the same after a remount and on every node, where one can be proven.

Versions hold the inode number, the size and both times besides. Image files that one script has packed agree in all of
these as a rule, so the identity has to tell them apart, and must not be taken over by what is mounted in their place
later. What proves it:

    by its UUID       ext2-4, btrfs (f_fsid, which is made of it); XFS, EROFS, F2FS and others that tell it (Linux 6.9)
    by its name       network and cluster file systems: what the administrator mounted, `nfs4 server:/export`
    by its contents   read-only formats without a UUID (squashfs, EROFS, ISO 9660): see `identity_device`
    on a loop device  the image file belongs to it: a copy of an image has the same UUID

Nothing proves it for memory (tmpfs), for layers (overlay), for FUSE file systems that do not say what they show, and
for a device whose contents may not be read. Their identity is random: good for as long as the mount, and inherited by
nobody. st_dev proves nothing: it is given to another mount as soon as it is free.

`look_at` tells what kind of file system something lies on, for namespace/permissions.py. Everything here blocks.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from typing import NamedTuple

import xxhash

from hfs.mountd.core.attributes import is_lasting, passing_id
from hfs.mountd.native.statx import checked, libc, mount_number
from hfs.mountd.source import identity_device

_SCHEME = b"2"
"""Of what an earlier release called all that lies below SOURCE by one name nothing is taken over."""

_UUID_IN_FSID = {
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

_IMAGES = {b"squashfs", b"erofs", b"iso9660", b"cramfs", b"romfs"}
"""Read-only by their format: what is read once of the device stays so."""

_MEMORY = {b"tmpfs", b"ramfs", b"devtmpfs", b"hugetlbfs", b"rootfs", b"overlay", b"aufs", b"autofs", b"proc", b"sysfs"}

_SHARED_UNNAMED = {b"beegfs", b"gpfs", b"ceph", b"fuse.ceph-fuse", b"fuse.ceph", b"pvfs2", b"9p", b"virtiofs"}
"""A node has one of them, or a few under names that stay: the place where it is mounted stands for its name."""

_FS_IOC_GETFSUUID = 0x80111500
"""_IOR(0x15, 0, struct fsuuid2 {u8 len; u8 uuid[16]}), Linux 6.9."""


class FileSystem(NamedTuple):
    """One mounted file system."""

    id: str
    """As in a version."""
    kind: str
    """As mount(8) calls it."""
    point: bytes
    """Where it is mounted."""
    on_device: bool = False
    """On a block device: two of these that are mounted at the same time are never one."""
    is_local: bool = False
    """Of this machine alone: its kernel stamps the files."""
    stands: bool = False
    """Nothing on it changes while it is mounted."""

    @property
    def lasting(self) -> bool:
        """The identity is good beyond this daemon's life."""
        return is_lasting(self.id)


class FileSystemSeen(NamedTuple):
    """What kind of file system something lies on."""

    kind: str
    """As mount(8) calls it."""
    options: tuple[str, ...]
    """Those of the file system, not of one mount of it."""
    xattrs: tuple[str, ...]
    """Names of the extended attributes of what was asked about."""
    device: int
    """st_dev"""


class _Mount(NamedTuple):
    """A line of /proc/self/mountinfo."""

    number: int
    device: str
    """major:minor"""
    point: bytes
    kind: bytes
    source: bytes
    options: bytes

    @property
    def on_device(self) -> bool:
        """On a block device, and not only in what the kernel calls one for lack of it."""
        return not self.device.startswith("0:")


def identify(fd: int) -> FileSystem:
    """The file system of an open file or directory, which may be open as a path only. Blocks. Raises OSError."""
    number, fsid = _statfs(fd)
    mount = _mount_of(fd)
    if mount is None:
        return FileSystem(passing_id(), "unknown", b"")  # not in our mount namespace, or just unmounted
    proof = _proof(fd, mount, number, fsid)
    name = passing_id() if proof is None else xxhash.xxh3_64_hexdigest(b"\0".join((_SCHEME, *proof)))
    return FileSystem(
        name,
        mount.kind.decode(errors="replace"),
        mount.point,
        mount.on_device,
        is_local=number in _LOCAL,
        stands=mount.kind in _IMAGES,
    )


def look_at(directory_fd: int, name: bytes) -> FileSystemSeen:
    """The file system of `name` in an open directory (empty: the directory itself). Blocks. Raises OSError."""
    fd = os.open(name or b".", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory_fd)
    try:
        device = os.fstat(fd).st_dev
        try:
            xattrs = tuple(os.listxattr(f"/proc/self/fd/{fd}"))
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            xattrs = ()
        mount = _mount_of(fd)
    finally:
        os.close(fd)
    if mount is None:
        return FileSystemSeen("a file system of another namespace", (), xattrs, device)
    kind, options = os.fsdecode(mount.kind), os.fsdecode(mount.options)
    return FileSystemSeen(kind, tuple(options.split(",")), xattrs, device)


def is_local(fd: int) -> bool:
    """Whether the open file or directory lies on a file system of this machine alone."""
    return _statfs(fd)[0] in _LOCAL


def is_private(fd: int) -> bool:
    """Whether the open directory lies in a FUSE mount that admits its owner alone, or one is mounted below it. Never
    asks the file system."""
    here, path = _mount_of(fd), os.readlink(f"/proc/self/fd/{fd}").encode(errors="surrogateescape")
    below = path.rstrip(b"/") + b"/"
    found = [mount for mount in _mounts() if mount == here or mount.point.startswith(below)]
    return any(_is_fuse(mount.kind) and b"allow_other" not in mount.options.split(b",") for mount in found)


def mount_points() -> list[bytes]:
    """Where anything is mounted, as this process sees it."""
    return [mount.point for mount in _mounts()]


def mounted_devices() -> set[int]:
    """st_dev of everything that is mounted, as this process sees it."""
    return {os.makedev(*map(int, mount.device.split(":"))) for mount in _mounts()}


def _proof(fd: int, mount: _Mount, number: int, fsid: int) -> list[bytes] | None:
    """What tells this file system from every other, before and after; None if nothing does."""
    if mount.kind in _MEMORY:
        return None
    if number in _UUID_IN_FSID and fsid:
        uuid = b"%016x" % fsid
    else:
        uuid = _uuid(fd, mount)
    if mount.on_device:
        return _of_device(os.fstat(fd).st_dev, mount.kind, uuid)
    if uuid:
        return [b"uuid", uuid]
    if mount.kind in _IMAGES:
        return None  # of a file without a loop device (EROFS, Linux 6.12): another may stand under its name by now
    if mount.kind in _SHARED_UNNAMED and b"/" not in mount.source and b":" not in mount.source:
        return [b"name", mount.kind, mount.source, mount.point]
    if not (b"/" in mount.source or b":" in mount.source or b"@" in mount.source):
        return None
    if mount.kind.startswith(b"fuse") and mount.source.startswith(b"/") and not os.path.isdir(mount.source):
        return None  # what shows the inside of an image or archive: another may stand under its name by now
    return [b"name", mount.kind, mount.source]


def _of_device(device: int, kind: bytes, uuid: bytes) -> list[bytes] | None:
    """What proves the identity of a file system on a block device; None: nothing does."""
    is_image = kind in _IMAGES
    found = identity_device.look(device)
    proof = [b"uuid", uuid] if uuid else []
    if is_image:
        sample = identity_device.sample(found)
        if sample is not None:
            proof += [b"contents", sample]
    elif not uuid and (by_udev := identity_device.uuid_by_udev(device)):
        proof = [b"uuid", by_udev]
    if not proof:
        return None
    file = identity_device.image_file(found)
    if file is None:
        return proof
    try:
        beneath = identify(file.fd)
        status = os.fstat(file.fd)
    finally:
        os.close(file.fd)
    if beneath.lasting:
        proof += [b"file", beneath.id.encode(), b"%d %d" % (status.st_ino, file.start)]
        if is_image or file.read_only:  # else the mount itself changes them
            proof.append(b"%d %d %d" % (status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return proof


def _uuid(fd: int, mount: _Mount) -> bytes:
    """What the file system itself tells as its UUID; empty if it does not."""
    if not mount.on_device and mount.kind not in _IMAGES:
        return b""  # over a network the question would be sent to a server
    answer = bytearray(17)
    try:
        opened = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.ioctl(opened, _FS_IOC_GETFSUUID, answer)
        finally:
            os.close(opened)
    except OSError:
        return b""
    uuid = bytes(answer[1 : 1 + answer[0]])
    return uuid if any(uuid) else b""


def _statfs(fd: int) -> tuple[int, int]:
    """f_type and f_fsid of statfs(2); the fields stand at the same places on every 64-bit Linux."""
    room = ctypes.create_string_buffer(256)
    checked(libc.fstatfs(fd, room), "fstatfs")
    kind: int = struct.unpack_from("q", room, 0)[0]
    fsid: int = struct.unpack_from("Q", room, 56)[0]
    return kind, fsid


def _mount_of(fd: int) -> _Mount | None:
    try:
        with open(f"/proc/self/fdinfo/{fd}", "rb") as lines:
            (number,) = (int(line.split()[1]) for line in lines if line.startswith(b"mnt_id:"))
    except PermissionError:  # before Linux 5.14 it is shut to threads that are another user
        number = mount_number(fd)
    return next((mount for mount in _mounts() if mount.number == number), None)


def _mounts() -> list[_Mount]:
    found = []
    with open("/proc/self/mountinfo", "rb") as lines:
        for line in lines:
            fields, _, tail = line.partition(b" - ")
            number, _, device, _, point = fields.split(b" ")[:5]
            kind, source, options = tail.rstrip(b"\n").split(b" ", 2)
            found.append(_Mount(int(number), device.decode(), _plain(point), kind, _plain(source), options))
    return found


def _is_fuse(kind: bytes) -> bool:
    return kind in (b"fuse", b"fuseblk") or kind.startswith(b"fuse.")


def _plain(text: bytes) -> bytes:
    """Without the escapes of mountinfo: a backslash and three octal digits for a space, a tab, a newline and itself."""
    for escape in (b"\\040", b"\\011", b"\\012", b"\\134"):
        text = text.replace(escape, bytes([int(escape[1:], 8)]))
    return text
