"""The prefetch workers: a bounded number of tasks that fetch what the prefetch queue holds.

All but readahead windows pause while the first reads of a job come (`first_reads`), while a demand read waits for a
source thread, or none of the turns is free that are left while readers of other mounts wait (`stepping_back`). What a
worker does for a request stands in `fetches_ahead`; what hints foresee is theirs (`Foresight`, handed in by the
daemon). An error of a prefetch is nobody's error: a demand read will meet it again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import trio

from hfs.mountd.cache import StagedFile
from hfs.mountd.core.background import start_for_life
from hfs.mountd.core.errors import HfsError
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.fetch.prefetch_queue import PrefetchQueue
from hfs.mountd.namespace import Node

log = logging.getLogger(__name__)

_SIBLINGS_AT_ONCE = 16
"""Small files that a worker fetches together: costs a third of one at a time."""


class Fetches(Protocol):
    """What prefetch needs of those who fetch."""

    async def prefetch_chunk(
        self, node: Node, file: StagedFile, index: int, began: Callable[[], None], *, soon: bool
    ) -> None:
        """Fetch and stage one chunk unless it is there, coming or not admitted. Calls `began` when it waits for nothing
        any more but the source. `soon`: its reader comes in a moment.
        """

    async def prefetch_siblings(self, places: Sequence[tuple[Node, bytes]]) -> int:
        """Fetch and stage small files unless they are there; how many were fetched. `places`: directory and name."""

    def next_siblings(self, limit: int) -> list[tuple[Node, bytes]]:
        """Small files worth fetching now, at most `limit`; the policy takes them as under way."""

    def demand_waits(self) -> bool:
        """True while a demand read waits for the source."""

    def worth_filling(self, file: StagedFile) -> bool:
        """False once the cache has no room for the rest of `file`."""


class Foresight(Protocol):
    """What the orders of learners name next. The work is theirs to understand."""

    def next_work(self) -> Any | None:  # noqa: ANN401 - only they know what it is
        """Some units to fetch now, for one worker."""

    async def carry_out(self, work: Any) -> None:  # noqa: ANN401 - as above
        """Fetch and stage them."""


class Prefetch:
    """The workers. Event loop only; `run` is a task of the daemon's nursery."""

    def __init__(
        self, queue: PrefetchQueue, fetches: Fetches, foresight: Foresight, metrics: Metrics, *, workers: int
    ) -> None:
        self._queue = queue
        self._fetches = fetches
        self._foresight = foresight
        self._metrics = metrics
        self._workers = workers
        self._busy = 0

    def statistics(self) -> dict[str, int]:
        """Requests waiting, by kind, and workers busy."""
        return {**self._queue.statistics(), "workers_busy": self._busy}

    async def run(self) -> None:
        """Start the workers; they end with their nursery."""
        async with trio.open_nursery() as nursery:
            for _ in range(self._workers):
                start_for_life(nursery, "prefetch worker", self._worker)

    async def _worker(self) -> None:
        while True:
            fetch = self._next()
            if fetch is None:
                await self._queue.wait_work()
            else:
                self._queue.wake_next()
                await fetch()

    def _next(self) -> Callable[[], Awaitable[None]] | None:
        """What to fetch now."""
        if (window := self._queue.next_window()) is not None:
            return lambda: self._chunk(*window, _nothing, soon=True)
        if (work := self._next_work()) is not None:
            return lambda: self._hinted(work)
        if (fill := self._queue.next_fill(self._fetches.worth_filling, self._gives_way)) is not None:
            return lambda: self._chunk_of_fill(*fill)
        if siblings := self._next_siblings():
            return lambda: self._fetch_siblings(siblings)
        return None

    async def _chunk_of_fill(self, node: Node, file: StagedFile, index: int) -> None:
        begun = False

        def began() -> None:
            nonlocal begun
            if not begun:
                begun = True
                self._queue.fill_began()

        try:
            await self._chunk(node, file, index, began, soon=False)
        finally:
            began()

    async def _chunk(self, node: Node, file: StagedFile, index: int, began: Callable[[], None], *, soon: bool) -> None:
        if index in file.present:
            return
        self._busy += 1
        try:
            await self._fetches.prefetch_chunk(node, file, index, began, soon=soon)
        except HfsError:
            self._queue.forget(node)  # the source is in trouble, or the file has changed
        except Exception:  # no memory, no thread: a reader is told, and the mount goes on
            self._queue.forget(node)
            self._metrics.add("unexpected_errors")
            log.exception("unforeseen error of a prefetch")
        finally:
            self._busy -= 1

    async def _hinted(self, work: Any) -> None:  # noqa: ANN401 - as above
        self._busy += 1
        try:
            await self._foresight.carry_out(work)
        except Exception:
            self._metrics.add("unexpected_errors")
            log.exception("unforeseen error of a hinted fetch")
        finally:
            self._busy -= 1

    async def _fetch_siblings(self, places: Sequence[tuple[Node, bytes]]) -> None:
        self._busy += 1
        try:
            self._metrics.add("sibling_files", await self._fetches.prefetch_siblings(places))
        except HfsError:
            pass
        except Exception:
            self._metrics.add("unexpected_errors")
            log.exception("unforeseen error of a prefetch")
        finally:
            self._busy -= 1

    def _gives_way(self) -> bool:
        return self._fetches.demand_waits() or self._queue.first_reads.left_s() > 0

    def _next_work(self) -> Any | None:  # noqa: ANN401 - as above
        if not self._queue.foreseen or self._gives_way():
            return None
        work = self._foresight.next_work()
        if work is None:
            self._queue.nothing_foreseen()
        return work

    def _next_siblings(self) -> list[tuple[Node, bytes]]:
        if not self._queue.siblings_wanted or self._gives_way():
            return []
        found = self._fetches.next_siblings(_SIBLINGS_AT_ONCE)
        if not found:
            self._queue.no_siblings()
        return found


def _nothing() -> None:
    """Nobody waits for the beginning."""
