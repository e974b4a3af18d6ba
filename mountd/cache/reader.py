"""Reading staged bytes: from the page cache without waiting, else in a thread; verified when they are first used.

Nothing is given out of a chunk before this daemon has written it or seen its checksum, and nothing of an object that
has another stamp than it was left with (`cache.objects.stamps`), which is looked at behind every read: then all its
chunks are verified again. Of a chunk that is verified just now its readers get the very bytes that were hashed.

A read that fails, or comes back short, means that the staged copy is no good: its chunks are forgotten and the caller
goes to the source. A chunk that stops being present while a thread reads may have been punched under it, so what such
a read brought is thrown away.

Of an encoded chunk no part is ever given out before all of it was decoded and its checksum verified;
`cache.objects.decoded` keeps the last ones.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import trio
import xxhash

from mountd.base.errors import HfsError, StagingError
from mountd.cache.findings import Findings
from mountd.cache.index import Stamp
from mountd.cache.objects import (
    CacheContext,
    Decoded,
    Descriptors,
    StagedFile,
    WantedRead,
    read_ahead,
    read_object,
    stamp_of,
)
from mountd.cache.verifying_ahead import VerifyingAhead
from mountd.core.background import note_fault
from policies.geometry import Extent, chunk_range, split

__all__ = ["StagedReader"]

_HASHED_AT_ONCE_BYTES = 512 << 10
"""A whole chunk of so many bytes is verified on the event loop if it is in memory: 40 us, less than a thread costs."""

_TRIES = 3
"""An object that is changed again and again while it is read is left to itself: the source has the bytes too."""


class StagedReader:
    """Event loop only. Methods named `_nowait` wait for no disk: they ask the page cache."""

    def __init__(
        self, context: CacheContext, descriptors: Descriptors, findings: Findings, ahead: VerifyingAhead
    ) -> None:
        self._context = context
        self._descriptors = descriptors
        self._findings = findings
        self._ahead = ahead
        self._nowait_works = True
        self._decoded = Decoded()
        self._verifying: dict[tuple[int | None, int], trio.Event] = {}
        """Chunks that are being verified, by object and number: once, however many want them."""

    def read_nowait(self, file: StagedFile, extent: Extent) -> bytearray | None:
        """The bytes of `extent` if its chunks are present and the page cache has all of it, else None."""
        data = bytearray(extent.size)
        return data if self.read_into_nowait(file, extent, memoryview(data)) else None

    def read_into_nowait(self, file: StagedFile, extent: Extent, buffer: memoryview) -> bool:
        """As `read_nowait`, into the first bytes of `buffer`, which is large enough. False if that is not possible."""
        number = file.object_id
        if number is None or not file.has(extent):
            return False
        indexes = chunk_range(extent, file.chunk_bytes)
        if file.encoded and any(map(file.stored_bytes, indexes)):
            return self._decoded_nowait(file, extent, buffer)
        known = all(index in file.verified for index in indexes)
        if not known and (extent != file.chunk(indexes[0]) or extent.size > _HASHED_AT_ONCE_BYTES):
            return False
        fd = self._open_nowait(number)
        if fd is None:
            return False
        try:
            if not self._context.disk.io.read_cached(fd, extent.start, buffer[: extent.size]):
                return False
            after = stamp_of(fd, file.size)
        except OSError as error:
            self._nowait_works = self._nowait_works and error.errno != errno.EOPNOTSUPP  # tmpfs
            return False  # the thread that reads next meets the error again and deals with it
        if extent.end < file.size:
            self._ahead.reads_nowait(file, extent)
        if known:
            return self._findings.is_as_left(file, number, after)
        if xxhash.xxh3_64_intdigest(buffer[: extent.size]) != file.checksum(indexes[0]):
            return False  # as above
        self._findings.right(file, number, indexes[0], after, steady=True, by_name=False)
        return True

    def _open_nowait(self, number: int) -> int | None:
        """A descriptor for use before the next await; None: that would take the disk."""
        if not self._nowait_works:
            return None
        fd = self._descriptors.get_nowait(number)
        if fd is None:
            fd = self._context.disk.open_cached(number)
            if fd is not None:
                self._descriptors.put(number, fd)
        return fd

    def is_in_memory_nowait(self, file: StagedFile, offset: int) -> bool:
        """Whether the page cache has the byte at `offset`, which is staged as it is. Says nothing about that byte."""
        fd = self._open_nowait(file.object_id) if file.object_id is not None else None
        try:
            return fd is not None and self._context.disk.io.read_cached(fd, offset, memoryview(bytearray(1)))
        except OSError:
            return False

    async def read(self, file: StagedFile, extent: Extent) -> bytearray:
        """The bytes of `extent`, which lies in present chunks; all of them. Raises StagingError."""
        with _foreseen():
            return await self._read_pieces(file, extent)

    async def read_chunk(self, file: StagedFile, index: int) -> bytearray:
        """A whole present chunk, its checksum verified. Raises StagingError; a damaged chunk is forgotten."""
        with _foreseen():
            return await self._read(file, file.chunk(index), index)

    async def _read_pieces(self, file: StagedFile, extent: Extent) -> bytearray:
        if extent.size <= 0:
            return bytearray()
        pieces = list(split(extent, file.chunk_bytes))
        if len(pieces) > 1 and not file.encoded and all(piece.index in file.verified for piece in pieces):
            data = await self._read_known(file, extent)
            if data is not None:
                return data
        if len(pieces) == 1:
            return await self._read_piece(file, pieces[0].index, extent)
        joined = bytearray()
        for piece in pieces:
            joined += await self._read_piece(file, piece.index, Extent(piece.start, piece.end))
        return joined

    async def verify(self, file: StagedFile, index: int) -> None:
        """See that a present chunk is right. Raises StagingError; a damaged one is forgotten."""
        await self._read_piece(file, index, Extent(file.chunk(index).start, file.chunk(index).start))

    async def will_need(self, extents: Sequence[tuple[StagedFile, Extent]]) -> None:
        """Have staged bytes read into the page cache, for who reads the staged files by himself. Never fails."""
        wanted = [
            (file.object_id, part)
            for file, extent in extents
            if file.object_id is not None
            for part in _on_disk(file, extent)
        ]
        await self._context.threads.read(read_ahead, self._context.disk, wanted)

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

    async def _read_piece(self, file: StagedFile, index: int, part: Extent) -> bytearray:
        """`part` of one chunk."""
        if file.stored_bytes(index):
            return bytearray(await self._read_decoded(file, index, part))
        if part.size and part.end < file.size:
            self._ahead.reads_nowait(file, part)
        for _ in range(_TRIES):
            while (verifying := self._verifying.get((file.object_id, index))) is not None:
                await verifying.wait()
            if index not in file.verified:
                return await self._read_verifying(file, index, part)
            data = await self._read_known(file, part)
            if data is not None:
                return data
        raise StagingError("the staged copy is being changed")

    async def _read_known(self, file: StagedFile, extent: Extent) -> bytearray | None:
        """Bytes of verified chunks; None: others have changed the object, and they count as verified no more."""
        number, doubts = file.object_id, file.doubts
        data, after = await self._read_object(file, extent, None, None)
        # One that was verified again meanwhile has the right stamp, and these bytes may be from before.
        as_left = number is not None and file.doubts == doubts and self._findings.is_as_left(file, number, after)
        return data if as_left else None

    async def _read_verifying(self, file: StagedFile, index: int, part: Extent) -> bytearray:
        key = file.object_id, index
        self._verifying[key] = trio.Event()
        try:
            return await self._read(file, file.chunk(index), index, part)
        finally:
            self._verifying.pop(key).set()

    async def _read(self, file: StagedFile, extent: Extent, whole: int, part: Extent | None = None) -> bytearray:
        """The chunk `whole`, or `part` of it, its checksum verified."""
        data, _ = await self._read_object(file, extent, whole, part)
        return data

    async def _read_object(
        self, file: StagedFile, extent: Extent, whole: int | None, part: Extent | None
    ) -> tuple[bytearray, Stamp | None]:
        """The bytes, and how the object was found behind them. Of the chunk `whole` the checksum is verified."""
        number, changes = file.object_id, file.changes
        known, doubts = file.stamp is not None, file.doubts
        if number is None or not file.has(extent):
            raise StagingError("not staged")
        wanted = WantedRead(number, file.size, extent, part=part)
        if whole is not None:
            wanted = WantedRead(number, file.size, extent, file.checksum(whole), file.stored_bytes(whole), part)
        if whole is not None and file.stamp is None:
            self._findings.close(number)  # by its name it may be another one now
        held = self._descriptors.acquire(number)
        try:
            run = self._context.threads.decode if wanted.stored_bytes else self._context.threads.read
            answer = await run(read_object, self._context.disk, held.fd if held else None, wanted)
        finally:
            if held:
                self._descriptors.release(held)
        if answer.opened_fd is not None:
            if file.object_id == number and file.changes == changes:
                self._descriptors.put(number, answer.opened_fd)
            else:
                self._context.disk.io.close(answer.opened_fd)
        if file.changes != changes:
            raise StagingError("no longer staged")
        if answer.data is None:
            self._findings.failed(file, number, extent, answer.error)
            raise StagingError(f"a staged file cannot be read: {answer.error}") from answer.error
        if wanted.stored_bytes:
            self._context.metrics.add("staged_decoded_chunks")
            self._context.metrics.add("staged_decoded_bytes", extent.size)
        elif whole is not None:
            steady = answer.before == answer.after or (known and file.doubts == doubts)
            self._findings.right(file, number, whole, answer.after, steady=steady, by_name=answer.opened_fd is not None)
        return answer.data, answer.after


def _on_disk(file: StagedFile, extent: Extent) -> list[Extent]:
    """Where the bytes of `extent` lie in the object; of encoded chunks all."""
    if not file.encoded:
        return [extent]
    found = []
    for piece in split(extent, file.chunk_bytes):
        stored_bytes, begin = file.stored_bytes(piece.index), piece.index * file.chunk_bytes
        found.append(Extent(begin, begin + stored_bytes) if stored_bytes else Extent(piece.start, piece.end))
    return found


@contextmanager
def _foreseen() -> Iterator[None]:
    """Whatever goes wrong inside is a StagingError: the source has the bytes too."""
    try:
        yield
    except HfsError:
        raise
    except Exception as error:
        note_fault("read of staged bytes", error)
        raise StagingError(f"staged bytes cannot be read: {error!r}") from error
