"""The epoch plans that are being followed, as readers and the resolver see them: what they say of a file or a chunk.

Readers tell here what they open, close and miss; that is noted in the schedule of the plan that names it. Also here,
because it decides whether a chunk still comes by itself: how many chunks are under way, and when one came last.
Depends on nothing that fetches. Never fetches, never raises.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable

import numpy as np
import trio

from hfs.mountd.cache import StagedFile
from hfs.mountd.core.attributes import Version
from hfs.mountd.core.errors import HfsError
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.fetch import ChunkMemory
from hfs.mountd.hints.epoch_plan import EpochPlan, hash_of
from hfs.mountd.hints.plan_registry import PlanRegistry
from hfs.mountd.hints.space_reservation import SpaceReservation
from hfs.mountd.namespace import LeadsOut, Node
from hfs.policies.prefetch.miss_policy import ScheduledChunk

log = logging.getLogger(__name__)

_STALLED_S = 2.0
"""When no chunk has come for so long and none is under way, whoever waits for one fetches it."""


_LOOK_AGAIN_S = 1.0
"""How often room is looked for while no reader goes on: a full cache disk may be emptied by somebody."""


class PlanChanges:
    """That plans have changed, and whether more is fetched for them now.

    Told by sessions, seen by the follower, and made before both, so that neither knows the other. Nothing more is
    fetched (backpressure) from the moment where something found no room, until a reader goes on, an order changes, or a
    second has passed. `wake`: there may be something to fetch; called at each change.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._more = trio.Event()
        self._held_back = False
        self._starved = False
        self.count = 0
        """Another number whenever there may be something to fetch that there was not."""

    @property
    def held_back(self) -> bool:
        """Something was not staged for want of room: nothing more is fetched now."""
        return self._held_back

    def changed(self) -> None:
        """A schedule has changed: more may be foreseen, or near."""
        self._more.set()
        self.go_on()

    def go_on(self) -> None:
        """There may be something to fetch, and room for it."""
        self._held_back = False
        self.count += 1
        self._wake()

    def landed(self) -> None:
        """What was being fetched is no longer."""
        self.count += 1
        self._wake()

    def look_on(self) -> None:
        """Not all has been looked at."""
        self._wake()

    def hold_back(self) -> None:
        """Something found no room."""
        if not self._held_back:
            self._held_back = True
            self._more.set()  # its time starts

    def starve(self) -> None:
        """All that may be ahead is: a reader that goes on makes room for more."""
        self._starved = True

    def reader_went_on(self) -> None:
        """A file that a plan names was opened."""
        if self._held_back or self._starved:
            self._starved = False
            self.go_on()

    async def wait(self) -> None:
        """Until a schedule has changed since the last wait, or it is time to look for room again. For one task."""
        with trio.move_on_after(_LOOK_AGAIN_S if self._held_back else math.inf) as waiting:
            await self._more.wait()
        if waiting.cancelled_caught:
            self.go_on()
        self._more = trio.Event()


