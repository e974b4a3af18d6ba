"""Following: what the epoch plans name is staged in time, and brought into memory a moment before its use.

Three loops joined by bounded work, as in Chainer's prefetch through node-local storage (Serizawa & Tatebe, 2019): the
orders (`hint_session.py`), the staging of what they name (`next_work` and `carry_out`, for the prefetch workers), and
the page-cache warming of what is staged (`run`). When the cache is full, what is needed last makes room for what is
needed first (`policies.schedule.schedule`), so a data set larger than the cache is read as seldom as can be.

A hint can only make it faster: what it names and cannot be had is counted, and its reader meets the error itself. Opens
no path.
"""

from __future__ import annotations

import dataclasses
import errno
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import count
from typing import Any

import msgspec
import trio

from hfs.mountd.core.background import SLICE_S
from hfs.mountd.core.caller import Credentials
from hfs.mountd.core.errors import HfsError, SourceError, SourceTimeout, VersionChanged, ungrouped
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.hints.epoch_plan import EpochPlan, Work
from hfs.mountd.hints.followed_plans import FollowedPlans, PlanChanges
from hfs.mountd.hints.hint_session import HintSession
from hfs.mountd.hints.page_cache_warmer import PageCacheWarmer
from hfs.mountd.hints.plan_registry import PlanRegistry
from hfs.mountd.hints.planned_units import PlannedChunks, PlannedFiles
from hfs.mountd.hints.space_reservation import SpaceReservation
from hfs.mountd.namespace import LeadsOut, Namespace, Node, Permissions
from hfs.mountd.wire.protocol import Failure, Join, Result, packed

log = logging.getLogger(__name__)

_FILES_AT_ONCE = 16
"""Small files of one piece of work: one trip to a thread for all of them, and no longer than 0.1 s on a slow source."""

_NEAR_UNITS = 256
"""Uses ahead of the sampler that are made ready: two batches, and less than a tenth of a second of a fast reader."""


MAX_LEARNERS = 256
"""Connections of root and the owner of the mount: sixteen processes with sixteen samplers each."""

_OF_A_USER = 128
"""Of one user who is neither: there is room for others."""
_OF_OTHERS = 4 * _OF_A_USER
"""Of all of these together."""

_MAX_TEXT = 256
"""Characters of a name: all of them are in each status."""


class Learners:
    """Learners: the training processes that have joined, told apart by job, layout, rank and name.

    Each has a `HintSession` as long as its connection lasts, and takes part in the `EpochPlan` of its layout. Event
    loop only; reads and opens nothing.

    All of them, and the plans of the layouts that they read by.
    """

    def __init__(
        self,
        chunk_bytes: int,
        metrics: Metrics,
        run_in_thread: Callable[..., Awaitable[Any]],
        *,
        changed: Callable[[], object] = lambda: None,
        coalesce_bytes: int = 0,
    ) -> None:
        """`run_in_thread`: as trio.to_thread.run_sync. `changed`: a schedule has."""
        self.plans = PlanRegistry(chunk_bytes, run_in_thread, coalesce_bytes=coalesce_bytes)
        self._metrics = metrics
        self._changed = changed
        self._numbers = count()
        self._sessions: dict[int, HintSession] = {}
        self._past: list[tuple[Credentials | None, dict[str, Any]]] = []

    def __len__(self) -> int:
        return len(self._sessions)

    def join(
        self, join: Join, pid: int, reader: Credentials | None = None
    ) -> tuple[HintSession | None, Result | Failure]:
        """A connection wants to be a learner. The answer is to be sent; with None that is the end of it. `reader`:
        whose rights at the source count; None: the daemon's own."""
        refused = self._refusal(join, reader)
        if refused is not None:
            return None, refused
        session = HintSession(
            self.plans, next(self._numbers), join, pid, reader, self._metrics, changed=self._changed, left=self._left
        )
        self._sessions[session.number] = session
        self.plans.memory.add(session)
        known = session.plan_key in self.plans
        if known:
            self.plans.move_to_end(session.plan_key)
            session.enter()
        return session, Result(detail={"layout": "known" if known else "wanted"})

    def _refusal(self, join: Join, reader: Credentials | None) -> Failure | None:
        likes = [other for other in self._sessions.values() if (other.reader is None) == (reader is None)]
        most = MAX_LEARNERS if reader is None else _OF_OTHERS
        if len(likes) >= most:
            return Failure(f"{most} learners have joined; more are not followed")
        ours = [other for other in likes if _uid(other.reader) == _uid(reader)]
        if reader is not None and len(ours) >= _OF_A_USER:
            return Failure(f"{_OF_A_USER} learners of user {reader.uid} have joined; more are not followed")
        for field in ("layout", "name", "job", "process"):
            if len(getattr(join, field)) > _MAX_TEXT:
                return Failure(f"{field} is longer than {_MAX_TEXT} characters", 2)
        if not 0 <= join.rank < join.world:
            return Failure(f"rank {join.rank} of {join.world}: a rank is 0 to {join.world - 1}", 2)
        for other in ours:
            same = (other.join.job, other.join.layout, other.join.rank, other.join.name)
            if same == (join.job, join.layout, join.rank, join.name) and other.join.process != join.process:
                reason = f"rank {join.rank} of {join.world} has joined already, as process {other.pid}"
                return Failure(f"{reason}; give each learner its own rank, or each job its own name", 2)
        return None

    def _left(self, session: HintSession) -> None:
        """A learner has gone; its figures are kept for the summary."""
        del self._sessions[session.number]
        self.plans.memory.remove(session)
        if session.epochs:
            self._past = [*self._past, (session.reader, session.shown())][-MAX_LEARNERS:]
        self.plans.forget_idle()
        self._changed()

    async def status(self, reader: Credentials | None) -> dict[str, Any]:
        """For `hfs status`, in slices: learners now and before, each packed, and layouts; of one user, or all."""
        learners: list[msgspec.Raw] = []
        past: list[msgspec.Raw] = []

        def steps() -> Iterator[None]:
            for session in list(self._sessions.values()):
                if reader in (None, session.reader) and session.number in self._sessions:
                    learners.append(packed(session.shown()))
                    yield
            for whose, figures in self._past:
                if reader in (None, whose):
                    past.append(packed(figures))
                    yield

        await self.plans.slices.carry_out(steps())
        return {"learners": learners, "past": past, "layouts": self.plans.shown(reader)}


