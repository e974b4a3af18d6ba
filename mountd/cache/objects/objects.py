"""Reading objects, in threads: bytes, with how the object was found before and after, and compared with a checksum.

Every read says with which stamp (`cache.objects.stamps`) the object was found, so that the event loop can tell whether
another program has changed it: who writes moves the time of change first and the bytes then, so bytes that were read
before the stamp was looked at are the stamp's, or older. Decides nothing, marks nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import xxhash

from hfs.mountd.cache.index import Stamp
from hfs.mountd.cache.objects.codec import expand
from hfs.mountd.cache.objects.disk import Disk
from hfs.mountd.cache.objects.io import Damaged
from hfs.mountd.cache.objects.stamps import stamp_of
from hfs.policies.geometry import Extent

Value = TypeVar("Value")

OUR_LIMITS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""These say nothing about the file."""

_STEP_BYTES = 1 << 20
"""Of a chunk that is read to be verified: what is hashed while it is in the processor's cache. 8 MiB at once took half
as long again, and memory for all of it."""


_LOOKED_AT = 8
"""Of objects that are to be read ahead one of so many is looked at first."""


@lru_cache(maxsize=8)
def checksum_of_zeros(size: int) -> int:
    """xxh3_64 of a chunk of zeros."""
    return xxhash.xxh3_64_intdigest(bytes(size))


def is_right_hole(disk: Disk, fd: int, extent: Extent, checksum: int) -> bool:
    """Whether nothing of a chunk is on the disk that is to have this checksum, and it is that of zeros."""
    return disk.io.is_hole(fd, extent.start, extent.end) and checksum == checksum_of_zeros(extent.size)


class Changed(Exception):
    """The object has another stamp: `found`."""

    def __init__(self, found: Stamp | None) -> None:
        super().__init__("a staged file has been changed")
        self.found = found


@dataclass(frozen=True, slots=True)
class WantedRead:
    """What is to be read of an object."""

    number: int
    size: int
    """Of the whole object."""
    extent: Extent
    checksum: int | None = None
    """Of the chunk that `extent` is; None: its bytes are not looked at."""
    stored_bytes: int = 0
    """As how many bytes that chunk is stored, if it shrinks; 0: as it is."""
    part: Extent | None = None
    """Only these bytes of it are given back; None: all."""


@dataclass(slots=True)
class ObjectRead:
    """What was read."""

    data: bytearray | None = None
    error: OSError | None = None
    before: Stamp | None = None
    after: Stamp | None = None
    """How the object was found; None: it has not its length."""
    opened_fd: int | None = None
    """The descriptor that had to be opened."""


def read_object(disk: Disk, fd: int | None, wanted: WantedRead) -> ObjectRead:
    """Read from an object, by its open descriptor if there is one. Never raises OSError."""
    answer = ObjectRead()
    try:
        if fd is None:
            answer.opened_fd = fd = disk.open_read(wanted.number)
        answer.before = stamp_of(fd, wanted.size)
        answer.data = _part_of_chunk(disk, fd, wanted) if wanted.part is not None else _all(disk, fd, wanted)
        answer.after = stamp_of(fd, wanted.size)
    except OSError as error:
        answer.data, answer.error = None, error
    return answer


def _all(disk: Disk, fd: int, wanted: WantedRead) -> bytearray:
    size = wanted.extent.size
    data = disk.io.read(fd, wanted.extent.start, wanted.stored_bytes or size)
    if len(data) != (wanted.stored_bytes or size):
        raise Damaged(errno.EIO, f"{len(data)} of {wanted.stored_bytes or size} bytes")
    if wanted.stored_bytes:
        data = expand(data, size)
    if wanted.checksum is not None and xxhash.xxh3_64_intdigest(data) != wanted.checksum:
        raise Damaged(errno.EIO, "wrong checksum")
    return data


def _part_of_chunk(disk: Disk, fd: int, wanted: WantedRead) -> bytearray:
    """The part, once all of the chunk, which is stored as it is, has its checksum. It is the bytes that were hashed."""
    extent, part = wanted.extent, wanted.part
    assert part is not None
    assert wanted.checksum is not None
    data = bytearray(part.size)
    if is_right_hole(disk, fd, extent, wanted.checksum):
        return data
    found = xxhash.xxh3_64()
    step = memoryview(bytearray(min(_STEP_BYTES, extent.size)))
    for start in range(extent.start, extent.end, _STEP_BYTES):
        end = min(start + _STEP_BYTES, extent.end)
        piece = step[: end - start]
        if not disk.io.read_into(fd, start, piece):
            raise Damaged(errno.EIO, f"it ends before byte {end}")
        found.update(piece)
        first, last = max(start, part.start), min(end, part.end)
        if first < last:
            data[first - part.start : last - part.start] = piece[first - start : last - start]
    if found.intdigest() != wanted.checksum:
        raise Damaged(errno.EIO, "wrong checksum")
    return data


def lend_object(disk: Disk, number: int, size: int, stamp: Stamp | None, use: Callable[[int], Value]) -> Value:
    """`use(descriptor)` of an object that still has its stamp, else Changed. Raises OSError, and what `use` raises."""
    return lend_opened(disk, disk.open_read(number), size, stamp, use)


def lend_opened(disk: Disk, fd: int, size: int, stamp: Stamp | None, use: Callable[[int], Value]) -> Value:
    """As `lend_object`, by a descriptor, which is closed afterwards."""
    try:
        found = stamp_of(fd, size)
        if found is None or found != stamp:
            raise Changed(found)
        return use(fd)
    finally:
        disk.io.close(fd)


def read_ahead(disk: Disk, extents: Sequence[tuple[int, Extent]]) -> None:
    """Begin to read extents of objects, (number, extent), into the page cache. What cannot be read is met by its
    reader."""
    for number, extent in extents:
        with contextlib.suppress(OSError):
            fd = disk.open_read(number)
            try:
                disk.io.will_need(fd, extent.start, extent.end - extent.start)
            finally:
                disk.io.close(fd)


def read_objects_ahead(disk: Disk, numbers: Sequence[int], at_most: int) -> int:
    """As `read_ahead`, of all bytes of these; of how many. Nothing where those that are looked at are in memory: what
    a job reads again and again costs it an eighth."""
    if all(_is_in_memory(disk, number) for number in numbers[::_LOOKED_AT]):
        return 0
    begun = 0
    for number in numbers:
        with contextlib.suppress(OSError):
            fd = disk.open_read(number)
            try:
                size = min(os.fstat(fd).st_size, at_most - begun)
                disk.io.will_need(fd, 0, size)
                begun += size
            finally:
                disk.io.close(fd)
    return begun


def _is_in_memory(disk: Disk, number: int) -> bool:
    """Whether the page cache has all of an object, as far as the kernel tells; True for one that has gone."""
    try:
        fd = disk.open_read(number)
        try:
            return disk.io.is_resident(fd)
        finally:
            disk.io.close(fd)
    except OSError:
        return True
