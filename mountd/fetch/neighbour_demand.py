"""Readers of other mounts go before what we fetch ahead and stage: the daemons of a root tell each other who waits.

Some times a second, while we read from the source or stage at all, a thread tells how our readers wait and hears how
those of the others do (`mountd.ledger.Board`), for the source and for the disk of the cache;
policies/prefetch/yielding.py says what follows, of each by itself. Readers that wait for the source hold back what is
fetched ahead; those that wait for the disk hold back what is written, and since all that is fetched is written, that
too. What is under way goes on, and the windows of a reader that goes through a file in order are left alone: it wants
them in a moment. Our own readers go before our prefetch by the order of the queues, without any of this.

A ledger that cannot be read or written costs fairness, never a fetch. Event loop only.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import trio

from hfs.mountd.core.metrics import Metrics
from hfs.mountd.core.waits import Waits
from hfs.mountd.fetch.stepping_back import SteppingBack
from hfs.mountd.ledger import Notice, Notices
from hfs.policies.prefetch.yielding import Yielding

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


class Exchange(Protocol):
    """The board."""

    @property
    def is_alone(self) -> bool:
        """There was nobody to tell when it was looked last."""

    def exchange(self, source: Waits, disk: Waits) -> dict[str, Notices]:
        """Tell ours and hear theirs, by name. In a thread. Raises OSError."""


class _Heard:
    """Of one of the two: what the others said last, and how far we step back for it."""

    def __init__(self) -> None:
        self._yielding = Yielding()
        self._notices: Mapping[str, Notice] = {}

    @property
    def share(self) -> float:
        return self._yielding.share

    def look(self, theirs: Iterable[tuple[str, Notice | None]], now_s: float) -> bool:
        """Whether we step back further now than before."""
        notices = {name: notice for name, notice in theirs if notice is not None}
        count = waited_ns = 0
        for name, notice in notices.items():
            before = self._notices.get(name)
            # Another daemon of the same mount begins anew.
            if before is not None and notice.waits >= before.waits and notice.waited_ns >= before.waited_ns:
                count += notice.waits - before.waits
                waited_ns += notice.waited_ns - before.waited_ns
        self._notices = notices
        waiting = sum(notice.waiting for notice in notices.values())
        before_share = self.share
        return self._yielding.look(count, waited_ns / 1e9, waiting, now_s) < before_share


class NeighbourDemand:
    """`run` is a task of the daemon's nursery."""

    def __init__(
        self,
        board: Exchange,
        stepping_back: SteppingBack,
        own_waits: Callable[[], OwnWaits],
        metrics: Metrics,
        run_in_thread: Callable[..., Awaitable[Any]],
    ) -> None:
        self._board = board
        self._stepping_back = stepping_back
        self._own_waits = own_waits
        self._metrics = metrics
        self._run_in_thread = run_in_thread
        self._source, self._disk = _Heard(), _Heard()
        self._said = own_waits()
        self._looked_s = 0.0
        self._asking_s = math.inf
        """When the board was asked, as long as it has not answered."""
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
                    await trio.sleep(_IDLE_S if not is_busy else _ALONE_S if self._board.is_alone else _LOOK_S)
        finally:
            self._stepping_back.set(1.0, 1.0)

    async def _guard(self) -> None:
        """A cache disk that hangs is not to hold the source back as well."""
        while True:
            await trio.sleep(_HANGS_S)
            if trio.current_time() > self._asking_s + _HANGS_S:
                self._stepping_back.set(1.0, 1.0)

    @property
    def _share(self) -> float:
        return min(self._source.share, self._disk.share)

    def _is_busy(self) -> bool:
        said, self._said = self._said, self._own_waits()
        if self._said.source.waiting or self._said.disk.waiting or self._said != said:
            return True
        return self._stepping_back.is_fetching or self._share < 1

    async def _look(self) -> None:
        self._asking_s = trio.current_time()
        try:
            theirs: dict[str, Notices] = await self._run_in_thread(self._board.exchange, *self._said)
        except OSError as error:
            if not self._failing:
                log.warning("the ledger of the cache: %s; this mount goes on as if it was alone on the node", error)
            self._failing, theirs = True, {}
        else:
            self._failing = False
        finally:
            self._asking_s = math.inf
        now_s, before_share = trio.current_time(), self._share
        if before_share < 1:
            self._metrics.add("prefetch_yielded_ns", int((now_s - self._looked_s) * 1e9))
        self._looked_s = now_s
        self._source.look(((name, notices.source) for name, notices in theirs.items()), now_s)
        if self._disk.look(((name, notices.disk) for name, notices in theirs.items()), now_s):
            self._metrics.add("staging_yields")
        if self._share < before_share:
            self._metrics.add("prefetch_yields")
        self._stepping_back.set(self._share, self._disk.share)
