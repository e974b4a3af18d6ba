"""Readers of other mounts go before what we fetch ahead: the daemons of a cache root tell each other who waits.

Some times a second, while we read from the source at all, a thread tells how our readers wait and hears how those of
the others do (`mountd.ledger.Board`); policies/prefetch/yielding.py says what follows. What is under way goes on, and
the windows of a reader that goes through a file in order are left alone: it wants them in a moment. Our own readers go
before our prefetch by the order of the queues, without any of this.

A ledger that cannot be read or written costs fairness, never a fetch. Event loop only.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio

from mountd.core.metrics import Metrics
from mountd.fetch.chunks.turns import FetchTurns
from mountd.fetch.chunks.waits import Waits
from mountd.fetch.small_pipeline import SmallPipeline
from mountd.ledger import Notice
from policies.prefetch.yielding import Yielding

log = logging.getLogger(__name__)

_LOOK_S = 0.05
"""While something is read: what a neighbour's reader waits until we step back, and 0.1 ms of a thread."""

_IDLE_S = 0.25
"""Else it is only looked whether anything is."""

_ALONE_S = 1.0

_HANGS_S = 2.0


class Exchange(Protocol):
    """The board."""

    @property
    def is_alone(self) -> bool:
        """There was nobody to tell when it was looked last."""

    def exchange(self, waits: int, waited_ns: int, waiting: int) -> dict[str, Notice]:
        """Tell ours and hear theirs, by name. In a thread. Raises OSError."""


class NeighbourDemand:
    """`run` is a task of the daemon's nursery."""

    def __init__(
        self,
        board: Exchange,
        turns: FetchTurns,
        pipeline: SmallPipeline,
        own_waits: Callable[[], Waits],
        wake: Callable[[], None],
        metrics: Metrics,
        run_in_thread: Callable[..., Awaitable[Any]],
        *,
        threads: int,
    ) -> None:
        """`wake`: who fetches ahead looks whether it is its turn. `threads`: that fetch chunks ahead."""
        self._board = board
        self._turns = turns
        self._pipeline = pipeline
        self._own_waits = own_waits
        self._wake = wake
        self._metrics = metrics
        self._run_in_thread = run_in_thread
        self._threads = threads
        self._yielding = Yielding()
        self._share = 1.0
        self._heard: dict[str, Notice] = {}
        self._said = own_waits()
        self._looked_s = 0.0
        self._asking_s = math.inf
        """When the board was asked, as long as it has not answered."""
        self._failing = False

    async def run(self) -> None:
        """Never returns. At the end everything may be fetched ahead again."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._guard)
                while True:
                    is_busy = self._is_busy()
                    if is_busy:
                        await self._look()
                    await trio.sleep(_IDLE_S if not is_busy else _ALONE_S if self._board.is_alone else _LOOK_S)
        finally:
            self._set(1.0)

    async def _guard(self) -> None:
        """A cache disk that hangs is not to hold the source back as well."""
        while True:
            await trio.sleep(_HANGS_S)
            if trio.current_time() > self._asking_s + _HANGS_S:
                self._set(1.0)

    def _is_busy(self) -> bool:
        said, self._said = self._said, self._own_waits()
        if self._said.waiting or self._said != said:
            return True
        return self._turns.taken > 0 or self._pipeline.jobs > 0 or self._yielding.share < 1

    async def _look(self) -> None:
        self._asking_s = trio.current_time()
        try:
            theirs: dict[str, Notice] = await self._run_in_thread(self._board.exchange, *self._said)
        except OSError as error:
            if not self._failing:
                log.warning("the ledger of the cache: %s; this mount goes on as if it was alone on the node", error)
            self._failing, theirs = True, {}
        else:
            self._failing = False
        finally:
            self._asking_s = math.inf
        count = waited_ns = 0
        for name, notice in theirs.items():
            before = self._heard.get(name)
            # Another daemon of the same mount begins anew.
            if before is not None and notice.waits >= before.waits and notice.waited_ns >= before.waited_ns:
                count += notice.waits - before.waits
                waited_ns += notice.waited_ns - before.waited_ns
        self._heard = theirs
        waiting = sum(notice.waiting for notice in theirs.values())
        now_s, before_share = trio.current_time(), self._yielding.share
        if before_share < 1:
            self._metrics.add("prefetch_yielded_ns", int((now_s - self._looked_s) * 1e9))
        self._looked_s = now_s
        share = self._yielding.look(count, waited_ns / 1e9, waiting, now_s)
        if share < before_share:
            self._metrics.add("prefetch_yields")
        if share != self._share:
            self._set(share)
        elif share < 1:
            self._wake()

    def _set(self, share: float) -> None:
        self._share = share
        self._turns.set_limit(math.inf if share >= 1 else max(1, int(self._threads * share)))
        self._pipeline.set_share(share)
        self._wake()
