"""Stepping back: what is fetched ahead, and what is staged, takes a part of what it could while readers of others wait.

What is under way goes on, and at least one fetch and one write at a time: no job is held up for ever. Decides nothing:
`neighbour_demand` says how far. Event loop only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from hfs.mountd.fetch.chunks.turns import FetchTurns


class Pipeline(Protocol):
    """Small files, in C (`small_pipeline`)."""

    @property
    def jobs(self) -> int:
        """Names that are being looked at or fetched, or are to be."""

    def set_share(self, share: float) -> None:
        """Only this part of the threads that fetch ahead may do so from now on, one at least."""

    def store_at_once(self, at_once: bool) -> None:
        """Whether what they fetch ahead is written to the disk at once, not in a burst later."""


class SteppingBack:
    """Of one mount."""

    def __init__(
        self,
        turns: FetchTurns,
        pipeline: Pipeline,
        stages: Callable[[float], None],
        wake: Callable[[], None],
        *,
        threads: int,
    ) -> None:
        """`stages`: in which part of the time chunks may be written. `wake`: who fetches ahead looks whether it is its
        turn. `threads`: that fetch chunks ahead."""
        self._turns = turns
        self._pipeline = pipeline
        self._stages = stages
        self._wake = wake
        self._threads = threads
        self._fetching = self._staging = 1.0

    @property
    def is_fetching(self) -> bool:
        """Something is being fetched ahead."""
        return self._turns.taken > 0 or self._pipeline.jobs > 0

    def set(self, fetching: float, staging: float) -> None:
        """From now on. Both above 0; 1: all."""
        if fetching != self._fetching:
            self._fetching = fetching
            self._turns.set_limit(math.inf if fetching >= 1 else max(1, int(self._threads * fetching)))
            self._pipeline.set_share(fetching)
            self._wake()
        elif fetching < 1:
            self._wake()
        if staging != self._staging:
            self._staging = staging
            self._stages(staging)
            self._pipeline.store_at_once(staging < 1)