def _uid(reader: Credentials | None) -> int | None:
    return None if reader is None else reader.uid


class ReadableFiles:
    """Which files of a plan may be fetched for it: those that whoever has sent the order may read at the source.

    Root and the owner of the mount need not be asked for. For others the source is asked as that user, once for each
    file and job, a few files at a time just before they are fetched; what is refused counts as missing, as what is not
    there. Of a link what it names is judged, and the way to that, each time. Event loop only; fetches nothing.
    """

    def __init__(
        self, namespace: Namespace, permissions: Permissions, plans: FollowedPlans, changes: PlanChanges
    ) -> None:
        self._namespace = namespace
        self._permissions = permissions
        self._plans = plans
        self._changes = changes

    async def of(self, plan: EpochPlan, units: Sequence[int], left: set[int]) -> Sequence[int]:
        """Those of `units` that may be fetched. Takes those that may not be from `left`; what could not be asked now
        stays there. Never raises HfsError."""
        reader, readable = plan.reader, plan.readable
        if reader is None or readable is None:
            return units
        if self._permissions.is_own(reader):
            plan.readable = None
            return units
        number_of = {unit: plan.layout.place(unit)[0] for unit in units}
        asked = sorted({number for number in number_of.values() if not readable[number]})
        found: dict[int, bool | bytes | SourceError] = {}
        try:
            if asked:
                paths = [plan.layout.path(number) for number in asked]
                found = dict(zip(asked, await self._ask(reader, paths), strict=True))
        except HfsError as error:
            log.debug("asking as user %d: %s", reader.uid, error)
            self._changes.hold_back()
            return [unit for unit in units if readable[number_of[unit]]]
        may: list[int] = []
        for unit in units:
            number = number_of[unit]
            answer = found.get(number, True)
            if isinstance(answer, SourceError) or not answer:
                left.discard(unit)
                why_not = answer or SourceError(errno.EACCES, f"read as user {reader.uid}")
                self._plans.failed(plan, unit, plan.layout.path(number), why_not)
                continue
            if isinstance(answer, bytes):
                plan.named[unit] = answer  # and asked again the next time: another may stand there
            else:
                readable[number] = True
            may.append(unit)
        return may

    async def _ask(self, reader: Credentials, paths: Sequence[bytes]) -> list[bool | bytes | SourceError]:
        """Whether `reader` may read each; of what is a link, or lies behind one, what it names, if he may read that;
        LeadsOut. Raises SourceTimeout and what else says nothing about that."""
        directories: dict[bytes, Node | None] = {}
        places: dict[bytes, tuple[Node, bytes]] = {}
        for path in paths:
            head, _, name = path.rpartition(b"/")
            if head not in directories:
                directories[head] = await self._directory(head)
            directory = directories[head]
            if directory is not None and name:
                places[path] = directory, name
        answers = dict(zip(places, await self._permissions.readable(reader, list(places.values())), strict=True))
        links = [path for path in paths if answers.get(path) is None]
        named = await self._ask_links(reader, links) if links else {}
        return [named[path] if answers.get(path) is None else bool(answers[path]) for path in paths]

    async def _ask_links(self, reader: Credentials, paths: Sequence[bytes]) -> dict[bytes, bool | bytes | SourceError]:
        """What each of these names once links are followed, if `reader` may read it; else False, or why not."""
        ways: dict[bytes, list[tuple[bytes, bytes]]] = {path: [] for path in paths}
        ends: dict[bytes, Node | LeadsOut] = {}

        async def follow(path: bytes) -> None:
            try:
                ends[path] = await self._namespace.links.follow(path, way=ways[path])
            except LeadsOut as error:
                ends[path] = error
            except SourceTimeout:
                raise
            except (SourceError, VersionChanged):
                pass

        with ungrouped():
            async with trio.open_nursery() as nursery:
                for path in ways:
                    nursery.start_soon(follow, path)
        may_go = await self._permissions.may_go(reader, [ways[path] for path in ends])
        there = {path: end for (path, end), may in zip(ends.items(), may_go, strict=True) if may}
        files = {
            path: (end.parent, end.name)
            for path, end in there.items()
            if isinstance(end, Node) and end.version is not None and end.parent is not None
        }
        answers = dict(zip(files, await self._permissions.readable(reader, list(files.values())), strict=True))
        found: dict[bytes, bool | bytes | SourceError] = dict.fromkeys(paths, False)
        for path, end in there.items():
            if isinstance(end, LeadsOut):
                found[path] = end
            elif answers.get(path):
                found[path] = end.path
        return found

    async def _directory(self, path: bytes) -> Node | None:
        try:
            node = await self._namespace.lookups.resolve(path)
            return node if node.children is not None else None
        except SourceTimeout:
            raise
        except (SourceError, VersionChanged):
            return None


