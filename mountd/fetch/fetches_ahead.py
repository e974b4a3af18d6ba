"""What a prefetch worker does with one request of the queue: a chunk of a large file, or siblings of a small one.

Implements `prefetch.Fetches` over resolver, small files and sibling policy. Never raises for what siblings lack; errors
of a chunk are the worker's to count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.fetch.chunks.fetcher import Goal
from hfs.mountd.fetch.chunks.owners import Owners
from hfs.mountd.fetch.chunks.page_pusher import Push
from hfs.mountd.fetch.chunks.turns import FetchTurns
from hfs.mountd.fetch.misses import Misses
from hfs.mountd.fetch.resolver import Ensured, Resolver
from hfs.mountd.fetch.sibling_fetches import SiblingFetches
from hfs.mountd.fetch.small_files import Place
from hfs.mountd.namespace import Node
from hfs.mountd.source import Source


class FetchesAhead:
    """Event loop only."""

    def __init__(
        self,
        resolver: Resolver,
        owners: Owners,
        misses: Misses,
        siblings: SiblingFetches,
        cache: Cache,
        source: Source,
        turns: FetchTurns,
        metrics: Metrics,
    ) -> None:
        self._resolver = resolver
        self._owners = owners
        self._misses = misses
        self._siblings = siblings
        self._cache = cache
        self._source = source
        self._turns = turns
        self._metrics = metrics

    async def prefetch_chunk(
        self, node: Node, file: StagedFile, index: int, began: Callable[[], None], *, soon: bool
    ) -> None:
        """One chunk of an open file. `soon`: its reader comes in a moment. `began`: see `Fetches`."""
        if self._resolver.is_here(file, index):
            return
        if not soon and not self._owners.caches_locally(node.path, index):
            began()
            await self._owners.tell(node, file, index)
            return
        push = Push.WHOLE if self._misses.is_random(file) else Push.AHEAD
        if self._misses.is_guessed(file, index):
            push = Push.NEVER
        ensured = await self._resolver.ensure(node, file, index, Goal.HERE, push=push, soon=soon, began=began)
        if ensured is Ensured.FETCHED:
            self._metrics.add("prefetched_chunks")

    async def prefetch_siblings(self, places: Sequence[Place]) -> int:
        """Files whose siblings are being read; how many were fetched."""
        return await self._siblings.fetch(places)

    def next_siblings(self, limit: int) -> list[Place]:
        """What the sibling policy would fetch now."""
        return self._siblings.next(limit)

    def demand_waits(self) -> bool:
        """True while a demand read waits for the source, here or at a neighbour: a worker that waited for its turn
        would be missing for the windows of readers."""
        return self._source.threads.demand_waits or not self._turns.is_free

    def worth_filling(self, file: StagedFile) -> bool:
        """False once the cache has no room for the rest of `file`."""
        return self._cache.admission.admits_nowait(file, file.chunk_bytes)
