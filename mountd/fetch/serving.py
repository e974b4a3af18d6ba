"""Serving peers: the bytes that another node wishes for, from the first that has them.

    staged   on NVMe, its checksum verified
    held     in memory, not staged yet
    coming   a fetch under way: join it
    source   read once, for whoever wants it here and there, and staged

Implements `peers_answering.Answers`. No peer is asked in turn, and a fetch under way is joined only where this node is
owner, since that of another node may be waiting for the one that asks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import xxhash

from mountd.base.errors import StagingError, VersionChanged
from mountd.base.version import Version, is_lasting
from mountd.cache import Cache, StagedFile
from mountd.fetch.fetcher import Fetcher, Push
from mountd.namespace import Namespace
from mountd.peers import Bytes
from mountd.source import Source
from policies.geometry import Extent

__all__ = ["Serving"]

_NOTHING = Bytes(memoryview(b""), 0)
_HASH_IN_THREAD_BYTES = 256 << 10
"""20 us of xxh3: less than the way into a thread and back."""


class Serving:
    """Event loop only. `owned_here(path, index)`: whether this node owns a chunk."""

    def __init__(
        self,
        namespace: Namespace,
        cache: Cache,
        fetcher: Fetcher,
        source: Source,
        owned_here: Callable[[bytes, int], bool],
        run_in_thread: Callable[..., Awaitable[Any]],
    ) -> None:
        self._namespace = namespace
        self._cache = cache
        self._fetcher = fetcher
        self._knows = source.file_systems.knows
        self._doubts = source.doubts.holds
        self._owned_here = owned_here
        self._run_in_thread = run_in_thread

    async def bytes_of(
        self, path: bytes, version: Version, chunk_bytes: int, extent: Extent, *, here_only: bool
    ) -> Bytes | None:
        """See `Answers`. Raises HfsError."""
        if not 0 <= extent.start <= extent.end <= version.size:
            return None
        if not self._knows(version.source_id):  # or these are other files
            if here_only or not is_lasting(version.source_id):
                return None
            await self._namespace.lookups.resolve(
                path
            )  # nobody may have looked below that file system's mount here yet
            if not self._knows(version.source_id):
                return None
        file = self._cache.files.get_nowait(version, path) or await self._cache.files.get(version, path)
        if file.chunk_bytes != chunk_bytes or extent.start >= version.size:
            return None
        if self._doubts(version):
            return None  # whoever gets it would commit it
        index = extent.start // chunk_bytes
        if extent.end > file.chunk(index).end:
            return None
        if not extent.size:
            return _NOTHING if await self._stage(path, file, index) else None
        if index in file.present:
            try:
                return await self._staged(file, index, extent)
            except StagingError:
                pass  # counted there
        held = self._fetcher.held_nowait(version, index)
        if held is not None:
            return await self._part(file, index, extent, held)
        mine, coming = self._owned_here(path, index), self._fetcher.is_coming(version, index)
        if (here_only and not (mine and coming)) or (coming and not mine):
            return None
        node = await self._namespace.lookups.resolve(path)
        if node.version != version:
            raise VersionChanged(f"{path!r} is another version here")
        chunk = await self._fetcher.for_peer(node, file, index)
        return None if self._doubts(version) else await self._part(file, index, extent, chunk)

    async def _stage(self, path: bytes, file: StagedFile, index: int) -> bool:
        if index in file.present or self._fetcher.is_coming(file.version, index):
            return True
        if not self._cache.admission.admits_nowait(file, file.chunk(index).size):
            return False
        node = await self._namespace.lookups.resolve(path)
        if node.version != file.version:
            raise VersionChanged(f"{path!r} is another version here")
        await self._fetcher.ahead(node, file, index, push=Push.NEVER, unless_held=True)
        return True

    async def _staged(self, file: StagedFile, index: int, extent: Extent) -> Bytes:
        if extent == file.chunk(index):
            data = memoryview(await self._cache.reader.read_chunk(file, index))
            return Bytes(data, file.checksum(index)) if index in file.present else await self._hashed(data)
        return await self._hashed(memoryview(await self._cache.reader.read(file, extent)))

    async def _part(self, file: StagedFile, index: int, extent: Extent, chunk: memoryview) -> Bytes:
        begin = file.chunk(index).start
        return await self._hashed(chunk[extent.start - begin : extent.end - begin])

    async def _hashed(self, data: memoryview) -> Bytes:
        if len(data) < _HASH_IN_THREAD_BYTES:
            return Bytes(data, xxhash.xxh3_64_intdigest(data))
        return Bytes(data, await self._run_in_thread(xxhash.xxh3_64_intdigest, data))