@dataclasses.dataclass(eq=False)
class HintFollower:
    """Event loop only; `run` is a task of the daemon's nursery."""

    plans: PlanRegistry
    readable: ReadableFiles
    files: PlannedFiles
    chunks: PlannedChunks
    reservation: SpaceReservation
    warmer: PageCacheWarmer
    changes: PlanChanges
    metrics: Metrics
    _looks_on = False
    """A worker goes on looking in the next turn: a look for work takes a slice of time, for all plans together."""
    _left = 0
    """Plans that are to be looked at before there is nothing to fetch, unless there are changes."""
    _changes_seen = -1

    # -- staging ------------------------------------------------------------------------------------------------------

    def next_work(self) -> Work | None:
        """What to fetch now."""
        if self.changes.held_back or self._looks_on:
            return None
        now_s, until_s = trio.current_time(), time.thread_time() + SLICE_S
        followed = list(self.plans.followed())
        if not self._left or self.changes.count != self._changes_seen:
            self._left, self._changes_seen = len(followed), self.changes.count
        for plan in followed[: self._left]:
            if time.thread_time() >= until_s:
                return self._look_on(plan, followed[: followed.index(plan)])
            whole = plan.layout.whole
            self._left -= 1
            if not (whole or self.chunks.may_begin(plan)):
                continue
            limit = self._files_at_once(plan) if whole else 1
            fetch_order = plan.schedule.fetch_order
            while not (units := fetch_order.take(limit, self.reservation.budget_bytes(), now_s)):
                if not fetch_order.searching:
                    break
                if time.thread_time() >= until_s:
                    self._left = len(followed)
                    return self._look_on(plan, followed[: followed.index(plan) + 1])
            if units:
                self._left = 0
                self.plans.move_to_end(plan.key)  # one plan after the other
                if not whole:
                    self.chunks.begin(now_s)
                return Work(plan, tuple(units))
            if self.reservation.is_tight:
                self.changes.starve()
        return None

    def _look_on(self, plan: EpochPlan, looked_at: Sequence[EpochPlan]) -> Work:
        """In the next turn, with those that have not been looked at first."""
        for each in looked_at:
            self.plans.move_to_end(each.key)
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
                self.changes.look_on()
            return
        left = set(work.units)
        work.plan.under_way.update(work.units)
        try:
            units = await self.readable.of(work.plan, work.units, left)
            if not units:
                pass
            elif work.plan.layout.whole:
                await self.files.stage(work.plan, units, left)
            elif await self.chunks.stage(work.plan, units[0]):
                left.clear()
            else:
                self.changes.hold_back()
        except Exception:
            self.changes.hold_back()  # whatever it was, not at once again
            raise
        finally:
            if not work.plan.layout.whole:
                self.chunks.end()
            work.plan.land(work.units)
            for unit in left:
                work.plan.schedule.refused(unit)
            self.changes.landed()

    # -- into memory --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Warm the page cache with what is used next. Never returns."""
        while True:
            await self.changes.wait()
            for plan in self.plans:
                for number in list(plan.learners):
                    await trio.lowlevel.checkpoint()
                    try:
                        await self._warm(plan, number)
                    except HfsError as error:
                        log.debug("warming the page cache: %s", error)
                    except Exception:  # a defect: the mount goes on
                        self.metrics.add("unexpected_errors")
                        log.exception("unforeseen error while warming the page cache")

    async def _warm(self, plan: EpochPlan, learner: int) -> None:
        units = [unit for unit in plan.schedule.near(learner, _NEAR_UNITS) if plan.may_know(unit)]
        if plan.layout.whole:
            await self.warmer.files(plan, units)
        else:
            await self.warmer.chunks(plan, units)
