"""Reading objects, in threads: bytes, with how the object was found before and after, and compared with a checksum.

Every read says with which stamp (`cache.objects.changes`) the object was found, so that the event loop can tell whether
another program has changed it: who writes moves the time of change first and the bytes then, so bytes that were read
before the stamp was looked at are the stamp's, or older. Decides nothing, marks nothing.

Whether the disk still has the right bytes is looked at around the page cache: with O_DIRECT, which neither believes
what memory has of the file nor pushes out what others want there. Where the file system refuses that, through the page
cache, and what was not there before is let go again; bytes that memory has are then not read from the disk, and will be
in another round.

Who answers reads without us (`native/plane/staged.c`) compares no checksum: it is given whole objects that were
compared here (`right_objects`), and sees by their stamps that they are as they were.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

import xxhash

from hfs.mountd.cache.index import ChunkRow, StagedRow, Stamp
from hfs.mountd.cache.objects.changes import stamp_of
from hfs.mountd.cache.objects.codec import expand
from hfs.mountd.cache.objects.disk import Disk
from hfs.mountd.cache.objects.io import Damaged, idle_io
from hfs.policies.cache.admission import BLOCK_BYTES
from hfs.policies.geometry import Extent, chunk_extent

Value = TypeVar("Value")

OUR_LIMITS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""These say nothing about the file."""

_STEP_BYTES = 1 << 20
"""Of a chunk that is read to be verified: what is hashed while it is in the processor's cache. 8 MiB at once took half
as long again, and memory for all of it. Of a read from the disk long enough that its own cost does not matter."""


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


def publish_object(disk: Disk, number: int, size: int, stamp: Stamp | None, use: Callable[[int], Value]) -> Value:
    """`use(descriptor)` of an object that still has its stamp, else Changed. Raises OSError, and what `use` raises."""
    return publish_opened(disk, disk.open_read(number), size, stamp, use)


def publish_opened(disk: Disk, fd: int, size: int, stamp: Stamp | None, use: Callable[[int], Value]) -> Value:
    """`use(fd)` of an object that is open and has its stamp, else Changed. Closes `fd`. Raises what `use` raises."""
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
    """Begin to read all bytes of these into the page cache; of how many. Of none where those that are looked at are in
    memory: what a job reads again and again costs it an eighth."""
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


_SAY_NOTHING = {*OUR_LIMITS, errno.ENOSYS}
"""The last is what `expand` says where its library is missing: whoever has it finds the bytes as they were."""

_NO_DIRECT = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS}


@dataclass(slots=True)
class Looked:
    """What was found of some chunks of one object."""

    broken: list[int] = field(default_factory=list)
    """Damaged or unreadable."""
    unchecked: str = ""
    """Why some could not be looked at, which says nothing about them."""
    stamp: Stamp | None = None
    """How the object was all the time; None: it was changed meanwhile, or has another length."""


def look_at(disk: Disk, parts: Sequence[tuple[StagedRow, Sequence[ChunkRow]]], idle: bool) -> list[Looked]:
    """In a thread: compare these chunks of each object with their checksums. Never raises OSError.

    `idle`: only as far as the disk has nothing else to do (`idle_io`).
    """
    buffer = memoryview(mmap.mmap(-1, _STEP_BYTES))
    with idle_io() if idle else contextlib.nullcontext():
        return [_look(disk, row, chunks, buffer) for row, chunks in parts]


def _look(disk: Disk, row: StagedRow, chunks: Sequence[ChunkRow], buffer: memoryview) -> Looked:
    looked = Looked()
    try:
        fd, direct = _open(disk, row.object_id)
    except OSError as error:
        return _not_looked(looked, error, [chunk.number for chunk in chunks])
    try:
        before = stamp_of(fd, row.version.size)
        for chunk in chunks:
            try:
                right = _is_right(disk, fd, row, chunk, buffer, direct=direct)
            except OSError as error:
                _not_looked(looked, error, [chunk.number])
            else:
                if not right:
                    looked.broken.append(chunk.number)
        after = stamp_of(fd, row.version.size)
        looked.stamp = after if before == after else None
    finally:
        disk.io.close(fd)
    return looked


def _not_looked(looked: Looked, error: OSError, numbers: Sequence[int]) -> Looked:
    if error.errno in _SAY_NOTHING:
        looked.unchecked = error.strerror or str(error)
    else:
        looked.broken += numbers
    return looked


def _open(disk: Disk, number: int) -> tuple[int, bool]:
    try:
        return disk.open_read(number, direct=True), True
    except OSError as error:
        if error.errno not in _NO_DIRECT:
            raise
    return _open_buffered(disk, number), False


def _open_buffered(disk: Disk, number: int) -> int:
    fd = disk.open_read(number)
    try:
        disk.io.only_asked_for(fd)
    except OSError:
        disk.io.close(fd)
        raise
    return fd


def _is_right(disk: Disk, fd: int, row: StagedRow, chunk: ChunkRow, buffer: memoryview, *, direct: bool) -> bool:
    extent = chunk_extent(chunk.number, row.version.size, row.chunk_bytes)
    size = chunk.stored_bytes or extent.size
    if not chunk.stored_bytes and is_right_hole(disk, fd, extent, chunk.checksum):
        return True
    stored = bytearray() if chunk.stored_bytes else None
    found = xxhash.xxh3_64()
    was_there = not direct and disk.io.has_cached(fd, extent.start, size)
    for done in range(0, size, _STEP_BYTES):
        wanted = min(_STEP_BYTES, size - done)
        room = buffer[: -(-wanted // BLOCK_BYTES) * BLOCK_BYTES]
        try:
            got = disk.io.read_part(fd, extent.start + done, room)
        except OSError as error:
            if not direct or error.errno not in _NO_DIRECT:
                raise
            return _is_right_buffered(disk, row, chunk, buffer)
        if got < wanted:
            raise Damaged(errno.EIO, f"it ends before byte {extent.start + done + wanted}")
        if stored is not None:
            stored += room[:wanted]
        else:
            found.update(room[:wanted])
    if not direct and not was_there:
        disk.io.let_go(fd, extent.start, size)
    if stored is not None:
        found.update(expand(stored, extent.size))
    return found.intdigest() == chunk.checksum


def _is_right_buffered(disk: Disk, row: StagedRow, chunk: ChunkRow, buffer: memoryview) -> bool:
    """A file system may take O_DIRECT at the open and refuse the reads."""
    fd = _open_buffered(disk, row.object_id)
    try:
        return _is_right(disk, fd, row, chunk, buffer, direct=False)
    finally:
        disk.io.close(fd)


def right_objects(disk: Disk, rows: Sequence[StagedRow]) -> list[StagedRow]:
    """In a thread: those of them that are one chunk, stored as it is, and right; what was read for it is in memory
    afterwards. What is not is left to who reads it."""
    return [row for row in rows if _is_one_chunk(row) and _is_right_object(disk, row)]


def _is_one_chunk(row: StagedRow) -> bool:
    size = row.version.size
    return (
        row.proven and row.complete and 0 < size <= row.chunk_bytes and not row.stored_bytes and row.stamp is not None
    )


def _is_right_object(disk: Disk, row: StagedRow) -> bool:
    size = row.version.size
    found = read_object(disk, None, WantedRead(row.object_id, size, Extent(0, size), row.checksum))
    if found.opened_fd is not None:
        disk.io.close(found.opened_fd)
    return found.data is not None and row.stamp == found.before == found.after
