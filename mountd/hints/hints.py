"""Hints: what the learners' orders mean for fetching, staging and evicting.

Three loops joined by bounded work, as in Chainer's prefetch through node-local storage (Serizawa & Tatebe, 2019): the
orders (in `learners`), the staging of what they name (`next_work` and `carry_out`, called by the workers of
`prefetch`), and a moment before use the making ready of what is staged (`run`): attributes known, bytes in the page
cache. When the cache is full, what is needed last makes room for what is needed first (`policies.schedule.schedule`),
so a data set larger than the cache is read as seldom as can be.

A hint can only make it faster: what it names and cannot be had is counted, and its reader meets the error itself.
Event loop only; opens no path.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import numpy as np
import trio

from mountd.base.errors import HfsError, StagingError, VersionChanged
from mountd.base.version import Version
from mountd.cache import Cache, StagedFile
from mountd.core.memory import Memory
from mountd.core.metrics import Metrics
from mountd.fetch import Fetcher, Push
from mountd.hints.files import HintsFiles
from mountd.hints.learners import EpochPlan, Learners, Work
from mountd.hints.page_cache_warmer import PageCacheWarmer
from mountd.hints.plan_changes import PlanChanges
from mountd.hints.space_reservation import SpaceReservation
from mountd.namespace import Namespace, Node
from policies.prefetch.concurrency import Concurrency
from policies.prefetch.miss_policy import ScheduledChunk

__all__ = ["HintFollower"]

log = logging.getLogger(__name__)

_FILES_AT_ONCE = 16
"""Small files of one piece of work: one trip to a thread for all of them, and no longer than 0.1 s on a slow source."""

_SWEPT_AT_ONCE = 8
"""Chunks of a long sweep: none of them is waited for more than the others, so there may be enough of them under way
that the source never rests between two. With as few as are best for the first one it rested a third of the time."""

_WARM_STREAMS = 4
"""Chunks of one large file of a list at a time."""

_LOOK_AGAIN_S = 1.0
"""How often room is looked for while no reader goes on: a full cache disk may be emptied by somebody."""

_STALLED_S = 2.0
"""When no chunk has come for so long and none is under way, whoever waits for one fetches it."""

_LOOKS = 4
"""A look for work covers a quarter of a million uses; where all is here it ends without having seen the rest."""

_NEAR_UNITS = 256
"""Uses ahead of the sampler that are made ready: two batches, and less than a tenth of a second of a fast reader."""


class HintFollower:
    """`changes`: those of the plans of `learners`; woken when there may be work."""

    def __init__(
        self,
        learners: Learners,
        namespace: Namespace,
        cache: Cache,
        fetcher: Fetcher,
        files: HintsFiles,
        room: SpaceReservation,
        ready: PageCacheWarmer,
        metrics: Metrics,
        memory: Memory,
        changes: PlanChanges,
        *,
        chunks_at_once: int,
    ) -> None:
        self._learners = learners
        self._namespace = namespace
        self._cache = cache
        self._fetcher = fetcher
        self._whole_files = files
        self._room = room
        self._ready = ready
        self._metrics = metrics
        self._memory = memory
        self._changes = changes
        self._starved = False
        """All that may be ahead is: a reader who goes on makes room for more."""
        self._held_back = False
        """Something was not staged for want of room: nothing more before a reader has gone on, or time has passed."""
        self._concurrency = Concurrency(chunks_at_once)
        self._chunks_under_way = 0
        self._arrived_s = -math.inf
        """When a chunk came last."""
        self._planned: dict[Version, tuple[EpochPlan, int]] = {}
        self._forgotten = 0
        """Courses whose files are no longer among them."""
        self._seen_changes = changes.count

    def _notice(self) -> None:
        """Schedules may have changed since the last look: more may be foreseen, or near."""
        if self._seen_changes == self._changes.count:
            return
        self._seen_changes = self._changes.count
        self._held_back = False
        if self._forgotten != self._learners.forgotten:
            self._forgotten = self._learners.forgotten
            followed = set(self._learners.plans.values())
            gone = {version for version, (plan, _) in self._planned.items() if plan not in followed}
            self._planned = {version: planned for version, planned in self._planned.items() if version not in gone}
            self._ready.forget(gone)

    def _hold_back(self) -> None:
        self._notice()
        if not self._held_back:
            self._held_back = True
            self._changes.look_again()  # the time starts

    def _go_on(self) -> None:
        self._held_back = False
        self._changes.wake()

    # -- what readers do ----------------------------------------------------------------------------------------------

    def turn(self, version: Version, index: int) -> ScheduledChunk | None:
        """What the orders say of a chunk; None if no order that is followed names it."""
        self._notice()
        planned = self._planned.get(version)
        if planned is None:
            return None
        plan, number = planned
        unit = plan.layout.unit(number, index)
        samples = plan.schedule.expected.samples_soon(unit)
        if samples is None:
            return None
        return ScheduledChunk(samples * plan.sample_bytes, plan.sample_bytes, self.comes(version, index))

    def comes(self, version: Version, index: int) -> bool:
        """Whether a chunk that is not here comes in its turn, with many others in the order of the file."""
        self._notice()
        planned = self._planned.get(version)
        if planned is None or self._held_back or self._room.is_tight:
            return False
        if not self._chunks_under_way and trio.current_time() > self._arrived_s + _STALLED_S:
            return False  # those for whom it was planned have stopped
        plan, number = planned
        return plan.schedule.fetch_order.comes_in_sweep(plan.layout.unit(number, index))

    def is_planned(self, version: Version, index: int) -> bool:
        """Whether an order that is followed names a chunk."""
        self._notice()
        planned = self._planned.get(version)
        if planned is None:
            return False
        plan, number = planned
        return plan.schedule.expected.is_wanted(plan.layout.unit(number, index))

    def asked(self, version: Version, index: int) -> None:
        """A read of a planned file has come to us: the kernel has let that chunk go, or part of it."""
        self._ready.asked(version, index)

    def missed(self, version: Version, index: int) -> None:
        """A chunk of a planned file was to be here, and is not."""
        self._notice()
        planned = self._planned.get(version)
        if planned is not None:
            plan, number = planned
            plan.schedule.evicted(np.array([plan.layout.unit(number, index)], np.int32))

    def opened(self, node: Node, *, staged: bool) -> bool:
        """A small file was opened. True: an order names it, so its siblings say nothing."""
        hinted = self._hinted(node)
        if hinted is None:
            return False
        plan, unit = hinted
        if not staged:
            plan.held.discard(unit)
            if unit in plan.under_way:
                plan.overtaken.add(plan.layout.path(unit))
            plan.schedule.evicted(np.array([unit], np.int32))
        plan.schedule.seen(unit, trio.current_time())
        self._notice()
        if self._held_back or self._starved:
            self._starved = False
            self._go_on()
        return True

    def closed(self, node: Node, file: StagedFile) -> None:
        """A small file was closed: whoever had it fetched, it may be here now."""
        hinted = node.hinted
        if hinted is None:
            return
        self._fetcher.let_go(file.version, 0)
        if hinted[0].objects is not None and file.complete:
            plan, unit = hinted
            plan.objects[unit] = file.object_id or 0
            plan.schedule.here(unit, file.size)

    def _hinted(self, node: Node) -> tuple[EpochPlan, int] | None:
        """The plan that names a small file and is being followed, and the file's unit there."""
        if node.hinted is not None and node.hinted[0].learners:
            return node.hinted
        paths: list[bytes] | None = None
        for plan in self._learners.plans.values():
            if plan.learners and plan.layout.whole:
                paths = node.paths if paths is None else paths
                for unit in map(plan.layout.find, paths):
                    if unit is not None:
                        node.hinted = plan, unit
                        return node.hinted
        return None

    # -- staging ------------------------------------------------------------------------------------------------------

    def next_work(self) -> Work | None:
        """What to fetch now."""
        self._notice()
        if self._held_back:
            return None
        now_s = trio.current_time()
        for plan in list(self._learners.plans.values()):
            if not plan.learners:
                continue
            whole = plan.layout.whole
            if not whole and self._chunks_under_way >= self._chunks_at_once(plan):
                continue
            limit = self._files_at_once(plan) if whole else 1
            units: list[int] = []
            for _ in range(_LOOKS):
                units = plan.schedule.fetch_order.take(limit, self._room.budget_bytes(), now_s)
                if units or not plan.schedule.fetch_order.searching:
                    break
            if units:
                self._learners.plans.move_to_end(plan.layout.digest)  # plans take turns
                if not whole:
                    if not self._chunks_under_way:
                        self._concurrency.begin(now_s)
                    self._chunks_under_way += 1
                return Work(plan, tuple(units))
            self._starved |= self._room.is_tight
        return None

    def _chunks_at_once(self, plan: EpochPlan) -> int:
        limit = self._concurrency.limit
        return max(limit, _SWEPT_AT_ONCE) if plan.schedule.fetch_order.is_sweeping else limit

    @staticmethod
    def _files_at_once(plan: EpochPlan) -> int:
        """One as long as nothing is ahead: then somebody waits for each of them, and many threads fetch one each."""
        files_ahead = plan.schedule.units.ahead_bytes // max(1, plan.mean_bytes)
        return min(_FILES_AT_ONCE, 1 + files_ahead // _FILES_AT_ONCE)

    async def carry_out(self, work: Work) -> None:
        """Have the units of `work` staged. Never raises HfsError."""
        left = set(work.units)
        work.plan.under_way.update(work.units)
        try:
            if work.plan.layout.whole:
                await self._stage_files(work.plan, work.units, left)
            else:
                await self._stage_chunk(work.plan, work.units[0], left)
        except Exception:
            self._hold_back()  # whatever it was, not at once again
            raise
        finally:
            if not work.plan.layout.whole:
                self._chunks_under_way -= 1
            work.plan.land(work.units)
            for unit in left:
                work.plan.schedule.refused(unit)
            self._changes.wake()

    async def _stage_files(self, plan: EpochPlan, units: Sequence[int], left: set[int]) -> None:
        schedule, objects = plan.schedule, plan.objects
        assert objects is not None
        stays = await self._room.stays(plan, units)
        paths = [plan.layout.path(unit) for unit in units]
        try:
            results = await self._whole_files.stage(paths, stays.each, lambda path: path not in plan.overtaken)
        finally:
            self._room.settled(stays)
        for unit, path, result in zip(units, paths, results, strict=True):
            if isinstance(result, StagingError):
                self._hold_back()  # another time
                continue
            left.discard(unit)
            if isinstance(result, HfsError):
                self._missing(plan, unit, path, result)
                continue
            node, file = result.node, result.file
            node.hinted = (plan, unit)
            plan.looked_at(file.size)
            if file.present.count > 1 and not file.complete:
                await self._stage_large(node, file)
            if file.object_id is not None:
                objects[unit] = file.object_id
            if result.fetched:
                if file.object_id is None:
                    plan.held.add(unit)
                schedule.arrived(unit, file.size)
                self._metrics.add("hinted_bytes", file.size)
            elif file.complete or result.at_owner or self._fetcher.is_coming(file.version, 0):
                schedule.here(unit, file.size)
            else:
                if file.present.count > 1:
                    self._hold_back()  # a large file that found no room, in part
                schedule.refused(unit)  # or a small one that its reader has fetched for himself

    def _missing(self, plan: EpochPlan, unit: int, path: bytes, error: HfsError) -> None:
        if plan.missing == 0:
            log.warning("a hint names what cannot be had, %s: %s", path, error)
        plan.missing += 1
        plan.schedule.failed(unit)
        self._metrics.add("hints_missing")

    async def _stage_large(self, node: Node, file: StagedFile) -> None:
        """All chunks of a large file that is one sample."""
        missing = list(file.present.missing())

        async def stream() -> None:
            while missing:
                index = missing.pop(0)
                if not self._cache.admission.admits_nowait(file, file.chunk(index).size):
                    missing.clear()  # it would be read to be thrown away
                    return
                try:
                    await self._fetcher.ahead(node, file, index, push=Push.NOTHING)
                except HfsError:
                    missing.clear()

        async with trio.open_nursery() as nursery:
            for _ in range(min(_WARM_STREAMS, len(missing))):
                nursery.start_soon(stream)

    async def _stage_chunk(self, plan: EpochPlan, unit: int, left: set[int]) -> None:
        number, index = plan.layout.place(unit)
        assert index is not None
        schedule = plan.schedule
        path = plan.layout.path(number)
        try:
            node = await self._namespace.lookups.resolve(path)
            if node.version is None or node.version.size != plan.layout.file_size(number):
                raise VersionChanged(f"{path!r} is not what the layout was made of: make the layout anew")
            file = self._cache.files.get_nowait(node.version, path) or await self._cache.files.get(node.version, path)
            if file.chunk_bytes != plan.layout.chunk_bytes:
                raise VersionChanged(f"{path!r} was staged in chunks of {file.chunk_bytes} bytes")
            plan.staged[number] = file
            self._planned[node.version] = plan, number
            if index in file.present:
                left.discard(unit)
                schedule.here(unit, file.chunk(index).size)
                return
            if not self._fetcher.caches_locally(path, index) and await self._fetcher.have_staged(node, file, index):
                left.discard(unit)
                schedule.here(unit, file.chunk(index).size)  # its readers get it from its owner
                return
            stays = await self._room.stays(plan, [unit])
            try:
                if stays.each[0] and not self._cache.admission.admits_nowait(file, file.chunk(index).size):
                    self._hold_back()  # the cache disk rests
                    return
                push = Push.WHOLE if node.opens > node.passed and self._memory.has_room(file.size) else Push.NOTHING
                if await self._fetcher.ahead(node, file, index, push=push, stage=stays.each[0]):
                    self._metrics.add("hinted_bytes", file.chunk(index).size)
                    self._arrived_s = trio.current_time()
                    self._concurrency.arrived(file.chunk(index).size, trio.current_time())
                    if push is Push.WHOLE:
                        self._ready.pushed(file.version, index)
            finally:
                self._room.settled(stays)
            left.discard(unit)
            schedule.arrived(unit, file.chunk(index).size)
        except HfsError as error:
            left.discard(unit)
            self._missing(plan, unit, path, error)

    # -- making ready -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Make ready what is used next. Never returns."""
        while True:
            with trio.move_on_after(_LOOK_AGAIN_S if self._held_back else math.inf) as waiting:
                await self._changes.wait()
            self._notice()
            if waiting.cancelled_caught:
                self._go_on()
            for plan in list(self._learners.plans.values()):
                for number in list(plan.learners):
                    try:
                        await self._make_ready(plan, number)
                    except HfsError as error:
                        log.debug("making ready: %s", error)
                    except Exception:  # a defect: the mount goes on
                        self._metrics.add("unexpected_errors")
                        log.exception("unforeseen error while making ready")

    async def _make_ready(self, plan: EpochPlan, learner: int) -> None:
        units = plan.schedule.near(learner, _NEAR_UNITS)
        if plan.layout.whole:
            await self._ready.files(plan, units)
        else:
            await self._ready.chunks(plan, units)
