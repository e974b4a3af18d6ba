"""Large reads of one source file wait here for their turn: see `policies/cluster/stagger.py`, which decides whose it
is.

Called by `fetcher` around each read of a chunk, when the chunk has its buffer. Never reads.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Hashable

import trio

from policies.cluster.stagger import Place, Stagger

__all__ = ["Staggered"]


class Staggered:
    """`most`: reads of one file at a time, at least 1."""

    def __init__(self, most: int) -> None:
        self._stagger = Stagger(most)
        self._waiting: dict[Place, trio.Event] = {}

    @contextlib.asynccontextmanager
    async def turn(self, file: Hashable, offset: int, *, urgent: bool) -> AsyncIterator[None]:
        """One read of `file`, once it is its turn. `urgent`: somebody waits for it."""
        place = self._stagger.enter(file, offset, urgent=urgent)
        try:
            if not place.may:
                event = self._waiting[place] = trio.Event()
                await event.wait()
            yield
        finally:
            self._waiting.pop(place, None)
            following = self._stagger.leave(place)
            if following is not None:
                self._waiting[following].set()
