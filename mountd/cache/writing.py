"""Writing chunks into objects, in threads.

Large aligned chunks are written with O_DIRECT where the file system takes it, which is several times faster than
writing through the page cache and syncing, and leaves the page cache to what is read. They go behind what readers wait
for (`WritePace`); what is small the kernel writes back, when a group is synced.

With `--stage-encoding` a chunk that shrinks is written shrunk, at the same place of its object, which stays as long as
the file: less of it is on the disk. One that does not is written as it is, and then the file's other chunks too, since
only a plain file can be handed to the kernel.

A chunk that could not be written leaves nothing accounted: its range is punched, or it stays accounted as stray.
"""

from __future__ import annotations

import errno
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import xxhash

from hfs.mountd.cache.objects.changes import Change
from hfs.mountd.cache.objects.codec import RAW, UNDECIDED, Shrinker
from hfs.mountd.cache.objects.disk import Disk
from hfs.mountd.cache.objects.file import StagedFile
from hfs.mountd.cache.objects.io import WritePace, staging_io
from hfs.mountd.cache.objects.reads import checksum_of_zeros
from hfs.policies.cache.admission import BLOCK_BYTES, blocks_bytes
from hfs.policies.cache.holes import hole_blocks
from hfs.policies.geometry import Extent

DIRECT_FROM_BYTES = 1 << 20
"""Below this a buffered write is as fast, and what is small is read again soon, from the page cache."""


@dataclass(slots=True, eq=False, repr=False)
class WriteJob:
    """One chunk to write. The thread sets `checksum`, `stored_bytes` or `error`, and drops `data` as soon as it is
    written."""

    file: StagedFile
    index: int
    data: memoryview | None
    number: int
    """Place in the order of all puts."""
    charged_bytes: int
    """What was accounted when it was put."""
    on_done: Callable[[], object] | None = None
    """Called on the event loop once the chunk is present, or was given up."""
    may_shrink: bool = False
    """Nothing of the chunk is on the disk, and nobody but us reads the object."""
    pieces: Sequence[Extent] | None = None
    """All of it that is to be written, if the rest is zeros and nothing of the chunk is on the disk; None: all."""
    object_id: int = field(init=False)
    size_bytes: int = field(init=False)
    start: int = field(init=False)
    hole_blocks: int = field(init=False)
    room_bytes: int = field(init=False)
    """What the chunk takes at most."""
    create: bool = False
    """There is no object yet; known when its turn comes."""
    change: Change | None = None
    """Its turn at the object, from when it is taken off the queue."""
    checksum: int = 0
    element_bytes: int = UNDECIDED
    """What the file was found to be made of when the thread began, then what the chunk was found to be made of."""
    shrunk: memoryview | None = None
    stored_bytes: int = 0
    """As how many bytes it was written; 0: as it is."""
    error: OSError | None = None
    stray: bool = False
    """The write failed and the disk may still hold some of it."""

    def __post_init__(self) -> None:
        assert self.file.object_id is not None
        assert self.data is not None
        self.object_id, self.size_bytes = self.file.object_id, len(self.data)
        self.start = self.index * self.file.chunk_bytes
        self.hole_blocks = 0 if self.pieces is None else hole_blocks(self.size_bytes, self.pieces)
        self.room_bytes = blocks_bytes(self.size_bytes) - self.hole_blocks * BLOCK_BYTES

    @property
    def is_whole_new_file(self) -> bool:
        """The only chunk of its file, of which there is nothing yet."""
        return self.create and self.size_bytes == self.file.size


def hole_job(file: StagedFile, index: int, number: int, charged_bytes: int) -> WriteJob:
    """Of a chunk of zeros alone, for `write_holes`: it has no bytes."""
    job = WriteJob(file, index, memoryview(b""), number, charged_bytes)
    job.hole_blocks = blocks_bytes(file.chunk_size(index)) // BLOCK_BYTES
    return job


def write_holes(disk: Disk, jobs: Sequence[WriteJob]) -> None:
    """In a thread: have the object of these chunks, all of one file, where there is nothing yet. Raises OSError."""
    first = jobs[0]
    for job in jobs:
        job.checksum = checksum_of_zeros(job.file.chunk_size(job.index))
    with staging_io():
        fd = disk.open_write(first.object_id, create=first.create, direct=False)
        try:
            if _begin(first, fd) or first.create:
                disk.io.set_length(fd, first.file.size)
            _change(first).end(fd)
        finally:
            disk.io.close(fd)


def write_batch(
    disk: Disk, batch: list[WriteJob], pace: WritePace, rests: bool, shrinker: Shrinker | None = None
) -> None:
    """In a thread: write each chunk; a fault of one does not stop the others. `rests`: see `WritePace.write`."""
    with staging_io():
        _write_batch(disk, batch, pace, shrinker, rests)


