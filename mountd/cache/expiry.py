"""Staged files that nobody has used for so long go by themselves, though there is room."""

from __future__ import annotations

import logging

import trio

from hfs.mountd.cache.evictions import EvictionsByName
from hfs.mountd.cache.objects import CacheContext

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 3600.0
"""Ages are days; a look reads the rows of the index once."""


class Expiry:
    """`run` is a task of the cache's nursery. `after_s` 0: nothing goes."""

    def __init__(self, context: CacheContext, evictions: EvictionsByName, ready: trio.Event, after_s: float) -> None:
        self._context = context
        self._evictions = evictions
        self._ready = ready
        self._after_s = after_s

    async def run(self) -> None:
        """Never returns."""
        if not self._after_s:
            await trio.sleep_forever()
        await self._ready.wait()
        while True:
            files, freed_bytes = await self._evictions.evict_paths(before_s=self._context.clock() - self._after_s)
            if files:
                log.info(
                    "%d staged files of %d bytes were not used for %g s, and went", files, freed_bytes, self._after_s
                )
            await trio.sleep(_LOOK_EVERY_S)