@dataclasses.dataclass(eq=False)
class FollowedPlans:
    """Event loop only."""

    plans: PlanRegistry
    reservation: SpaceReservation
    changes: PlanChanges
    held: ChunkMemory
    metrics: Metrics
    _under_way = 0
    _arrived_s = -math.inf
    """When a chunk came last."""

    @property
    def any_followed(self) -> bool:
        """A learner follows a plan now."""
        return any(True for _plan in self.plans.followed())

    # -- for the one who follows them ---------------------------------------------------------------------------------

    @property
    def chunks_under_way(self) -> int:
        """Chunks that are being fetched for plans."""
        return self._under_way

    def begin(self) -> None:
        """One more chunk is under way. Each needs an `end`."""
        self._under_way += 1

    def end(self) -> None:
        """One of them is no longer under way."""
        self._under_way -= 1

    def arrived(self) -> None:
        """A chunk has come."""
        self._arrived_s = trio.current_time()

    def failed(self, plan: EpochPlan, unit: int, path: bytes, error: HfsError) -> None:
        """A unit of a plan cannot be had: its reader meets the error itself, or reads it where links lead to."""
        if isinstance(error, LeadsOut):
            if not plan.outside:
                log.info("a hint names links that lead out of SOURCE, of which nothing is fetched: %s", error)
            plan.leads_out(unit)
            return
        if plan.missing == 0:
            log.warning("a hint names what cannot be had, %s: %s", path, error)
        plan.failed(unit)
        self.metrics.add("hints_missing")

    # -- for readers and the resolver ---------------------------------------------------------------------------------

    def is_planned(self, version: Version, index: int) -> bool:
        """Whether a plan that is followed names a chunk."""
        its = self.plans.unit(version, index)
        return its is not None and its[0].schedule.expected.is_wanted(its[1])

    def scheduled(self, version: Version, index: int) -> ScheduledChunk | None:
        """What the plans say of a chunk; None if none that is followed names it."""
        its = self.plans.unit(version, index)
        samples = its[0].schedule.expected.samples_soon(its[1]) if its is not None else None
        if its is None or samples is None:
            return None
        sample_bytes = its[0].sample_bytes
        return ScheduledChunk(samples * sample_bytes, sample_bytes, self.comes(version, index))

    def comes(self, version: Version, index: int) -> bool:
        """Whether a chunk that is not here comes by itself, with many others in the order of the file."""
        its = self.plans.unit(version, index)
        if its is None or self.changes.held_back or self.reservation.is_tight:
            return False
        if not self._under_way and trio.current_time() > self._arrived_s + _STALLED_S:
            return False  # those for whom it was planned have stopped
        return its[0].schedule.fetch_order.comes_in_sweep(its[1])

    def asked(self, version: Version, index: int) -> None:
        """A read of a chunk has come to us: the kernel has let it go, or part of it."""
        its = self.plans.unit(version, index)
        if its is not None:
            its[0].pushed.discard((version, index))

    def missed(self, version: Version, index: int) -> None:
        """A chunk of a planned file was to be here, and is not."""
        its = self.plans.unit(version, index)
        if its is not None:
            its[0].schedule.evicted(np.array([its[1]], np.int32))

    def opened(self, node: Node, *, staged: bool) -> bool:
        """A small file was opened. True: a plan that looks ahead names it, so its siblings say nothing."""
        its = self._small(node)
        if its is None:
            return False
        plan, unit = its
        if not staged and plan.may_know(unit):
            plan.held.discard(unit)
            if unit in plan.under_way:
                plan.overtaken.add(plan.layout.path(unit))
            plan.schedule.evicted(np.array([unit], np.int32))
        plan.schedule.seen(unit, trio.current_time())
        self.changes.reader_went_on()
        return plan.is_foreseen

    def opened_at(self, path: bytes, staged: bool) -> bool:
        """A small file that is no node was opened. Whether an order names it."""
        path_hash = hash_of(path)
        for plan in self.plans.followed():
            unit = plan.layout.find(path, path_hash) if plan.layout.whole else None
            if unit is not None:
                if not staged and unit in plan.under_way and plan.may_know(unit):
                    plan.overtaken.add(path)
                plan.schedule.seen(unit, trio.current_time())
                self.changes.reader_went_on()
                return plan.is_foreseen
        return False

    def closed(self, node: Node, file: StagedFile) -> None:
        """A small file was closed: whoever had it fetched, it may be here now."""
        its = self._found(node)
        if its is None:
            return
        self.held.let_go(file.version, 0)
        plan, unit = its
        if plan.objects is not None and file.complete and plan.may_know(unit):
            plan.objects[unit] = file.object_id or 0
            plan.schedule.here(unit, file.size)

    def _small(self, node: Node) -> tuple[EpochPlan, int] | None:
        """The plan that names a small file and is being followed, and the file's unit there."""
        found = self._found(node)
        if found is not None and found[0].learners:
            return found
        path, path_hash = b"", 0
        for plan in self.plans.followed():
            if plan.layout.whole:
                path = path or node.path
                path_hash = path_hash or hash_of(path)
                unit = plan.layout.find(path, path_hash)
                if unit is not None:
                    plan.units_of[node] = unit
                    return plan, unit
        return None

    def _found(self, node: Node) -> tuple[EpochPlan, int] | None:
        """The plan that this node was found for last, one that is being followed before others."""
        found = [(plan, unit) for plan in self.plans if (unit := plan.units_of.get(node)) is not None]
        return max(found, key=lambda its: bool(its[0].learners), default=None)
