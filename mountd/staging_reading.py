"""Reading staged bytes: from the page cache without waiting, else in a thread, whole chunks with their checksum.

A read that fails, or comes back short, means that the staged copy is no good: its chunks are forgotten and the caller
goes to the source. A chunk that stops being present while a thread reads may have been punched under it, so what such
a read brought is thrown away.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import xxhash

from mountd.errors import StagingError
from mountd.index import Index, IndexFailed, StagedRow
from mountd.staging_descriptors import Descriptors
from mountd.staging_disk import Disk
from mountd.staging_file import StagedFile
from mountd.staging_files import Files
from mountd.staging_ground import Ground
from mountd.staging_sweeper import Sweeper
from mountd.version import Version
from policies.geometry import Extent, chunk_extent, chunk_range

__all__ = ["CheckedFile", "Reading", "check_rows"]

Value = TypeVar("Value")

_OUR_LIMITS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""These say nothing about the file."""

_CHECK_BATCH = 64
_CHECK_BYTES = 32 << 20
"""Files checked in one hop to a thread."""


class Damaged(OSError):
    """Staged bytes are not what was staged."""


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """What `check` found of one file."""

    version: Version
    path: bytes
    chunks: int
    """Chunks that were read."""
    bytes: int
    """Bytes that were read."""
    broken: tuple[int, ...]
    """Indexes of damaged or unreadable chunks; they are forgotten."""


class Reading:
    """See the file's story."""

    def __init__(self, ground: Ground, descriptors: Descriptors, sweeper: Sweeper) -> None:
        self._ground = ground
        self._descriptors = descriptors
        self._sweeper = sweeper
        self._nowait_works = True

    def read_nowait(self, file: StagedFile, extent: Extent) -> bytearray | None:
        """See Staging.read_nowait."""
        data = bytearray(extent.size)
        return data if self.read_into_nowait(file, extent, memoryview(data)) else None

    def read_into_nowait(self, file: StagedFile, extent: Extent, buffer: memoryview) -> bool:
        """See Staging.read_into_nowait."""
        number = file.object_id
        if number is None or not self._nowait_works or not file.has(extent):
            return False
        fd = self._descriptors.get_nowait(number)
        if fd is None:
            fd = self._ground.disk.open_cached(number)
            if fd is None:
                return False
            self._descriptors.put(number, fd)
        try:
            return self._ground.disk.read_cached(fd, extent.start, buffer[: extent.size])
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                self._nowait_works = False  # tmpfs
            return False  # the thread that reads next meets the error again and deals with it

    async def read(self, file: StagedFile, extent: Extent) -> bytearray:
        """See Staging.read."""
        if extent.size <= 0:
            return bytearray()
        return await self._read(file, extent, None)

    async def read_chunk(self, file: StagedFile, index: int) -> bytearray:
        """See Staging.read_chunk."""
        return await self._read(file, file.chunk(index), file.checksum(index))

    def lend_nowait(self, file: StagedFile, use: Callable[[int], Value]) -> Value | None:
        """See Staging.lend_nowait."""
        number = file.object_id
        fd = self._ground.disk.open_cached(number) if number is not None and file.durable else None
        return None if fd is None else _lend(self._ground.disk, fd, file.size, use)

    async def lend(self, file: StagedFile, use: Callable[[int], Value]) -> Value:
        """See Staging.lend."""
        number = file.object_id
        if number is None or not file.durable:
            raise StagingError("not staged as a whole")
        try:
            return await self._ground.threads.read(_lend_object, self._ground.disk, number, file.size, use)
        except (Damaged, FileNotFoundError) as error:
            self._failed(file, number, Extent(0, file.size), error)
            raise StagingError(f"a staged file cannot be read: {error}") from error

    async def will_need(self, extents: Sequence[tuple[StagedFile, Extent]]) -> None:
        """See Staging.will_need."""
        wanted = [(file.object_id, extent) for file, extent in extents if file.object_id is not None]
        await self._ground.threads.read(_will_need, self._ground.disk, wanted)

    async def lend_empty(self, use: Callable[[int], Value]) -> Value:
        """See Staging.lend_empty."""
        try:
            fd = await self._ground.threads.read(self._ground.disk.open_empty)
        except OSError as error:
            raise StagingError(str(error)) from error
        try:
            return await self._ground.threads.read(use, fd)
        finally:
            self._ground.disk.close_fd(fd)

    async def _read(self, file: StagedFile, extent: Extent, checksum: int | None) -> bytearray:
        number, changes = file.object_id, file.changes
        if number is None or not file.has(extent):
            raise StagingError("not staged")
        held = self._descriptors.acquire(number)
        try:
            answer = await self._ground.threads.read(
                _read_object, self._ground.disk, number, held.fd if held else None, extent, checksum
            )
        finally:
            if held:
                self._descriptors.release(held)
        if answer.opened_fd is not None:
            if file.object_id == number and file.changes == changes:
                self._descriptors.put(number, answer.opened_fd)
            else:
                self._ground.disk.close_fd(answer.opened_fd)
        if file.changes != changes:
            raise StagingError("no longer staged")
        if answer.data is None:
            self._failed(file, number, extent, answer.error)
            raise StagingError(f"a staged file cannot be read: {answer.error}") from answer.error
        return answer.data

    def _failed(self, file: StagedFile, number: int, extent: Extent, error: OSError | None) -> None:
        if error is not None and error.errno in _OUR_LIMITS:
            self._ground.health.broken(f"reading staged files: {error}")
            return
        self._ground.health.broken(f"staged bytes of {file.path!r} (object {number}) cannot be read: {error}")
        if isinstance(error, FileNotFoundError):
            self._sweeper.lost(file)
            return
        if isinstance(error, Damaged):
            self._ground.metrics.add("staged_checksum_failures")
        self._sweeper.give_up(file, list(chunk_range(extent, file.chunk_bytes)))


