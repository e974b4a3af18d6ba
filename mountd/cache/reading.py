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
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import trio
import xxhash

from mountd.base.errors import HfsError, StagingError
from mountd.cache.index import Stamp
from mountd.cache.objects import (
    OUR_LIMITS,
    CacheContext,
    Changed,
    Damaged,
    Decoded,
    Descriptors,
    StagedFile,
    Undecodable,
    WantedRead,
    is_ours,
    lend_object,
    lend_opened,
    read_ahead,
    read_object,
    stamp_of,
)
from mountd.cache.reclaimer import Reclaimer
from mountd.cache.verifying_ahead import VerifyingAhead
from mountd.core.background import note_fault
from policies.geometry import Extent, chunk_range, split

__all__ = ["StagedReading", "foreseen"]

Value = TypeVar("Value")

_HASHED_AT_ONCE_BYTES = 512 << 10
"""A whole chunk of so many bytes is verified on the event loop if it is in memory: 40 us, less than a thread costs."""

_TRIES = 3
"""An object that is changed again and again while it is read is left to itself: the source has the bytes too."""


class StagedReading:
    """See the file's story."""

    def __init__(self, context: CacheContext, descriptors: Descriptors, reclaimer: Reclaimer) -> None:
        self._context = context
        self._descriptors = descriptors
        self._reclaimer = reclaimer
        self._nowait_works = True
        self._decoded = Decoded()
        self._verifying: dict[tuple[int | None, int], trio.Event] = {}
        """Chunks that are being verified, by object and number: once, however many want them."""
        self.verifying_ahead = VerifyingAhead(self.verify)

    def read_nowait(self, file: StagedFile, extent: Extent) -> bytearray | None:
        """See Staging.read_nowait."""
        data = bytearray(extent.size)
        return data if self.read_into_nowait(file, extent, memoryview(data)) else None

    def read_into_nowait(self, file: StagedFile, extent: Extent, buffer: memoryview) -> bool:
        """See Staging.read_into_nowait."""
        number = file.object_id
        if number is None or not file.has(extent):
            return False
        indexes = chunk_range(extent, file.chunk_bytes)
        if file.encoded and any(map(file.stored_bytes, indexes)):
            return self._decoded_nowait(file, extent, buffer)
        known = all(index in file.verified for index in indexes)
        if not known and (extent != file.chunk(indexes[0]) or extent.size > _HASHED_AT_ONCE_BYTES):
            return False
        fd = self._opened_nowait(number)
        if fd is None:
            return False
        try:
            if not self._context.disk.read_cached(fd, extent.start, buffer[: extent.size]):
                return False
            after = stamp_of(fd, file.size)
        except OSError as error:
            self._nowait_works = self._nowait_works and error.errno != errno.EOPNOTSUPP  # tmpfs
            return False  # the thread that reads next meets the error again and deals with it
        if extent.end < file.size:
            self.verifying_ahead.reads_nowait(file, extent)
        if known:
            return self._is_as_left(file, number, after)
        if xxhash.xxh3_64_intdigest(buffer[: extent.size]) != file.checksum(indexes[0]):
            return False  # as above
        self._verified(file, number, indexes[0], after, steady=True, by_name=False)
        return True

    def _opened_nowait(self, number: int) -> int | None:
        if not self._nowait_works:
            return None
        fd = self._descriptors.get_nowait(number)
        if fd is None:
            fd = self._context.disk.open_cached(number)
            if fd is not None:
                self._descriptors.put(number, fd)
        return fd

    def is_in_memory_nowait(self, file: StagedFile, offset: int) -> bool:
        """See Staging.is_in_memory_nowait."""
        fd = self._opened_nowait(file.object_id) if file.object_id is not None else None
        try:
            return fd is not None and self._context.disk.read_cached(fd, offset, memoryview(bytearray(1)))
        except OSError:
            return False

    async def read(self, file: StagedFile, extent: Extent) -> bytearray:
        """See Staging.read."""
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

    async def read_chunk(self, file: StagedFile, index: int) -> bytearray:
        """See Staging.read_chunk."""
        return await self._read(file, file.chunk(index), index)

    async def verify(self, file: StagedFile, index: int) -> None:
        """See that a present chunk is right. Raises StagingError; a damaged one is forgotten."""
        await self._read_piece(file, index, Extent(file.chunk(index).start, file.chunk(index).start))

    def is_sound_nowait(self, file: StagedFile) -> bool | None:
        """See Verifying.is_sound_nowait."""
        number = file.object_id
        if number is None or not file.sound:
            return False
        fd = self._context.disk.open_cached(number)
        if fd is None:
            return None
        try:
            return self._is_as_left(file, number, stamp_of(fd, file.size))
        finally:
            self._context.disk.close_fd(fd)

    async def is_sound(self, file: StagedFile) -> bool:
        """See Verifying.is_sound."""
        sound = self.is_sound_nowait(file)
        if sound is None:
            try:
                await self.lend(file, int)
            except (StagingError, OSError):  # it cannot even be opened: who reads it through us meets that again
                return False
        return sound is not False

    def lend_nowait(self, file: StagedFile, use: Callable[[int], Value]) -> Value | None:
        """See Staging.lend_nowait."""
        number = file.object_id
        fd = self._context.disk.open_cached(number) if number is not None and file.durable and file.sound else None
        if fd is None or number is None:
            return None
        try:
            return lend_opened(self._context.disk, fd, file.size, file.stamp, use)
        except Changed as changed:
            self._is_as_left(file, number, changed.found)
            return None

    async def lend(self, file: StagedFile, use: Callable[[int], Value]) -> Value:
        """See Staging.lend."""
        number, stamp = file.object_id, file.stamp
        if number is None or not (file.durable and file.sound):
            raise StagingError("not staged as a whole, or not known to be right")
        try:
            return await self._context.threads.read(lend_object, self._context.disk, number, file.size, stamp, use)
        except Changed as changed:
            if file.object_id == number and file.stamp == stamp:
                self._is_as_left(file, number, changed.found)
            raise StagingError(str(changed)) from None
        except FileNotFoundError as error:
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
        await self._context.threads.read(read_ahead, self._context.disk, wanted)

    async def lend_empty(self, use: Callable[[int], Value]) -> Value:
        """See Staging.lend_empty."""
        try:
            fd = await self._context.threads.read(self._context.disk.open_empty)
        except OSError as error:
            raise StagingError(str(error)) from error
        try:
            return await self._context.threads.read(use, fd)
        finally:
            self._context.disk.close_fd(fd)

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
            self.verifying_ahead.reads_nowait(file, part)
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
        as_left = number is not None and file.doubts == doubts and self._is_as_left(file, number, after)
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
            self._let_go(number)  # by its name it may be another one now
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
                self._context.disk.close_fd(answer.opened_fd)
        if file.changes != changes:
            raise StagingError("no longer staged")
        if answer.data is None:
            self._failed(file, number, extent, answer.error)
            raise StagingError(f"a staged file cannot be read: {answer.error}") from answer.error
        if wanted.stored_bytes:
            self._context.metrics.add("staged_decoded_chunks")
            self._context.metrics.add("staged_decoded_bytes", extent.size)
        elif whole is not None:
            steady = answer.before == answer.after or (known and file.doubts == doubts)
            self._verified(file, number, whole, answer.after, steady=steady, by_name=answer.opened_fd is not None)
        return answer.data, answer.after

    def _verified(
        self, file: StagedFile, number: int, index: int, found: Stamp | None, *, steady: bool, by_name: bool
    ) -> None:
        """Chunk `index` was found right, in an object that then had the stamp `found`.

        `steady`: nobody else has changed it since it was read. `by_name`: it was opened just now.
        """
        as_left = self._is_as_left(file, number, found)
        if file.stamp is None and file.changing is None and steady and by_name:
            file.stamp, as_left = found, True  # what is known of it begins here
        if as_left and steady and file.stamp is not None and index in file.present:
            if index not in file.verified:
                self._context.metrics.add("staged_verified_bytes", file.chunk(index).size)
            file.verify(index)

    def _is_as_left(self, file: StagedFile, number: int, stamp: Stamp | None) -> bool:
        """Whether an object that was found with this stamp is as we left it. If not, its chunks are verified anew."""
        if is_ours(file, stamp):
            return True
        self._doubt(file, number)
        if stamp is None:
            self._failed(file, number, Extent(0, file.size), Damaged(errno.EIO, "it has another length"))
        return False

    def _doubt(self, file: StagedFile, number: int) -> None:
        if file.stamp is not None:
            self._context.metrics.add("staged_changed")
            self._let_go(number)
        file.doubt()

    def _let_go(self, number: int) -> None:
        fd = self._descriptors.discard(number)
        if fd is not None:
            self._context.disk.close_fd(fd)

    def _failed(self, file: StagedFile, number: int, extent: Extent, error: OSError | None) -> None:
        if file.object_id != number:
            return
        if error is not None and error.errno in OUR_LIMITS:
            self._context.health.broken(f"reading staged files: {error}")
            return
        self._context.health.broken(f"staged bytes of {file.path!r} (object {number}) cannot be read: {error}")
        if isinstance(error, FileNotFoundError):
            self._reclaimer.lost(file)
            return
        if isinstance(error, Damaged | Undecodable):
            self._context.metrics.add("staged_checksum_failures")
        self._reclaimer.give_up(file, list(chunk_range(extent, file.chunk_bytes)))


def _on_disk(file: StagedFile, extent: Extent) -> list[Extent]:
    """Where the bytes of `extent` lie in the object; of encoded chunks all."""
    if not file.encoded:
        return [extent]
    found = []
    for piece in split(extent, file.chunk_bytes):
        stored_bytes, begin = file.stored_bytes(piece.index), piece.index * file.chunk_bytes
        found.append(Extent(begin, begin + stored_bytes) if stored_bytes else Extent(piece.start, piece.end))
    return found


async def foreseen(read: Awaitable[Value]) -> Value:
    """What `read` gives. Raises StagingError whatever it raises: the source has the bytes too."""
    try:
        return await read
    except HfsError:
        raise
    except Exception as error:
        note_fault("read of staged bytes", error)
        raise StagingError(f"staged bytes cannot be read: {error!r}") from error
