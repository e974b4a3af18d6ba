"""Serving peers: the bytes that another node asks for, with their checksum.

What is here, on disk or in memory, is given; else the chunk is fetched once, for whoever wants it here and there, and
staged. Implements `peers.Answers`. No owner is asked in turn, and a fetch under way is joined only where this node owns
the chunk, since that of another node may be waiting for the one that asks. So may any for a new owner, which wants a
whole chunk only if it is here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import xxhash

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.core.attributes import Version, is_lasting
from hfs.mountd.core.errors import VersionChanged, shown_path
from hfs.mountd.fetch.chunks.fetcher import Fetcher, Goal
from hfs.mountd.fetch.chunks.page_pusher import Push
from hfs.mountd.fetch.resolver import Ensured, Resolver
from hfs.mountd.namespace import Namespace, Node
from hfs.mountd.peers import Bytes
from hfs.mountd.source import Source
from hfs.policies.geometry import Extent

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
        resolver: Resolver,
        source: Source,
        owned_here: Callable[[bytes, int], bool],
        run_in_thread: Callable[..., Awaitable[Any]],
        wait_fetched: Callable[[Node, bytes], Awaitable[None]],
    ) -> None:
        """`wait_fetched`: as that of `DirectoryDelegations`."""
        self._namespace = namespace
        self._cache = cache
        self._fetcher = fetcher
        self._resolver = resolver
        self._knows = source.file_systems.knows
        self._is_uncertain = source.second_looks.holds
        self._owned_here = owned_here
        self._run_in_thread = run_in_thread
        self._wait_fetched = wait_fetched

    async def bytes_of(
        self, path: bytes, version: Version, chunk_bytes: int, extent: Extent, *, here_only: bool
    ) -> Bytes | None:
        """See `Answers`. Raises HfsError."""
        if not 0 <= extent.start <= extent.end <= version.size:
            return None
        if not self._knows(version.source_id):  # or these are other files
            if here_only or not is_lasting(version.source_id):
                return None
            # Nobody may have looked below that file system's mount here yet.
            await self._namespace.lookups.resolve(path)
            if not self._knows(version.source_id):
                return None
        file = self._cache.files.get_nowait(version, path) or await self._cache.files.get(version, path)
        if file.chunk_bytes != chunk_bytes or extent.start >= version.size:
            return None
        if self._is_uncertain(version):
            return None  # whoever gets it would commit it
        index = extent.start // chunk_bytes
        if extent.end > file.chunk(index).end:
            return None
        if not extent.size:
            return _NOTHING if await self._stage(path, file, index) else None
        whole = extent == file.chunk(index)
        found = await self._resolver.get_here(file, extent)
        if found is not None:
            if found.tier == "staged" and whole and index in file.present:
                return Bytes(memoryview(found.data), file.chunks.checksum(index))
            return await self._hashed(memoryview(found.data))
        mine, coming = self._owned_here(path, index), self._fetcher.is_coming(version, index)
        if (here_only and (whole or not (mine and coming))) or (coming and not mine):
            return None
        node = await self._resolve(path)
        if node.version != version:
            raise VersionChanged(f"{shown_path(path)} is another version here")
        if whole and index in file.present:  # the data plane was fetching it
            return Bytes(memoryview((await self._resolver.get(node, file, extent)).data), file.chunks.checksum(index))
        chunk = await self._resolver.get_for_peer(node, file, index)
        begin = file.chunk(index).start
        return (
            None
            if self._is_uncertain(version)
            else await self._hashed(chunk[extent.start - begin : extent.end - begin])
        )

    async def _stage(self, path: bytes, file: StagedFile, index: int) -> bool:
        if self._resolver.has(file, index, Goal.STAGED):
            return True
        node = await self._resolve(path)
        if node.version != file.version:
            raise VersionChanged(f"{shown_path(path)} is another version here")
        ensured = await self._resolver.ensure(node, file, index, Goal.STAGED, push=Push.NEVER, soon=True)
        return ensured is not Ensured.REFUSED

    async def _resolve(self, path: bytes) -> Node:
        directory, _, name = path.rpartition(b"/")
        await self._wait_fetched(await self._namespace.lookups.resolve(directory), name)
        return await self._namespace.lookups.resolve(path)

    async def _hashed(self, data: memoryview) -> Bytes:
        if len(data) < _HASH_IN_THREAD_BYTES:
            return Bytes(data, xxhash.xxh3_64_intdigest(data))
        return Bytes(data, await self._run_in_thread(xxhash.xxh3_64_intdigest, data))
