"""The epoch plans that are being followed, as readers and the resolver see them: what they say of a file or a chunk.

Readers tell here what they open, close and miss; that is noted in the schedule of the plan that names it. Also here,
because it decides whether a chunk still comes by itself: whether following is held back, and when a chunk came last.
Depends on nothing that fetches. Never fetches, never raises.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection

import numpy as np
import trio

from mountd.base.errors import HfsError
from mountd.base.version import Version
from mountd.cache import StagedFile
from mountd.core.metrics import Metrics
from mountd.fetch import HeldChunks
from mountd.hints.learners import EpochPlan, Learners
from mountd.hints.plan_changes import PlanChanges
from mountd.hints.space_reservation import SpaceReservation
from mountd.namespace import Node
from policies.prefetch.miss_policy import ScheduledChunk

__all__ = ["FollowedPlans"]

log = logging.getLogger(__name__)

_STALLED_S = 2.0
"""When no chunk has come for so long and none is under way, whoever waits for one fetches it."""


class FollowedPlans:
    """Event loop only. `changes`: those of the plans of `learners`."""

    def __init__(
        self,
        learners: Learners,
        reservation: SpaceReservation,
        changes: PlanChanges,
        held: HeldChunks,
        metrics: Metrics,
    ) -> None:
        self.learners = learners
        self._reservation = reservation
        self._changes = changes
        self._held = held
        self._metrics = metrics
        self._by_version: dict[Version, tuple[EpochPlan, int]] = {}
        """The plan that names chunks of a file, and the file's number there."""
        self._forgotten = 0
        """Plans whose files are no longer among them."""
        self._gone: set[Version] = set()
        self._seen_changes = changes.count
        self.held_back = False
        """Something was not staged for want of room: nothing more before a reader has gone on, or time has passed."""
        self.starved = False
        """All that may be ahead is: a reader who goes on makes room for more."""
        self.chunks_under_way = 0
        self._arrived_s = -math.inf
        """When a chunk came last."""

    # -- for the one who follows them ---------------------------------------------------------------------------------

    def notice(self) -> None:
        """Schedules may have changed since the last look: more may be foreseen, or near."""
        if self._seen_changes == self._changes.count:
            return
        self._seen_changes = self._changes.count
        self.held_back = False
        if self._forgotten != self.learners.forgotten:
            self._forgotten = self.learners.forgotten
            followed = set(self.learners.plans.values())
            gone = {version for version, (plan, _) in self._by_version.items() if plan not in followed}
            self._by_version = {version: its for version, its in self._by_version.items() if version not in gone}
            self._gone |= gone

    def take_gone(self) -> Collection[Version]:
        """Files that no plan names any more, since this was asked last."""
        gone, self._gone = self._gone, set()
        return gone

    def hold_back(self) -> None:
        """Nothing more before a reader has gone on, or time has passed."""
        self.notice()
        if not self.held_back:
            self.held_back = True
            self._changes.look_again()  # the time starts

    def go_on(self) -> None:
        """There may be something to fetch again."""
        self.held_back = False
        self._changes.wake()

    def names(self, version: Version, plan: EpochPlan, number: int) -> None:
        """A file of several chunks is file `number` of a plan."""
        self._by_version[version] = plan, number

    def arrived(self) -> None:
        """A chunk has come."""
        self._arrived_s = trio.current_time()

    def failed(self, plan: EpochPlan, unit: int, path: bytes, error: HfsError) -> None:
        """A unit of a plan cannot be had: its reader meets the error itself."""
        if plan.missing == 0:
            log.warning("a hint names what cannot be had, %s: %s", path, error)
        plan.missing += 1
        plan.schedule.failed(unit)
        self._metrics.add("hints_missing")

    # -- for readers and the resolver ---------------------------------------------------------------------------------

    def is_planned(self, version: Version, index: int) -> bool:
        """Whether a plan that is followed names a chunk."""
        its = self._unit(version, index)
        return its is not None and its[0].schedule.expected.is_wanted(its[1])

    def scheduled(self, version: Version, index: int) -> ScheduledChunk | None:
        """What the plans say of a chunk; None if none that is followed names it."""
        its = self._unit(version, index)
        samples = its[0].schedule.expected.samples_soon(its[1]) if its is not None else None
        if its is None or samples is None:
            return None
        sample_bytes = its[0].sample_bytes
        return ScheduledChunk(samples * sample_bytes, sample_bytes, self.comes(version, index))

    def comes(self, version: Version, index: int) -> bool:
        """Whether a chunk that is not here comes by itself, with many others in the order of the file."""
        its = self._unit(version, index)
        if its is None or self.held_back or self._reservation.is_tight:
            return False
        if not self.chunks_under_way and trio.current_time() > self._arrived_s + _STALLED_S:
            return False  # those for whom it was planned have stopped
        return its[0].schedule.fetch_order.comes_in_sweep(its[1])

    def missed(self, version: Version, index: int) -> None:
        """A chunk of a planned file was to be here, and is not."""
        its = self._unit(version, index)
        if its is not None:
            its[0].schedule.evicted(np.array([its[1]], np.int32))

    def opened(self, node: Node, *, staged: bool) -> bool:
        """A small file was opened. True: a plan names it, so its siblings say nothing."""
        its = self._small(node)
        if its is None:
            return False
        plan, unit = its
        if not staged:
            plan.held.discard(unit)
            if unit in plan.under_way:
                plan.overtaken.add(plan.layout.path(unit))
            plan.schedule.evicted(np.array([unit], np.int32))
        plan.schedule.seen(unit, trio.current_time())
        self.notice()
        if self.held_back or self.starved:
            self.starved = False
            self.go_on()
        return True

    def closed(self, node: Node, file: StagedFile) -> None:
        """A small file was closed: whoever had it fetched, it may be here now."""
        its = self._found(node)
        if its is None:
            return
        self._held.let_go(file.version, 0)
        plan, unit = its
        if plan.objects is not None and file.complete:
            plan.objects[unit] = file.object_id or 0
            plan.schedule.here(unit, file.size)

    def _unit(self, version: Version, index: int) -> tuple[EpochPlan, int] | None:
        self.notice()
        its = self._by_version.get(version)
        if its is None:
            return None
        plan, number = its
        return plan, plan.layout.unit(number, index)

    def _small(self, node: Node) -> tuple[EpochPlan, int] | None:
        """The plan that names a small file and is being followed, and the file's unit there."""
        found = self._found(node)
        if found is not None and found[0].learners:
            return found
        paths: list[bytes] | None = None
        for plan in self.learners.plans.values():
            if plan.learners and plan.layout.whole:
                paths = node.paths if paths is None else paths
                for unit in map(plan.layout.find, paths):
                    if unit is not None:
                        plan.files.found(unit, node)
                        return plan, unit
        return None

    def _found(self, node: Node) -> tuple[EpochPlan, int] | None:
        """The plan that this node was found for last, one that is being followed before others."""
        found = [(plan, unit) for plan in self.learners.plans.values() if (unit := plan.files.unit(node)) is not None]
        return max(found, key=lambda its: bool(its[0].learners), default=None)
