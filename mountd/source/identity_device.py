"""What lies on a block device: which image file is behind a loop device, and what a read-only image contains.

Both want the right to read the device (root, or its group). Without it nothing is proven: the path that sysfs shows may
lead to another file where we are, or to one that has taken its place. Blocks.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from typing import NamedTuple

import xxhash

_SAMPLES = 16
_SAMPLE_BYTES = 64 << 10
"""1 MiB in all, from the first byte to the last. The superblock alone does not do: images of as many files of the same
sizes have the same one if they were packed with fixed times. 16 reads of an image on a network file system."""

_SECTOR_BYTES = 512
_LOOP_GET_STATUS64 = 0x4C05
_LOOP_INFO = struct.Struct("5Q")  # device and inode of the image file, rdevice, offset, size limit
_LOOP_INFO_BYTES = 232


class Device(NamedTuple):
    """One block device, or partition of one."""

    number: int
    """As st_dev."""
    folder: str
    """Of it, in /sys."""


class ImageFile(NamedTuple):
    """The file behind a loop device. `fd`: to be closed by the caller."""

    fd: int
    start: int
    """Where in it the file system begins, in bytes."""
    read_only: bool


def look(number: int) -> Device:
    """The block device with this number."""
    return Device(number, os.path.realpath(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}"))


def sample(device: Device) -> bytes | None:
    """A digest of pieces spread over all of the device, in hexadecimal digits; None if it may not be read."""
    size = (_number(device, "size") or 0) * _SECTOR_BYTES
    digest = xxhash.xxh3_128()
    digest.update(b"%d" % size)
    try:
        fd = _open(device)
        try:
            last = max(0, size - _SAMPLE_BYTES)
            for number in range(_SAMPLES):
                digest.update(os.pread(fd, _SAMPLE_BYTES, last * number // (_SAMPLES - 1)))
        finally:
            os.close(fd)
    except OSError:
        return None
    return digest.hexdigest().encode()


def image_file(device: Device) -> ImageFile | None:
    """The file behind a loop device; None if it is none, or if that cannot be proven."""
    start = _number(device, "start")  # of a partition; its image file is that of the whole
    try:
        whole = device if start is None else _look_up(os.path.dirname(device.folder))
        with open(f"{whole.folder}/loop/backing_file", "rb") as name:
            path = name.read().removesuffix(b"\n")
        answer = bytearray(_LOOP_INFO_BYTES)
        fd = _open(whole)
        try:
            fcntl.ioctl(fd, _LOOP_GET_STATUS64, answer)
        finally:
            os.close(fd)
        file = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    of_device, inode, _, offset, _ = _LOOP_INFO.unpack_from(answer)
    found = os.fstat(file)
    if (found.st_dev, found.st_ino) != (of_device, inode):
        os.close(file)
        return None  # the path that is shown leads to another file where we are
    return ImageFile(file, (start or 0) * _SECTOR_BYTES + offset, bool(_number(whole, "ro")))


def uuid_by_udev(number: int) -> bytes:
    """What udev found on the device with this number, where it looks; empty if it does not tell."""
    folder = "/dev/disk/by-uuid"
    try:
        for name in os.listdir(folder):
            if os.stat(f"{folder}/{name}").st_rdev == number:
                return os.fsencode(name)
    except OSError:
        pass  # no udev here, or a device that has just gone
    return b""


def _look_up(folder: str) -> Device:
    """The device with this folder in /sys."""
    with open(f"{folder}/dev", "rb") as numbers:
        major, minor = numbers.read().split(b":")
    return Device(os.makedev(int(major), int(minor)), folder)


def _open(device: Device) -> int:
    """Its node in /dev; only if that is what it says."""
    fd = os.open(f"/dev/{os.path.basename(device.folder).replace('!', '/')}", os.O_RDONLY | os.O_CLOEXEC)
    found = os.fstat(fd)
    if not stat.S_ISBLK(found.st_mode) or found.st_rdev != device.number:
        os.close(fd)
        raise OSError(f"/dev has no node of {device.folder}")
    return fd


def _number(device: Device, attribute: str) -> int | None:
    try:
        with open(f"{device.folder}/{attribute}", "rb") as value:
            return int(value.read())
    except (OSError, ValueError):
        return None
