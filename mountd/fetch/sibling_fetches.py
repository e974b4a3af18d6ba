"""Siblings of small files that are being read: fetched by the data plane where that may, else one by one.

Never raises for what a file lacks. Event loop only.
"""

from __future__ import annotations

from collections.abc import Sequence

from hfs.mountd.cache import Cache
from hfs.mountd.fetch.chunks.fetcher import Goal
from hfs.mountd.fetch.resolver import Ensured, Resolver
from hfs.mountd.fetch.sibling_watch import SiblingWatch
from hfs.mountd.fetch.small_files import Become, Place, Small, SmallFiles
from hfs.mountd.fetch.small_pipeline import SmallPipeline
from hfs.mountd.namespace import Node


class SiblingFetches:
    def __init__(
        self,
        resolver: Resolver,
        small_files: SmallFiles,
        siblings: SiblingWatch,
        cache: Cache,
        pipeline: SmallPipeline,
    ) -> None:
        self._resolver = resolver
        self._small_files = small_files
        self._siblings = siblings
        self._cache = cache
        self._pipeline = pipeline

    async def fetch(self, places: Sequence[Place]) -> int:
        """Files whose siblings are being read; how many were fetched. None is asked for before."""
        for directory in {directory for directory, _ in places if not directory.lent}:
            await self._pipeline.lend(directory)
        places = [place for place in places if not place[0].lent] + self._pipeline.ahead(
            [place for place in places if place[0].lent]
        )
        left, fetched = dict.fromkeys(places), 0
        try:
            outcomes = await self._small_files.stage(places, Goal.STAGED, push=True, wanted=self._siblings.is_wanted)
            for place, outcome in zip(places, outcomes, strict=True):
                if not isinstance(outcome, Small) or outcome.become is Become.HERE:
                    continue
                size = outcome.node.attributes.size
                if outcome.become is Become.FETCHED:
                    self._siblings.fetched(*place, size)
                elif not self._siblings.admit(*place, size) or not await self._one_chunk(outcome.node):
                    continue
                fetched += 1
                del left[place]
        finally:
            for place in left:
                self._siblings.drop(*place)
        return fetched

    async def _one_chunk(self, node: Node) -> bool:
        """A sibling that is too large to be fetched with others."""
        if node.version is None:
            return False
        file = await self._cache.files.get(node.version, node.path)
        return await self._resolver.ensure(node, file, 0, Goal.STAGED) is Ensured.FETCHED

    def next(self, limit: int) -> list[Place]:
        """What the sibling policy would fetch now. None while enough of it waits for a thread: what would find no place
        is not given again."""
        limit = min(limit, self._pipeline.places)
        return self._siblings.next(limit) if limit else []
