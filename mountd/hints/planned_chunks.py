"""Chunks of large files that a plan names: found, fetched and staged, one at a time for each worker.

How many at once follows from how fast they come (policies/prefetch/concurrency.py). A chunk that does not stay on the
disk is only held in memory for its reader. Errors are counted: the reader meets them itself.
"""

from __future__ import annotations

import trio

from hfs.mountd.cache import Cache
from hfs.mountd.core.errors import HfsError, VersionChanged
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.core.printable import shown_path
from hfs.mountd.fetch import Ensured, Goal, Push, Resolver
from hfs.mountd.hints.epoch_plan import EpochPlan
from hfs.mountd.hints.followed_plans import FollowedPlans
from hfs.mountd.hints.page_cache_warmer import PageCacheWarmer
from hfs.mountd.hints.space_reservation import SpaceReservation
from hfs.mountd.namespace import Namespace
from hfs.policies.prefetch.concurrency import Concurrency

_SWEPT_AT_ONCE = 8
"""Chunks of a long sweep: none of them is waited for more than the others, so there may be enough of them under way
that the source never rests between two. With as few as are best for the first one it rested a third of the time."""


class PlannedChunks:
    """Event loop only. `at_once`: chunks under way at most."""

    def __init__(
        self,
        plans: FollowedPlans,
        namespace: Namespace,
        cache: Cache,
        resolver: Resolver,
        reservation: SpaceReservation,
        warmer: PageCacheWarmer,
        metrics: Metrics,
        *,
        at_once: int,
    ) -> None:
        self._plans = plans
        self._namespace = namespace
        self._cache = cache
        self._resolver = resolver
        self._reservation = reservation
        self._warmer = warmer
        self._metrics = metrics
        self._concurrency = Concurrency(at_once)

    def may_begin(self, plan: EpochPlan) -> bool:
        """Whether one more chunk of a plan may be under way."""
        limit = self._concurrency.limit
        return self._plans.chunks_under_way < (
            max(limit, _SWEPT_AT_ONCE) if plan.schedule.fetch_order.is_sweeping else limit
        )

    def begin(self, now_s: float) -> None:
        """One more is under way; `end` belongs to it."""
        if not self._plans.chunks_under_way:
            self._concurrency.begin(now_s)
        self._plans.begin()

    def end(self) -> None:
        """It is under way no more."""
        self._plans.end()

    async def stage(self, plan: EpochPlan, unit: int) -> bool:
        """Have a chunk staged. False: not now, since the cache disk rests. Never raises HfsError."""
        number, index = plan.layout.place(unit)
        assert index is not None
        schedule, path = plan.schedule, plan.path(unit)
        try:
            node = await self._namespace.links.find(path, through_links=plan.follows_links)
            if node.version is None or node.version.size != plan.layout.file_size(number):
                raise VersionChanged(f"{shown_path(path)} is not what the layout was made of: make the layout anew")
            file = self._cache.files.get_nowait(node.version) or await self._cache.files.get(node.version, node.path)
            if file.chunk_bytes != plan.layout.chunk_bytes:
                raise VersionChanged(f"{shown_path(path)} was staged in chunks of {file.chunk_bytes} bytes")
            self._plans.plans.note_file(plan, number, file)
            size = file.chunk(index).size
            if index in file.present or await self._resolver.ensure_at_owner(node, file, index):
                schedule.here(unit, size)
                return True
            stays = await self._reservation.stays(plan, [unit])
            try:
                if stays.each[0] and not self._cache.admission.admits_nowait(file, size):
                    return False  # the cache disk rests
                push = Push.WHOLE if self._warmer.wants_pushed(node, file) else Push.NOTHING
                goal = Goal.STAGED if stays.each[0] else Goal.IN_MEMORY
                if await self._resolver.ensure(node, file, index, goal, push=push, soon=True) is Ensured.FETCHED:
                    self._plans.arrived()
                    self._metrics.add("hinted_bytes", size)
                    self._concurrency.arrived(size, trio.current_time())
                    if push is Push.WHOLE:
                        plan.pushed.add((file.version, index))
            finally:
                self._reservation.settled(stays)
            schedule.arrived(unit, size)
        except HfsError as error:
            self._plans.failed(plan, unit, path, error)
        return True
