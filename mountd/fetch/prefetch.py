"""The prefetch workers: a bounded number of tasks that fetch what the prefetch queue holds.

All but readahead windows pause while a demand read waits for a source thread, or none of the turns is free that are
left while readers of other mounts wait (`stepping_back`). What a worker does for a request stands in `fetches_ahead`;
what hints foresee is theirs (`Foresight`, handed in by the daemon). An error of a prefetch is nobody's error: a demand
read will meet it again.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol

import trio

from hfs.mountd.cache import StagedFile
from hfs.mountd.core.background import start_for_life
from hfs.mountd.core.errors import HfsError
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.namespace import Node

log = logging.getLogger(__name__)

_SIBLINGS_AT_ONCE = 16
"""Small files that a worker fetches together: costs a third of one at a time."""


_MAX_WINDOW_CHUNKS = 1024
"""Requests kept: 64 readers with 16 chunks ahead each. Older ones have been overtaken by their readers."""


class _Fill:
    """The rest of one large file, in file order."""

    __slots__ = ("began_s", "file", "had", "indexes", "node", "position")

    def __init__(self, node: Node, file: StagedFile, now_s: float) -> None:
        self.node = node
        self.file = file
        self.began_s = now_s
        self.had = len(file.present)
        self.indexes: Iterator[int] = iter(range(file.present.count))
        self.position = -1
        """The chunk that was handed out last."""

    def next_index(self) -> int | None:
        index = next((i for i in self.indexes if i not in self.file.present), None)
        self.position = self.file.present.count if index is None else index
        return index


class PrefetchQueue:
    """The prefetch queue: what should be fetched before anybody asks.

    Four kinds of requests, in this order: readahead windows (a reader will want them in milliseconds), what hints
    foresee, fills (the rest of a large file whose random reads have become dense), siblings (small files of a directory
    being read). None is waited for: `..._nowait` notes it and returns, a full queue drops the oldest window. It depends
    on nothing, so it is made first and handed to all who ask; the workers (`prefetch`) come last.

    Event loop only.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._windows: deque[tuple[Node, StagedFile, int]] = deque()
        self._fills: OrderedDict[Node, _Fill] = OrderedDict()
        self._fill_begins = False
        """A chunk of a fill waits for memory. The next one is not handed out before: trio wakes who waits in any order,
        and the source is to be read in that of the file (9 of 16 chunks were behind one that was read before)."""
        self._foreseen = False
        self._siblings_wanted = False
        self._work = trio.lowlevel.ParkingLot()

    def window_nowait(self, node: Node, file: StagedFile, indexes: list[int]) -> None:
        """Chunks that the reader of an open file will want next, in that order."""
        for index in indexes:
            self._windows.append((node, file, index))
        while len(self._windows) > _MAX_WINDOW_CHUNKS:
            self._windows.popleft()
            self._metrics.add("prefetch_dropped")
        self._work.unpark(count=len(indexes))

    def fill_nowait(self, node: Node, file: StagedFile) -> None:
        """The whole of a large file, behind everything that is more urgent. Asked for again, it changes nothing."""
        if node not in self._fills:
            self._fills[node] = _Fill(node, file, trio.current_time())
            self._work.unpark()

    def is_filling(self, node: Node) -> bool:
        """Whether the rest of the file of `node` is being fetched."""
        return node in self._fills

    def fill_remaining_s(self, node: Node) -> float:
        """When the fill of `node` will have ended, at the pace it had so far; infinite if there is none, or no pace."""
        fill = self._fills.get(node)
        if fill is None:
            return math.inf
        done = len(fill.file.present) - fill.had
        missing = fill.file.present.count - len(fill.file.present)
        return (trio.current_time() - fill.began_s) / done * missing if done > 0 else math.inf

    def filled_in_s(self, node: Node, index: int) -> float:
        """When the fill of `node` will have brought chunk `index`, at its pace; 0 as long as that is not known.

        Infinite if there is no fill, or if it has handed this chunk out already.
        """
        fill = self._fills.get(node)
        if fill is None or index <= fill.position:
            return math.inf
        done = len(fill.file.present) - fill.had
        if done <= 0:
            return 0.0
        return (trio.current_time() - fill.began_s) / done * (index - fill.position)

    def hints_nowait(self) -> None:
        """There may be something that hints foresee."""
        if not self._foreseen:
            self._foreseen = True
            self._work.unpark()

    def siblings_nowait(self) -> None:
        """The sibling policy may have something new."""
        self._siblings_wanted = True
        self._work.unpark()

    def demand_served_nowait(self) -> None:
        """A demand read has its bytes: what paused for it may go on."""
        if self._fills or self._siblings_wanted or self._foreseen:
            self._work.unpark()

    def forget(self, node: Node) -> None:
        """The last handle of `node` is closed: its fill stops."""
        self._fills.pop(node, None)

    def statistics(self) -> dict[str, int]:
        """Requests waiting, by kind."""
        return {"windows": len(self._windows), "fills": len(self._fills)}

    # -- for the workers ----------------------------------------------------------------------------------------------

    async def wait_work(self) -> None:
        """Until something was asked for. Another worker may take it first."""
        await self._work.park()

    def wake_next(self) -> None:
        """One worker wakes the next as long as there is work: to wake all for each open of a small file, which makes
        room for one more or for none, was a tenth of a millisecond a file."""
        self._work.unpark()

    def next_window(self) -> tuple[Node, StagedFile, int] | None:
        """The chunk that a reader wants soonest."""
        return self._windows.popleft() if self._windows else None

    @property
    def foreseen(self) -> bool:
        """Hints may foresee something."""
        return self._foreseen

    def nothing_foreseen(self) -> None:
        """Hints were asked, and have nothing."""
        self._foreseen = False

    @property
    def siblings_wanted(self) -> bool:
        """The sibling policy may have something."""
        return self._siblings_wanted

    def no_siblings(self) -> None:
        """The sibling policy was asked, and has nothing."""
        self._siblings_wanted = False

    def next_fill(
        self, worth_filling: Callable[[StagedFile], bool], demand_waits: Callable[[], bool]
    ) -> tuple[Node, StagedFile, int] | None:
        """A chunk of a file that is being filled; until its `fill_began` no other is given out."""
        while self._fills and not self._fill_begins and not demand_waits():
            node, fill = next(iter(self._fills.items()))
            index = fill.next_index() if worth_filling(fill.file) else None
            if index is not None:
                self._fills.move_to_end(node)  # several files take turns
                self._fill_begins = True
                return fill.node, fill.file, index
            del self._fills[node]
        return None

    def fill_began(self) -> None:
        """The chunk that was given out last waits for nothing but the source, or for nothing at all."""
        self._fill_begins = False
        self._work.unpark()


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
        if (fill := self._queue.next_fill(self._fetches.worth_filling, self._fetches.demand_waits)) is not None:
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

    def _next_work(self) -> Any | None:  # noqa: ANN401 - as above
        if not self._queue.foreseen or self._fetches.demand_waits():
            return None
        work = self._foresight.next_work()
        if work is None:
            self._queue.nothing_foreseen()
        return work

    def _next_siblings(self) -> list[tuple[Node, bytes]]:
        if not self._queue.siblings_wanted or self._fetches.demand_waits():
            return []
        found = self._fetches.next_siblings(_SIBLINGS_AT_ONCE)
        if not found:
            self._queue.no_siblings()
        return found


def _nothing() -> None:
    """Nobody waits for the beginning."""
