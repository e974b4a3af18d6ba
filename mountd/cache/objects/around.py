"""Reading chunks around the page cache, to see whether the disk still has the right bytes.

With O_DIRECT, which neither believes what memory has of the file nor pushes out what others want there. Where the file
system refuses that, through the page cache, and what was not there before is let go again; bytes that memory has are
then not read from the disk, and will be in another round.

`look_at` runs in a thread of `cache.checking`'s; it decides nothing and drops nothing.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
from collections.abc import Sequence
from dataclasses import dataclass, field

import xxhash

from hfs.mountd.cache.index import ChunkRow, StagedRow, Stamp
from hfs.mountd.cache.objects.codec import expand
from hfs.mountd.cache.objects.disk import Disk
from hfs.mountd.cache.objects.io import Damaged
from hfs.mountd.cache.objects.io_class import idle_io
from hfs.mountd.cache.objects.objects import OUR_LIMITS, is_right_hole
from hfs.mountd.cache.objects.stamps import stamp_of
from hfs.policies.cache.admission import BLOCK_BYTES
from hfs.policies.geometry import chunk_extent

_STEP_BYTES = 1 << 20
"""One read: long enough that its own cost does not matter, and a tenth of a millisecond of a drive's time."""

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

    `idle`: only as far as the disk has nothing else to do (`cache.objects.io_class`).
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
