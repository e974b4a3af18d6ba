"""What a prefetch worker does with one request of the queue: a chunk of a large file, or siblings of a small one.

Implements `prefetch.Fetches` over resolver, small files and sibling policy. Never raises for what siblings lack; errors
of a chunk are the worker's to count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.fetch.chunks.fetcher import FetchTurns, Goal
from hfs.mountd.fetch.chunks.owners import Owners
from hfs.mountd.fetch.chunks.page_pusher import Push
from hfs.mountd.fetch.misses import Misses
from hfs.mountd.fetch.resolver import Ensured, Resolver
from hfs.mountd.fetch.sibling_watch import SiblingWatch
from hfs.mountd.fetch.small_files import SmallFiles
from hfs.mountd.fetch.small_pipeline import Become, Place, Small
from hfs.mountd.namespace import Node
from hfs.mountd.source import Source


class SiblingFetches:
    """Siblings of small files that are being read. Event loop only."""

    def __init__(self, resolver: Resolver, small_files: SmallFiles, siblings: SiblingWatch, cache: Cache) -> None:
        self._resolver = resolver
        self._small_files = small_files
        self._siblings = siblings
        self._cache = cache

    async def fetch(self, places: Sequence[Place]) -> int:
        """Have them staged, unless somebody opens them before; how many were fetched."""
        left, fetched = dict.fromkeys(places), 0
        try:
            outcomes = await self._small_files.stage(places, Goal.STAGED, push=True, wanted=self._siblings.is_wanted)
            for place, outcome in zip(places, outcomes, strict=True):
                if not isinstance(outcome, Small) or outcome.become is Become.HERE or outcome.size is None:
                    continue
                if outcome.become is Become.FETCHED:
                    self._siblings.fetched(*place, outcome.size)
                elif not self._siblings.admit(*place, outcome.size) or not await self._one_chunk(outcome.node):
                    continue
                fetched += 1
                del left[place]
        finally:
            for place in left:
                self._siblings.drop(*place)
        return fetched

    async def _one_chunk(self, node: Node | None) -> bool:
        """A sibling that is too large to be fetched with others."""
        if node is None or node.version is None:
            return False
        file = await self._cache.files.get(node.version, node.path)
        return await self._resolver.ensure(node, file, 0, Goal.STAGED) is Ensured.FETCHED

    def next(self, limit: int) -> list[Place]:
        """What the sibling policy would fetch now. None while enough of it waits for a thread: what would find no place
        is not given again."""
        limit = min(limit, self._small_files.places)
        return self._siblings.next(limit) if limit else []


@dataclass(eq=False, repr=False)
class FetchesAhead:
    """Event loop only."""

    _resolver: Resolver
    _owners: Owners
    _misses: Misses
    _siblings: SiblingFetches
    _cache: Cache
    _source: Source
    _turns: FetchTurns
    _metrics: Metrics

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
