"""Reading staged bytes: from the page cache without waiting, else in a thread, whole chunks with their checksum.

A read that fails, or comes back short, means that the staged copy is no good: its chunks are forgotten and the caller
goes to the source. A chunk that stops being present while a thread reads may have been punched under it, so what such
a read brought is thrown away.

Of an encoded chunk no part is ever given out before all of it was decoded and its checksum verified; `staging_decoded`
keeps the last ones.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import xxhash

from mountd.errors import StagingError
from mountd.staging_decoded import Decoded
from mountd.staging_descriptors import Descriptors
from mountd.staging_disk import Disk
from mountd.staging_encoding import Undecodable, decode
from mountd.staging_file import StagedFile
from mountd.staging_ground import Ground
from mountd.staging_sweeper import Sweeper
from policies.geometry import Extent, chunk_range, split

__all__ = ["OUR_LIMITS", "Reading", "read_object"]

Value = TypeVar("Value")

OUR_LIMITS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""These say nothing about the file."""


class Damaged(OSError):
    """Staged bytes are not what was staged."""


class Reading:
    """See the file's story."""

    def __init__(self, ground: Ground, descriptors: Descriptors, sweeper: Sweeper) -> None:
        self._ground = ground
        self._descriptors = descriptors
        self._sweeper = sweeper
        self._nowait_works = True
        self._decoded = Decoded()

    def read_nowait(self, file: StagedFile, extent: Extent) -> bytearray | None:
        """See Staging.read_nowait."""
        data = bytearray(extent.size)
        return data if self.read_into_nowait(file, extent, memoryview(data)) else None

    def read_into_nowait(self, file: StagedFile, extent: Extent, buffer: memoryview) -> bool:
        """See Staging.read_into_nowait."""
        number = file.object_id
        if number is None or not file.has(extent):
            return False
        if file.encoded and any(map(file.stored_bytes, chunk_range(extent, file.chunk_bytes))):
            return self._decoded_nowait(file, extent, buffer)
        if not self._nowait_works:
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
        if not file.encoded:
            return await self._read(file, extent, None)
        joined = bytearray()
        for piece in split(extent, file.chunk_bytes):
            part = Extent(piece.start, piece.end)
            if file.stored_bytes(piece.index):
                joined += await self._read_decoded(file, piece.index, part)
            else:
                joined += await self._read(file, part, None)
        return joined

    async def read_chunk(self, file: StagedFile, index: int) -> bytearray:
        """See Staging.read_chunk."""
        return await self._read(file, file.chunk(index), index)

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
        wanted = [
            (file.object_id, part)
            for file, extent in extents
            if file.object_id is not None
            for part in _on_disk(file, extent)
        ]
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

    def _decoded_nowait(self, file: StagedFile, extent: Extent, buffer: memoryview) -> bool:
        index = extent.start // file.chunk_bytes
        data = self._decoded.get(file, index)
        begin = index * file.chunk_bytes
        if data is None or extent.end > begin + len(data):
            return False
        buffer[: extent.size] = memoryview(data)[extent.start - begin : extent.end - begin]
        if extent.end == begin + len(data):
            self._decoded.read_to_end(file, index)
        return True

    async def _read_decoded(self, file: StagedFile, index: int, part: Extent) -> memoryview:
        """`part` of an encoded chunk, which is decoded once however many ask for it."""
        while True:
            data = self._decoded.get(file, index)
            coming = self._decoded.coming(file, index)
            if data is not None or coming is None:
                break
            await coming.wait()
        if data is None:
            key = self._decoded.begin(file, index)
            try:
                data = await self._read(file, file.chunk(index), index)
                self._decoded.put(file, index, data)
            finally:
                self._decoded.end(key)
        begin = index * file.chunk_bytes
        if part.end == begin + len(data):
            self._decoded.read_to_end(file, index)
        return memoryview(data)[part.start - begin : part.end - begin]

    async def _read(self, file: StagedFile, extent: Extent, whole: int | None) -> bytearray:
        """`extent` of the object, which is not encoded, or chunk `whole`, which may be, with its checksum verified."""
        checksum = None if whole is None else file.checksum(whole)
        stored_bytes = 0 if whole is None else file.stored_bytes(whole)
        number, changes = file.object_id, file.changes
        if number is None or not file.has(extent):
            raise StagingError("not staged")
        held = self._descriptors.acquire(number)
        try:
            run = self._ground.threads.decode if stored_bytes else self._ground.threads.read
            answer = await run(
                read_object, self._ground.disk, number, held.fd if held else None, extent, checksum, stored_bytes
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
        if stored_bytes:
            self._ground.metrics.add("staged_decoded_chunks")
            self._ground.metrics.add("staged_decoded_bytes", extent.size)
        return answer.data

    def _failed(self, file: StagedFile, number: int, extent: Extent, error: OSError | None) -> None:
        if error is not None and error.errno in OUR_LIMITS:
            self._ground.health.broken(f"reading staged files: {error}")
            return
        self._ground.health.broken(f"staged bytes of {file.path!r} (object {number}) cannot be read: {error}")
        if isinstance(error, FileNotFoundError):
            self._sweeper.lost(file)
            return
        if isinstance(error, Damaged | Undecodable):
            self._ground.metrics.add("staged_checksum_failures")
        self._sweeper.give_up(file, list(chunk_range(extent, file.chunk_bytes)))


@dataclass(slots=True)
class _Answer:
    data: bytearray | None = None
    error: OSError | None = None
    opened_fd: int | None = None


def read_object(
    disk: Disk, number: int, fd: int | None, extent: Extent, checksum: int | None, stored_bytes: int = 0
) -> _Answer:
    """In a thread. The descriptor it had to open comes back with the bytes.

    `stored_bytes`: as how many bytes `extent`, a whole chunk, is stored; 0: as it is.
    """
    answer = _Answer()
    try:
        if fd is None:
            answer.opened_fd = fd = disk.open_read(number)
        data = disk.read(fd, extent.start, stored_bytes or extent.size)
        if len(data) != (stored_bytes or extent.size):
            raise Damaged(errno.EIO, f"{len(data)} of {stored_bytes or extent.size} bytes")
        if stored_bytes:
            data = decode(data, extent.size)
        if checksum is not None and xxhash.xxh3_64_intdigest(data) != checksum:
            raise Damaged(errno.EIO, "wrong checksum")
        answer.data = data
    except OSError as error:
        answer.error = error
    return answer


def _on_disk(file: StagedFile, extent: Extent) -> list[Extent]:
    """Where the bytes of `extent` lie in the object; of encoded chunks all."""
    if not file.encoded:
        return [extent]
    found = []
    for piece in split(extent, file.chunk_bytes):
        stored_bytes, begin = file.stored_bytes(piece.index), piece.index * file.chunk_bytes
        found.append(Extent(begin, begin + stored_bytes) if stored_bytes else Extent(piece.start, piece.end))
    return found


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