def _write_batch(disk: Disk, batch: list[WriteJob], pace: WritePace, shrinker: Shrinker | None, rests: bool) -> None:
    if shrinker is not None:
        for job in batch:
            _shrink(shrinker, job)
    small = [
        job for job in batch if job.is_whole_new_file and job.size_bytes < DIRECT_FROM_BYTES and job.shrunk is None
    ]
    if len(small) > 1:
        _write_small(disk, small)
    for job in batch:
        data, job.data = job.data, None
        if data is None:
            continue  # written
        shrunk, job.shrunk = job.shrunk, None
        content = data if shrunk is None else shrunk
        try:
            job.checksum = xxhash.xxh3_64_intdigest(data)
            _write(disk, job, content, pace, rests)
        except OSError as error:
            job.error = error
            _undo(disk, job, len(content))
        del data, shrunk, content


def fail_batch(batch: list[WriteJob]) -> None:
    """Nobody knows how far the thread came: all are given up, and room is kept for what the disk may have of them."""
    for job in batch:
        job.data = job.shrunk = None
        job.stored_bytes = 0
        job.error, job.stray = OSError(errno.EIO, "the writer has failed"), True


def _shrink(shrinker: Shrinker, job: WriteJob) -> None:
    """What of the chunk is to be written, if it shrinks, and what that says of its file."""
    assert job.data is not None
    is_rest = job.size_bytes < min(job.file.chunk_bytes, job.file.size)
    if not job.may_shrink or (is_rest and job.element_bytes == UNDECIDED):
        return  # the short end of a file, often padding, does not say what the file is made of
    shrunk = shrinker.shrink(job.data, job.element_bytes)
    if shrunk is not None:
        job.element_bytes = shrunk.element_bytes
        job.shrunk, job.stored_bytes = shrunk.data, shrunk.stored_bytes
    elif job.element_bytes == UNDECIDED:
        job.element_bytes = RAW


def _write_small(disk: Disk, jobs: list[WriteJob]) -> None:
    for job in jobs:
        data, job.data = job.data, None
        assert data is not None
        job.checksum = xxhash.xxh3_64_intdigest(data)
        try:
            _change(job).after = disk.write_new(job.object_id, data)
        except OSError as error:
            job.error = error
            _undo(disk, job, job.size_bytes)


def _write(disk: Disk, job: WriteJob, data: memoryview, pace: WritePace, rests: bool) -> None:
    if disk.direct and len(data) >= DIRECT_FROM_BYTES and _address(data) % BLOCK_BYTES == 0:
        try:
            _write_object(disk, job, data, pace, rests, direct=True)
            return
        except OSError as error:
            if error.errno not in {errno.EINVAL, errno.EOPNOTSUPP}:
                raise
            disk.direct = False
    _write_object(disk, job, data, pace, rests, direct=False)


def _write_object(disk: Disk, job: WriteJob, data: memoryview, pace: WritePace, rests: bool, *, direct: bool) -> None:
    fd = disk.open_write(job.object_id, create=job.create, direct=direct)
    try:
        lost_length = _begin(job, fd)
        for piece in _pieces(job, data):
            part, start = data[piece.start : piece.end], job.start + piece.start
            if direct:
                pace.write(disk.io, fd, _blocks(part), start, rests=rests)
            else:
                disk.io.write(fd, [part], start)
        # A shrunk end and a hole do not reach the end of the file, and whole blocks go beyond it.
        is_new = job.create and (direct or len(data) != job.file.size)
        if is_new or job.stored_bytes or job.hole_blocks or lost_length or (direct and len(data) % BLOCK_BYTES):
            disk.io.set_length(fd, job.file.size)
        _change(job).end(fd)
    finally:
        disk.io.close(fd)


def _pieces(job: WriteJob, data: memoryview) -> Sequence[Extent]:
    return [Extent(0, len(data))] if job.pieces is None else job.pieces


def _blocks(data: memoryview) -> list[memoryview | mmap.mmap]:
    """`data` in whole blocks, as O_DIRECT writes: what is too much at the end of the file is cut off again."""
    whole = len(data) // BLOCK_BYTES * BLOCK_BYTES
    if whole == len(data):
        return [data]
    last = mmap.mmap(-1, BLOCK_BYTES)
    last[: len(data) - whole] = data[whole:]
    return [data[:whole], last] if whole else [last]


def _undo(disk: Disk, job: WriteJob, size: int) -> None:
    """Give back what a failed write may have taken."""
    try:
        fd = disk.open_write(job.object_id, create=False, direct=False)
    except FileNotFoundError:
        return  # nothing was made
    except OSError:
        job.stray = True
        return
    try:
        disk.io.punch(fd, job.start, job.start + -(-size // BLOCK_BYTES) * BLOCK_BYTES)
        disk.io.set_length(fd, job.file.size)
        _change(job).end(fd)
    except OSError:
        job.stray = True
    finally:
        disk.io.close(fd)


def _change(job: WriteJob) -> Change:
    assert job.change is not None
    return job.change


def _begin(job: WriteJob, fd: int) -> bool:
    """Look who had the object last. True if others have changed its length."""
    return not job.create and not _change(job).begin(fd)


def _address(data: memoryview) -> int:
    address: int = np.frombuffer(data, dtype=np.uint8).ctypes.data
    return address
