"""Following: what the epoch plans name is staged in time, and brought into memory a moment before its use.

Three loops joined by bounded work, as in Chainer's prefetch through node-local storage (Serizawa & Tatebe, 2019): the
orders (`hint_session.py`), the staging of what they name (`next_work` and `carry_out`, for the prefetch workers), and
the page-cache warming of what is staged (`run`). When the cache is full, what is needed last makes room for what is
needed first (`policies.schedule.schedule`), so a data set larger than the cache is read as seldom as can be.

A hint can only make it faster: what it names and cannot be had is counted, and its reader meets the error itself. Opens
no path.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import trio

from hfs.mountd.core.errors import HfsError
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.core.slices import SLICE_S
from hfs.mountd.hints.epoch_plan import EpochPlan, Work
from hfs.mountd.hints.page_cache_warmer import PageCacheWarmer
from hfs.mountd.hints.plan_changes import PlanChanges
from hfs.mountd.hints.plan_registry import PlanRegistry
from hfs.mountd.hints.planned_chunks import PlannedChunks
from hfs.mountd.hints.planned_files import PlannedFiles
from hfs.mountd.hints.readable_files import ReadableFiles
from hfs.mountd.hints.space_reservation import SpaceReservation

log = logging.getLogger(__name__)

_FILES_AT_ONCE = 16
"""Small files of one piece of work: one trip to a thread for all of them, and no longer than 0.1 s on a slow source."""

_NEAR_UNITS = 256
"""Uses ahead of the sampler that are made ready: two batches, and less than a tenth of a second of a fast reader."""


class HintFollower:
    """Event loop only; `run` is a task of the daemon's nursery."""

    def __init__(
        self,
        plans: PlanRegistry,
        readable: ReadableFiles,
        files: PlannedFiles,
        chunks: PlannedChunks,
        reservation: SpaceReservation,
        warmer: PageCacheWarmer,
        changes: PlanChanges,
        metrics: Metrics,
    ) -> None:
        self._plans = plans
        self._readable = readable
        self._files = files
        self._chunks = chunks
        self._reservation = reservation
        self._warmer = warmer
        self._changes = changes
        self._metrics = metrics
        self._looks_on = False
        """A worker goes on looking in the next turn: a look for work takes a slice of time, for all plans together."""
        self._left = 0
        """Plans that are to be looked at before there is nothing to fetch, unless there are changes."""
        self._changes_seen = -1

    # -- staging ------------------------------------------------------------------------------------------------------

    def next_work(self) -> Work | None:
        """What to fetch now."""
        if self._changes.held_back or self._looks_on:
            return None
        now_s, until_s = trio.current_time(), time.thread_time() + SLICE_S
        followed = list(self._plans.followed())
        if not self._left or self._changes.count != self._changes_seen:
            self._left, self._changes_seen = len(followed), self._changes.count
        for plan in followed[: self._left]:
            if time.thread_time() >= until_s:
                return self._look_on(plan, followed[: followed.index(plan)])
            whole = plan.layout.whole
            self._left -= 1
            if not (whole or self._chunks.may_begin(plan)):
                continue
            limit = self._files_at_once(plan) if whole else 1
            fetch_order = plan.schedule.fetch_order
            while not (units := fetch_order.take(limit, self._reservation.budget_bytes(), now_s)):
                if not fetch_order.searching:
                    break
                if time.thread_time() >= until_s:
                    self._left = len(followed)
                    return self._look_on(plan, followed[: followed.index(plan) + 1])
            if units:
                self._left = 0
                self._plans.move_to_end(plan.key)  # one plan after the other
                if not whole:
                    self._chunks.begin(now_s)
                return Work(plan, tuple(units))
            if self._reservation.is_tight:
                self._changes.starve()
        return None

    def _look_on(self, plan: EpochPlan, looked_at: Sequence[EpochPlan]) -> Work:
        """In the next turn, with those that have not been looked at first."""
        for each in looked_at:
            self._plans.move_to_end(each.key)
        self._looks_on = True
        return Work(plan, ())

    @staticmethod
    def _files_at_once(plan: EpochPlan) -> int:
        """One as long as nothing is ahead: then somebody waits for each of them, and many threads fetch one each. Those
        of the data plane do so anyway."""
        if plan.is_fetched_apart:
            return _FILES_AT_ONCE
        files_ahead = plan.schedule.units.ahead_bytes // max(1, plan.mean_bytes)
        return min(_FILES_AT_ONCE, 1 + files_ahead // _FILES_AT_ONCE)

    async def carry_out(self, work: Work) -> None:
        """Have the units of `work` staged; without any, look on. Never raises HfsError."""
        if not work.units:
            try:
                await trio.lowlevel.checkpoint()
            finally:
                self._looks_on = False
                self._changes.look_on()
            return
        left = set(work.units)
        work.plan.under_way.update(work.units)
        try:
            units = await self._readable.of(work.plan, work.units, left)
            if not units:
                pass
            elif work.plan.layout.whole:
                await self._files.stage(work.plan, units, left)
            elif await self._chunks.stage(work.plan, units[0]):
                left.clear()
            else:
                self._changes.hold_back()
        except Exception:
            self._changes.hold_back()  # whatever it was, not at once again
            raise
        finally:
            if not work.plan.layout.whole:
                self._chunks.end()
            work.plan.land(work.units)
            for unit in left:
                work.plan.schedule.refused(unit)
            self._changes.landed()

    # -- into memory --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Warm the page cache with what is used next. Never returns."""
        while True:
            await self._changes.wait()
            for plan in self._plans:
                for number in list(plan.learners):
                    await trio.lowlevel.checkpoint()
                    try:
                        await self._warm(plan, number)
                    except HfsError as error:
                        log.debug("warming the page cache: %s", error)
                    except Exception:  # a defect: the mount goes on
                        self._metrics.add("unexpected_errors")
                        log.exception("unforeseen error while warming the page cache")

    async def _warm(self, plan: EpochPlan, learner: int) -> None:
        units = [unit for unit in plan.schedule.near(learner, _NEAR_UNITS) if plan.may_know(unit)]
        if plan.layout.whole:
            await self._warmer.files(plan, units)
        else:
            await self._warmer.chunks(plan, units)
