"""A cache in memory: what `fetcher` and `read_path` ask of the parts of `mountd.cache.Cache`, without disk or threads.

One object stands for all the parts.

`would_block` makes every read that may not wait answer None; `broken` makes every read fail; `room_bytes` bounds what
is admitted; with `in_memory` a look-up never waits. A put is written when `write()` is called, or at once with
`at_once`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import trio

from hfs.mountd.cache.objects.file import StagedFile
from hfs.mountd.core.attributes import Attributes, Version
from hfs.mountd.core.errors import StagingError
from hfs.policies.geometry import Extent


class FakeEvictor:
    """Evicts nothing of itself."""

    def refused(self, wanted_bytes: int, idle_s: int) -> None:
        pass


class FakeStaging:
    """Holds the bytes of chunks by (version, index)."""

    def __init__(self, chunk_bytes: int) -> None:
        self.chunk_bytes = chunk_bytes
        self.files = self.reader = self.writer = self.publisher = self.admission = self
        self.committer = self.evictions = self.room = self.attributes = self
        self.noted: list[tuple[StagedFile, Attributes]] = []
        self.known: dict[Version, StagedFile] = {}
        self.chunks: dict[tuple[Version, int], bytes] = {}
        self.queue: list[tuple[StagedFile, int, memoryview, Callable[[], None] | None]] = []
        self.at_once = True
        self.directory_fd = 7
        self.in_memory = False
        self.would_block = False
        self.broken = False
        self.room_bytes = 1 << 60
        self.pins = 0
        self.pinned: set[int] = set()
        self.is_empty = True
        self.capacity_bytes = 1 << 60
        self._numbers = count(1)
        self.evictor = FakeEvictor()
        self.ahead: list[tuple[bytes, Extent]] = []

    def note(self, file: StagedFile, _directory: Attributes, _name: bytes, attributes: Attributes) -> None:
        self.noted.append((file, attributes))

    def get_nowait(self, version: Version, path: bytes = b"") -> StagedFile | None:
        file = self.known.get(version)
        if file is None and self.in_memory:
            file = self.known[version] = StagedFile(version, self.chunk_bytes, path)
        if file is not None and path:
            file.path = path
        return file

    async def get(self, version: Version, path: bytes = b"") -> StagedFile:
        await trio.lowlevel.checkpoint()
        return self.known.setdefault(version, StagedFile(version, self.chunk_bytes, path))

    async def load(self, versions: list[Version]) -> None:
        await trio.lowlevel.checkpoint()

    def _bytes(self, file: StagedFile, extent: Extent) -> bytearray:
        index = extent.start // file.chunk_bytes
        begin = index * file.chunk_bytes
        data = self.chunks[(file.version, index)][extent.start - begin : extent.end - begin]
        assert len(data) == extent.size, (extent, len(data))
        return bytearray(data)

    def read_nowait(self, file: StagedFile, extent: Extent) -> bytearray | None:
        return None if self.would_block or self.broken else self._bytes(file, extent)

    def read_into_nowait(self, file: StagedFile, extent: Extent, buffer: memoryview) -> bool:
        data = self.read_nowait(file, extent)
        if data is None:
            return False
        buffer[: len(data)] = data
        return True

    async def read(self, file: StagedFile, extent: Extent) -> bytearray:
        await trio.lowlevel.checkpoint()
        if self.broken:
            file.drop(extent.start // file.chunk_bytes)
            raise StagingError("broken")
        return self._bytes(file, extent)

    async def read_chunk(self, file: StagedFile, index: int) -> bytearray:
        return await self.read(file, file.chunk(index))

    def is_in_memory_nowait(self, file: StagedFile, offset: int) -> bool:
        return not (self.would_block or self.broken)

    def admits_nowait(self, file: StagedFile, size: int) -> bool:
        return size <= self.room_bytes

    def fits_nowait(self, size: int) -> bool:
        return size <= self.room_bytes

    def refusal(self, size: int) -> StagingError:
        return StagingError("no room")

    def put_nowait(
        self,
        file: StagedFile,
        index: int,
        data: memoryview,
        on_done: Callable[[], None] | None = None,
        *,
        sparse: bool = False,
    ) -> bool:
        if len(data) > self.room_bytes:
            return False
        self.room_bytes -= len(data)
        if file.object_id is None:
            file.object_id = next(self._numbers)
        self.queue.append((file, index, data, on_done))
        if self.at_once:
            trio.lowlevel.current_trio_token().run_sync_soon(self.write)
        return True

    def write(self) -> None:
        for file, index, data, on_done in self.queue:
            self.chunks[(file.version, index)] = bytes(data)
            file.present.add(index)
            if on_done is not None:
                on_done()
        self.queue.clear()

    def publish_nowait(self, file: StagedFile, use: Callable[[int], bool]) -> bool:
        return use(-1)

    async def is_sound(self, file: StagedFile) -> bool:
        await trio.lowlevel.checkpoint()
        return True

    async def will_need(self, extents: list[tuple[StagedFile, Extent]]) -> None:
        await trio.lowlevel.checkpoint()
        self.ahead += [(file.path, extent) for file, extent in extents]

    async def objects_will_need(self, numbers: list[int], at_most: int) -> int:
        files = {file.object_id: file for file in self.known.values()}
        await self.will_need([(files[number], Extent(0, files[number].size)) for number in numbers])
        return min(at_most, sum(files[number].size for number in numbers))

    def shortfall_bytes(self, size: int) -> int:
        return max(0, size - self.room_bytes)

    def limit_bytes(self) -> int:
        return self.capacity_bytes

    async def evict_objects(self, numbers: list[int]) -> dict[int, int]:
        await trio.lowlevel.checkpoint()
        gone = {}
        for file in self.known.values():
            if file.object_id in numbers:
                gone[file.object_id] = sum(map(file.chunk_room_bytes, file.present)) + file.overhead_bytes()
                for index in list(file.present):
                    self.room_bytes += len(self.chunks.pop((file.version, index)))
                file.detach()
        return gone

    async def wait_committed(self) -> None:
        await trio.lowlevel.checkpoint()

    def pin(self, file: StagedFile) -> None:
        self.pins += 1

    def unpin(self, file: StagedFile) -> None:
        self.pins -= 1

    async def supersede(self, version: Version) -> None:
        self.known.pop(version, None)