@dataclass(slots=True)
class _Answer:
    data: bytearray | None = None
    error: OSError | None = None
    opened_fd: int | None = None


def _read_object(disk: Disk, number: int, fd: int | None, extent: Extent, checksum: int | None) -> _Answer:
    """In a thread. The descriptor it had to open comes back with the bytes."""
    answer = _Answer()
    try:
        if fd is None:
            answer.opened_fd = fd = disk.open_read(number)
        data = disk.read(fd, extent.start, extent.size)
        if len(data) != extent.size:
            raise Damaged(errno.EIO, f"{len(data)} of {extent.size} bytes")
        if checksum is not None and xxhash.xxh3_64_intdigest(data) != checksum:
            raise Damaged(errno.EIO, "wrong checksum")
        answer.data = data
    except OSError as error:
        answer.error = error
    return answer


def _will_need(disk: Disk, extents: Sequence[tuple[int, Extent]]) -> None:
    """In a thread. What cannot be read is met by its reader."""
    for number, extent in extents:
        with contextlib.suppress(OSError):
            fd = disk.open_read(number)
            try:
                disk.will_need(fd, extent.start, extent.end - extent.start)
            finally:
                disk.close_fd(fd)


def _lend_object(disk: Disk, number: int, size: int, use: Callable[[int], Value]) -> Value:
    """In a thread."""
    return _lend(disk, disk.open_read(number), size, use)


def _lend(disk: Disk, fd: int, size: int, use: Callable[[int], Value]) -> Value:
    try:
        found = os.fstat(fd).st_size
        if found != size:
            raise Damaged(errno.EIO, f"{found} of {size} bytes")
        return use(fd)
    finally:
        disk.close_fd(fd)


async def check_rows(
    ground: Ground, files: Files, sweeper: Sweeper, rows: Sequence[StagedRow]
) -> AsyncGenerator[CheckedFile, None]:
    """Check what these rows vouch for; forget what is damaged."""
    start = 0
    while start < len(rows):
        end, size = start, 0
        while end < len(rows) and (end == start or (end - start < _CHECK_BATCH and size < _CHECK_BYTES)):
            size += rows[end].version.size
            end += 1
        batch, start = rows[start:end], end
        try:
            chunks = await ground.threads.ask_index(_all_chunks, ground.index, batch)
        except IndexFailed as error:
            ground.health.index_failed(error, "checking staged files")
            return
        found = await ground.threads.read(_check_objects, ground.disk, batch, chunks)
        for row, listed, broken in zip(batch, chunks, found, strict=True):
            if broken:
                file = await files.get(row.version)
                if file.object_id != row.object_id:
                    continue  # evicted meanwhile
                broken = [index for index in broken if index in file.vouched]
                ground.metrics.add("staged_checksum_failures", len(broken))
                sweeper.give_up(file, broken)
            sizes = [chunk_extent(index, row.version.size, row.chunk_bytes).size for index, _ in listed]
            yield CheckedFile(row.version, row.path, len(listed), sum(sizes), tuple(broken))


def _all_chunks(index: Index, rows: Sequence[StagedRow]) -> list[list[tuple[int, int]]]:
    return [
        ([] if row.checksum is None else [(0, row.checksum)])
        if row.version.size <= row.chunk_bytes
        else index.chunks(row.object_id)
        for row in rows
    ]


def _check_objects(disk: Disk, rows: Sequence[StagedRow], chunks: Sequence[list[tuple[int, int]]]) -> list[list[int]]:
    """In a thread: the indexes of the damaged chunks of each row."""
    damaged = []
    for row, listed in zip(rows, chunks, strict=True):
        broken: list[int] = []
        fd: int | None = None
        for index, checksum in listed:
            extent = chunk_extent(index, row.version.size, row.chunk_bytes)
            answer = _read_object(disk, row.object_id, fd, extent, checksum)
            fd = answer.opened_fd if fd is None else fd
            if answer.data is None:
                broken.append(index)
        if fd is not None:
            disk.close_fd(fd)
        damaged.append(broken)
    return damaged
