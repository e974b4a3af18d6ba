"""Reading staged bytes: from the page cache without waiting, else in a thread; verified when they are first used.

Nothing is given out of a chunk before this daemon has written it or seen its checksum, and nothing of an object that
has another stamp than it was left with (`cache.objects.changes`), which is looked at behind every read: then all its
chunks are verified again. Of a chunk that is verified just now its readers get the very bytes that were hashed.

A read that fails, or comes back short, means that the staged copy is no good: its chunks are forgotten and the caller
goes to the source. A chunk that stops being present while a thread reads may have been punched under it, so what such
a read brought is thrown away.

A chunk is verified whole when its first byte is wanted, and that reader waits for it: 3 ms for 8 MiB in memory, more
from a disk. Read by chunks without any ahead a file took 1.5 times as long as one that is not verified. So whoever
reads the first bytes of a chunk is taken to go on, and the next two are verified meanwhile. A random reader begins at
the start of a chunk once in 64 reads; for it no more than two chunks are read that it may want later.

Of a chunk that was shrunk no part is ever given out before all of it was expanded and its checksum verified. Its reader
asks for 128 KiB at a time, so the chunks expanded last stay in memory.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

import trio
import xxhash

from hfs.mountd.cache.index import Stamp
from hfs.mountd.cache.objects.changes import stamp_of
from hfs.mountd.cache.objects.context import CacheContext
from hfs.mountd.cache.objects.disk import Descriptors
from hfs.mountd.cache.objects.file import StagedFile
from hfs.mountd.cache.objects.reads import WantedRead, read_ahead, read_object, read_objects_ahead
from hfs.mountd.cache.publisher import Findings
from hfs.mountd.core.background import guarded, note_fault, start_guarded
from hfs.mountd.core.buffers import ByteLRU
from hfs.mountd.core.errors import HfsError, StagingError
from hfs.mountd.core.flight import SingleFlight
from hfs.policies.geometry import Extent, chunk_range, split

_HASHED_AT_ONCE_BYTES = 512 << 10
"""A whole chunk of so many bytes is verified on the event loop if it is in memory: 40 us, less than a thread costs."""

_TRIES = 3
"""An object that is changed again and again while it is read is left to itself: the source has the bytes too."""

_EXPANDED_BYTES = 64 << 20
"""Eight readers that each read through a chunk of their own, or one chunk of the largest size there is."""

_AHEAD_CHUNKS = 2
"""One is hashed while the disk brings the other."""

_MOST_AHEAD = 8
"""Chunks at a time, of all readers, half of what is read at once: what does not fit in is verified by its reader."""

ExpandedKey = tuple[int | None, int, int]
"""Object, chunk, and how often its file had lost a chunk."""


class StagedReader:
    """Event loop only. Methods named `_nowait` wait for no disk: they ask the page cache."""

    def __init__(
        self,
        context: CacheContext,
        descriptors: Descriptors,
        findings: Findings,
        nursery: trio.Nursery,
    ) -> None:
        self._context = context
        self._descriptors = descriptors
        self._findings = findings
        self._nursery = nursery
        self._ahead: set[tuple[StagedFile, int]] = set()
        self._nowait_works = True
        self._expanded: ByteLRU[ExpandedKey] = ByteLRU(_EXPANDED_BYTES)
        """Shrunk chunks that were read last, whole. What is here was verified and belongs to one version, so it can
        never be wrong; it is not found any more when its file has lost a chunk, and goes as others come."""
        self._expanding: SingleFlight[ExpandedKey, memoryview] = SingleFlight(nursery)
        self._verifying: dict[tuple[int | None, int], trio.Event] = {}
        """Chunks that are being verified, by object and number: once, however many want them."""

    def read_nowait(self, file: StagedFile, extent: Extent) -> bytearray | None:
        """The bytes of `extent` if its chunks are present and the page cache has all of it, else None."""
        data = bytearray(extent.size)
        return data if self.read_into_nowait(file, extent, memoryview(data)) else None

    def read_into_nowait(self, file: StagedFile, extent: Extent, buffer: memoryview) -> bool:
        """Read `extent` into the first bytes of `buffer`, which is large enough. False if not all is in memory."""
        number = file.object_id
        if number is None or not file.has(extent):
            return False
        indexes = chunk_range(extent, file.chunk_bytes)
        if not file.plain and any(map(file.chunks.stored_bytes, indexes)):
            found = self._expanded_nowait(file, indexes[0], extent)
            if found is None:
                return False
            buffer[: extent.size] = found
            return True
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
            self._reads_nowait(file, extent)
        if known:
            return self._findings.is_as_left(file, number, after)
        if xxhash.xxh3_64_intdigest(buffer[: extent.size]) != file.chunks.checksum(indexes[0]):
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
            return (await self._read_object(file, file.chunk(index), index))[0]

    async def _read_pieces(self, file: StagedFile, extent: Extent) -> bytearray:
        if extent.size <= 0:
            return bytearray()
        pieces = list(split(extent, file.chunk_bytes))
        if len(pieces) > 1 and file.plain and all(piece.index in file.verified for piece in pieces):
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

    def _reads_nowait(self, file: StagedFile, extent: Extent) -> None:
        """Somebody reads `extent` of a file of several chunks."""
        if extent.start % file.chunk_bytes:
            return
        index = extent.start // file.chunk_bytes
        for wanted in range(index + 1, index + 1 + _AHEAD_CHUNKS):
            key = file, wanted
            if wanted in file.present and wanted not in file.verified and key not in self._ahead:
                if len(self._ahead) >= _MOST_AHEAD:
                    return
                self._ahead.add(key)
                start_guarded(self._nursery, "staging: verifying ahead", _verify_ahead, self, self._ahead, *key)

    async def will_need(self, extents: Sequence[tuple[StagedFile, Extent]]) -> None:
        """Have staged bytes read into the page cache, where the kernel reads the objects by itself. Never fails."""
        wanted = [
            (file.object_id, part)
            for file, extent in extents
            if file.object_id is not None
            for part in _on_disk(file, extent)
        ]
        await self._context.threads.read_ahead(read_ahead, self._context.disk, wanted)

    async def objects_will_need(self, numbers: Sequence[int], at_most: int) -> int:
        """Have all bytes of these objects read into the page cache, in their order; of how many. Never fails."""
        return await self._context.threads.read_ahead(read_objects_ahead, self._context.disk, numbers, at_most)

    def _expanded_nowait(self, file: StagedFile, index: int, part: Extent) -> memoryview | None:
        """`part` of one shrunk chunk, if the chunk was expanded not long ago."""
        data = self._expanded.get(_expanded_key(file, index))
        if data is None or part.end > file.chunk(index).end:
            return None
        return self._part_of(file, index, data, part)

    async def _read_expanding(self, file: StagedFile, index: int, part: Extent) -> bytearray:
        """`part` of one shrunk chunk, which is expanded once however many ask for it."""
        found = self._expanded_nowait(file, index, part)
        if found is None:
            flight = self._expanding.run(_expanded_key(file, index), partial(self._expand, file, index))
            found = self._part_of(file, index, await flight, part)
        return bytearray(found)

    def _part_of(self, file: StagedFile, index: int, data: memoryview, part: Extent) -> memoryview:
        """`part` of the file, which lies in chunk `index`, whose bytes are `data`."""
        chunk, key = file.chunk(index), _expanded_key(file, index)
        if part.end == chunk.end:
            self._expanded.goes_first(key)  # whoever read it has all of it
        else:
            self._expanded.touch(key)
        return data[part.start - chunk.start : part.end - chunk.start]

    async def _expand(self, file: StagedFile, index: int) -> memoryview:
        data = memoryview((await self._read_object(file, file.chunk(index), index))[0])
        self._expanded.keep(_expanded_key(file, index), data)
        return data

    async def _read_piece(self, file: StagedFile, index: int, part: Extent) -> bytearray:
        """`part` of one chunk."""
        if file.chunks.stored_bytes(index):
            return await self._read_expanding(file, index, part)
        if part.size and part.end < file.size:
            self._reads_nowait(file, part)
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
        number, suspicions = file.object_id, file.suspicions
        data, after = await self._read_object(file, extent)
        # One that was verified again meanwhile has the right stamp, and these bytes may be from before.
        as_left = (
            number is not None and file.suspicions == suspicions and self._findings.is_as_left(file, number, after)
        )
        return data if as_left else None

    async def _read_verifying(self, file: StagedFile, index: int, part: Extent) -> bytearray:
        key = file.object_id, index
        self._verifying[key] = trio.Event()
        try:
            return (await self._read_object(file, file.chunk(index), index, part))[0]
        finally:
            self._verifying.pop(key).set()

    async def _read_object(
        self, file: StagedFile, extent: Extent, whole: int | None = None, part: Extent | None = None
    ) -> tuple[bytearray, Stamp | None]:
        """The bytes, and how the object was found behind them. Of the chunk `whole` the checksum is verified."""
        number, changes = file.object_id, file.changes
        known, suspicions = file.stamp is not None, file.suspicions
        if number is None or not file.has(extent):
            raise StagingError("not staged")
        wanted = WantedRead(number, file.size, extent, part=part)
        if whole is not None:
            row = file.chunks.row(whole)
            wanted = WantedRead(number, file.size, extent, row.checksum, row.stored_bytes, part)
        if whole is not None and file.stamp is None:
            self._descriptors.drop(number)  # by its name it may be another one now
        held = self._descriptors.acquire(number)
        try:
            fd, expands = held.fd if held else None, wanted.stored_bytes > 0
            answer = await self._context.threads.read(read_object, self._context.disk, fd, wanted, expands=expands)
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
            steady = answer.before == answer.after or (known and file.suspicions == suspicions)
            self._findings.right(file, number, whole, answer.after, steady=steady, by_name=answer.opened_fd is not None)
        return answer.data, answer.after


async def _verify_ahead(
    reader: StagedReader, under_way: set[tuple[StagedFile, int]], file: StagedFile, index: int
) -> None:
    try:
        with suppress(StagingError):  # forgotten, or gone: its reader will see
            await reader.verify(file, index)
    finally:
        under_way.discard((file, index))


def _expanded_key(file: StagedFile, index: int) -> ExpandedKey:
    return file.object_id, index, file.changes


def _on_disk(file: StagedFile, extent: Extent) -> list[Extent]:
    """Where the bytes of `extent` lie in the object; of chunks that were shrunk all."""
    if file.plain:
        return [extent]
    found = []
    for piece in split(extent, file.chunk_bytes):
        stored_bytes, begin = file.chunks.stored_bytes(piece.index), piece.index * file.chunk_bytes
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


_STREAMS = 4
"""Chunks of a file at a time: two are hashed while two come from the disk."""

_MOST_FILES = 256
"""Files that are asked for and wait; further ones are asked for again when they are opened again."""


class Verifying:
    """Files that somebody wants passed through and of which nobody knows enough: objects without their stamp, or from
    before there were stamps. Such a one is read by chunks meanwhile, each verified when it is first used. Once all of
    them were found right the file is sound, and its new stamp is noted for later daemons.

    One after the other. Event loop only."""

    def __init__(self, reader: StagedReader, nursery: trio.Nursery) -> None:
        self._reader = reader
        self._nursery = nursery
        self._wanted: SingleFlight[StagedFile, bool] = SingleFlight(nursery)
        self._one_at_a_time = trio.Lock()

    async def wait_verified(self, file: StagedFile) -> None:
        """Have the chunks of `file` verified that were not yet; who gives up leaves that going on. Never fails."""
        if file in self._wanted or len(self._wanted) < _MOST_FILES:
            with suppress(HfsError):  # the daemon is stopping
                await self._wanted.run(file, partial(guarded, "staging: verifying", self._verify, file))

    def verify_soon(self, file: StagedFile) -> None:
        """Have it done, and do not wait for it."""
        start_guarded(self._nursery, "staging: verifying", self.wait_verified, file)

    async def _verify(self, file: StagedFile) -> None:
        async def stream() -> None:
            while left:
                with suppress(StagingError):  # it is forgotten, or the file has gone
                    await self._reader.verify(file, left.pop())

        async with self._one_at_a_time, trio.open_nursery() as nursery:
            left = [index for index in file.present if index not in file.verified]
            left.reverse()
            for _ in range(min(_STREAMS, len(left))):
                nursery.start_soon(stream)
