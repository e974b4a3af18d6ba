"""Stepping back: readers of other mounts go before what we fetch ahead and stage.

Some times a second, while we read from the source or stage at all, a thread tells how our readers wait and hears how
those of the others do (`mountd.ledger.Board`), for the source and for the disk of the cache;
policies/prefetch/yielding.py says what follows, of each by itself. Readers that wait for the source hold back what is
fetched ahead; those that wait for the disk hold back what is written, and since all that is fetched is written, that
too. What is under way goes on, at least one fetch and one write at a time, and the windows of a reader that goes
through a file in order are left alone: it wants them in a moment. Our own readers go before our prefetch by the order
of the queues, without any of this.

A ledger that cannot be read or written costs fairness, never a fetch. Event loop only.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import trio

from hfs.mountd.core.metrics import Metrics
from hfs.mountd.ledger import NeighbourWaits
from hfs.policies.prefetch.yielding import Waits, Yielding

log = logging.getLogger(__name__)

_LOOK_S = 0.05
"""While something is read: what a neighbour's reader waits until we step back, and 0.1 ms of a thread."""

_IDLE_S = 0.25
"""Else it is only looked whether anything is."""

_ALONE_S = 1.0

_HANGS_S = 2.0


class OwnWaits(NamedTuple):
    """How our readers have waited."""

    source: Waits
    disk: Waits


@dataclass(frozen=True, slots=True)
class WhatYields:
    """What steps back. It is told which share of it may go on, above 0; 1: all."""

    is_fetching: Callable[[], bool]
    """Something is being fetched ahead."""
    fetch: Callable[[float], None]
    """Fetch ahead so much; told again and again while it is less than all: whoever fetches looks whether it is its
    turn."""
    stage: Callable[[float], None]
    """Write so much."""


class _Waiting:
    """For one of the two: what the others said last, and how far we step back for it."""

    def __init__(self) -> None:
        self._yielding = Yielding()
        self._before: Mapping[str, Waits] = {}

    @property
    def share(self) -> float:
        return self._yielding.share

    def look(self, theirs: Mapping[str, Waits], now_s: float) -> bool:
        """Whether we step back further now than before."""
        more = [waits.since(self._before[name]) for name, waits in theirs.items() if name in self._before]
        self._before = theirs
        count, waited_ns = sum(waits.waits for waits in more), sum(waits.waited_ns for waits in more)
        waiting = sum(waits.waiting for waits in theirs.values())
        before_share = self.share
        return self._yielding.look(count, waited_ns / 1e9, waiting, now_s) < before_share


class SteppingBack:
    """Of one mount. `run` is a task of the daemon's nursery."""

    def __init__(
        self,
        exchange: Callable[[Waits, Waits], dict[str, NeighbourWaits] | None],
        what: WhatYields,
        own_waits: Callable[[], OwnWaits],
        metrics: Metrics,
        run_in_thread: Callable[..., Awaitable[Any]],
    ) -> None:
        """`exchange`: as that of the board."""
        self._exchange = exchange
        self._what = what
        self._own_waits = own_waits
        self._metrics = metrics
        self._run_in_thread = run_in_thread
        self._source, self._disk = _Waiting(), _Waiting()
        self._fetching = self._staging = 1.0
        """The shares that were told last."""
        self._said = own_waits()
        self._looked_s = 0.0
        self._asking_s = math.inf
        """When the board was asked, as long as it has not answered."""
        self._is_alone = False
        self._failing = False

    async def run(self) -> None:
        """Never returns. At the end everything may be fetched ahead and written again."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._guard)
                while True:
                    is_busy = self._is_busy()
                    if is_busy:
                        await self._look()
                    await trio.sleep(_IDLE_S if not is_busy else _ALONE_S if self._is_alone else _LOOK_S)
        finally:
            self._tell(1.0, 1.0)

    async def _guard(self) -> None:
        """A cache disk that hangs is not to hold the source back as well."""
        while True:
            await trio.sleep(_HANGS_S)
            if trio.current_time() > self._asking_s + _HANGS_S:
                self._tell(1.0, 1.0)

    @property
    def _share(self) -> float:
        return min(self._source.share, self._disk.share)

    def _is_busy(self) -> bool:
        said, self._said = self._said, self._own_waits()
        if self._said.source.waiting or self._said.disk.waiting or self._said != said:
            return True
        return self._what.is_fetching() or self._share < 1

    async def _look(self) -> None:
        heard: dict[str, NeighbourWaits] | None = {}
        self._asking_s = trio.current_time()
        try:
            heard = await self._run_in_thread(self._exchange, *self._said)
            self._failing = False
        except OSError as error:
            if not self._failing:
                log.warning("the ledger of the cache: %s; this mount goes on as if it was alone on the node", error)
            self._failing = True
        finally:
            self._asking_s = math.inf
        self._is_alone = heard is None
        theirs = heard or {}
        now_s, before_share = trio.current_time(), self._share
        if before_share < 1:
            self._metrics.add("prefetch_yielded_ns", int((now_s - self._looked_s) * 1e9))
        self._looked_s = now_s
        self._source.look({name: waits.source for name, waits in theirs.items() if waits.source is not None}, now_s)
        if self._disk.look({name: waits.disk for name, waits in theirs.items()}, now_s):
            self._metrics.add("staging_yields")
        if self._share < before_share:
            self._metrics.add("prefetch_yields")
        self._tell(self._share, self._disk.share)

    def _tell(self, fetching: float, staging: float) -> None:
        if fetching != self._fetching or fetching < 1:
            self._fetching = fetching
            self._what.fetch(fetching)
        if staging != self._staging:
            self._staging = staging
            self._what.stage(staging)
