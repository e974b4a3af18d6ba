"""Turns: how many fetches that nobody waits for may be under way at a time, of those that Python carries out.

A turn is taken before the fetch is known to anybody, so a reader that wants the same never waits for one: it fetches
then by itself. As many as there are threads, unless readers of other mounts wait (`fetch.stepping_back`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator

import trio


class FetchTurns:
    """Event loop only."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(math.inf)

    @property
    def taken(self) -> int:
        """Fetches under way."""
        return int(self._limiter.borrowed_tokens)

    @property
    def limit(self) -> float:
        """How many there may be; infinite: as many as there are threads."""
        return self._limiter.total_tokens

    @property
    def is_free(self) -> bool:
        """Whoever asks for a turn now has it at once."""
        return self._limiter.available_tokens > 0

    def set_limit(self, limit: float) -> None:
        """At least one. Those under way go on."""
        self._limiter.total_tokens = limit

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and keep it while the block lasts."""
        fetch = object()
        await self._limiter.acquire_on_behalf_of(fetch)
        try:
            yield
        finally:
            self._limiter.release_on_behalf_of(fetch)
