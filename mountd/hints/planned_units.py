"""What a plan names is found, fetched and staged: chunks of large files one by one, whole files many at a time.

What does not stay on the disk, or finds no room there after all, is held in memory for its reader. Errors are counted:
the reader meets them itself.
"""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Sequence

import trio

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.core.errors import HfsError, SourceError, StagingError, VersionChanged, shown_path
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.fetch import Become, Ensured, Goal, Owners, Place, Push, Resolver, Small, SmallFiles
from hfs.mountd.hints.epoch_plan import EpochPlan
from hfs.mountd.hints.followed_plans import FollowedPlans, PlanChanges
from hfs.mountd.hints.page_cache_warmer import PageCacheWarmer
from hfs.mountd.hints.space_reservation import SpaceReservation
from hfs.mountd.namespace import Namespace, Node
from hfs.policies.prefetch.concurrency import Concurrency

_SWEPT_AT_ONCE = 8
"""Chunks of a long sweep: none of them is waited for more than the others, so there may be enough of them under way
that the source never rests between two. With as few as are best for the first one it rested a third of the time."""


class PlannedChunks:
    """Chunks of large files, one at a time for each worker: how many at once follows from how fast they come
    (policies/prefetch/concurrency.py), `at_once` at most. Event loop only."""

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


_WARM_STREAMS = 4
"""Chunks of one large file of a list at a time."""


@dataclasses.dataclass(eq=False)
class PlannedFiles:
    """Whole files. As long as there is room the data plane fetches them where it may, without a node, and answers who
    opens them. Event loop only."""

    plans: FollowedPlans
    cache: Cache
    resolver: Resolver
    owners: Owners
    small_files: SmallFiles
    reservation: SpaceReservation
    changes: PlanChanges
    metrics: Metrics

    async def stage(self, plan: EpochPlan, units: Sequence[int], left: set[int]) -> None:
        """Have these files staged. Takes from `left` what is not to be asked for again. Never raises HfsError."""
        stays = await self.reservation.stays(plan, units)
        try:
            outcomes = await self._stage(plan, units, stays.each)
        finally:
            self.reservation.settled(stays)
        plan.is_fetched_apart = all(isinstance(one, Small) and one.node is None for one in outcomes.values())
        for unit, stay in zip(units, stays.each, strict=True):
            outcome = outcomes[unit]
            left.discard(unit)
            try:
                if isinstance(outcome, HfsError):
                    raise outcome
                if outcome.node is None:
                    self._ready(plan, unit, outcome)
                else:
                    await self._found(plan, unit, outcome.node, stay, fetched=outcome.become is Become.FETCHED)
            except StagingError:
                self.changes.hold_back()  # another time
                left.add(unit)
            except HfsError as error:
                self.plans.failed(plan, unit, plan.layout.path(unit), error)

    async def _stage(self, plan: EpochPlan, units: Sequence[int], stays: Sequence[bool]) -> dict[int, Small | HfsError]:
        def is_wanted(place: Place) -> bool:
            """False once a reader has opened it, who fetches it: once is enough."""
            directory, name = place
            return b"/".join(filter(None, (directory.path, name))) not in plan.overtaken

        outcomes: dict[int, Small | HfsError] = {}
        for stay in dict.fromkeys(stays):
            some = [unit for unit, its in zip(units, stays, strict=True) if its == stay]
            goal = Goal.HERE if stay else Goal.IN_MEMORY
            # Not into the page cache: what is needed soon is put there when it is.
            paths = [plan.path(unit) for unit in some]
            found = await self.small_files.stage_paths(
                paths,
                goal,
                by_nodes=self.reservation.is_tight,
                wanted=is_wanted,
                through_links=plan.follows_links,
            )
            outcomes.update(zip(some, found, strict=True))
        return outcomes

    def _ready(self, plan: EpochPlan, unit: int, small: Small) -> None:
        """The data plane has a file, or is fetching it."""
        plan.ready.add(unit)
        if small.size:
            plan.looked_at(small.size)
        if small.number and plan.objects is not None:
            plan.objects[unit] = small.number
        if small.become is Become.FETCHED and small.size is not None:
            plan.schedule.arrived(unit, small.size)
            self.metrics.add("hinted_bytes", small.size)
        else:
            plan.schedule.here(unit, small.size or plan.mean_bytes)

    async def _found(self, plan: EpochPlan, unit: int, node: Node, stay: bool, *, fetched: bool) -> None:
        """A file is there, and what became of it is told to the schedule. Raises HfsError."""
        path, schedule = node.path, plan.schedule
        if node.version is None:
            raise SourceError(errno.EINVAL, f"{path.decode('utf-8', 'backslashreplace')} is no regular file")
        file = self.cache.files.get_nowait(node.version, path) or await self.cache.files.get(node.version, path)
        if not file.complete:
            fetched |= self.resolver.is_held(file, 0)  # since a moment ago
        if file.present.count == 1 and file.size > self.small_files.limit_bytes:
            goal = Goal.HERE if stay else Goal.IN_MEMORY
            fetched = await self.resolver.ensure(node, file, 0, goal, soon=True) is Ensured.FETCHED
        plan.units_of[node] = unit
        plan.looked_at(file.size)
        fetched_bytes = file.size if fetched else 0
        if file.present.count > 1 and not file.complete:
            fetched_bytes = await self._stage_large(node, file)
            fetched = fetched_bytes > 0 and file.complete
        if file.object_id is not None and plan.objects is not None:
            plan.objects[unit] = file.object_id
        self.metrics.add("hinted_bytes", fetched_bytes)
        if fetched:
            if file.object_id is None:
                plan.held.add(unit)
            schedule.arrived(unit, file.size)
        elif self._is_here(file, path, stay):
            schedule.here(unit, file.size)
        else:
            if file.present.count > 1:
                self.changes.hold_back()  # a large file that found no room, in part
            schedule.refused(unit)  # or a small one that its reader has fetched

    def _is_here(self, file: StagedFile, path: bytes, stay: bool) -> bool:
        """Whether the reader of a file finds it here, or on its way, or on the node that owns it."""
        if file.complete or self.resolver.is_coming(file, 0):
            return True
        return stay and not self.owners.caches_locally(path, 0) and self.owners.is_kept(path, 0)

    async def _stage_large(self, node: Node, file: StagedFile) -> int:
        """All chunks of a large file that is one sample. The bytes of those that were fetched for it."""
        missing = [] if file.present.too_many else list(file.present.missing())
        fetched_bytes = 0

        async def stream() -> None:
            nonlocal fetched_bytes
            while missing:
                index = missing.pop(0)
                if not self.cache.admission.admits_nowait(file, file.chunk(index).size):
                    missing.clear()  # it would be read to be thrown away
                    return
                try:
                    if await self.resolver.ensure(node, file, index, Goal.STAGED, soon=True) is Ensured.FETCHED:
                        fetched_bytes += file.chunk(index).size
                except HfsError:
                    missing.clear()

        async with trio.open_nursery() as nursery:
            for _ in range(min(_WARM_STREAMS, len(missing))):
                nursery.start_soon(stream)
        return fetched_bytes
