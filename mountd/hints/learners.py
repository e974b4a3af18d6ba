"""Learners: who has said in which order it will read, and what came of it.

One `HintSession` is one connection of `control`: it joins, brings its layout if nobody has, sends an order an epoch and
how far it is, and leaves with its connection. One `EpochPlan` is one layout with the schedule of all its learners; it
outlives them for a while, since the next epoch or the next job of the node reads the same. `hints` fetches what plans
foresee.

Nothing a learner sends is believed: layouts and orders are checked whole, bounded, and refused with a `Failure` that
says why; a learner that is refused reads on as anybody. Event loop only; reads and opens nothing.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from mountd.base.errors import HfsError
from mountd.cache import StagedFile
from mountd.core.metrics import Metrics
from mountd.hints.found_files import FoundFiles
from mountd.hints.unit_layout import UnitLayout
from mountd.namespace import Node
from mountd.wire.hints import (
    MAX_LAYOUT_BYTES,
    MAX_ORDER_SAMPLES,
    At,
    LayoutPart,
    LearnerMessage,
    Order,
    Over,
    Waited,
    decode_layout,
    layout_digest,
)
from mountd.wire.layout import LayoutError, SampleExtents
from mountd.wire.protocol import Failure, Join, Result
from policies.prefetch.sweep import Sweep
from policies.schedule.schedule import GUARD_SAMPLES, Schedule

__all__ = ["EpochPlan", "HintSession", "Learners", "Work"]

log = logging.getLogger(__name__)

MAX_LEARNERS = 256
"""Connections: sixteen processes with sixteen samplers each."""

_MAX_MEMORY_BYTES = 2 << 30
"""Layouts and orders together: eight million files of fifty bytes and eight learners that read an eighth of them each,
in this epoch and the next, take 1.5 GB."""

_BYTES_A_USE = 16
"""What a schedule keeps of each use of an order (policies/schedule/schedule.py)."""
_BYTES_A_UNIT = 21
"""What a schedule and a plan keep of each unit, and 4 more for each order."""
_BYTES_A_UNIT_OF_AN_ORDER = 4

_MAX_TEXT = 256
"""Characters of a name: all of them are in each status."""
_MAX_TIME_S = 1e9

_REPEATS = 64
"""An order may name a sample more than once (padding, weights), but not be many times as long as there are samples."""
_SHORT = 1 << 20

_KEPT_COURSES = 4
"""Layouts without learners that are remembered: training and validation of the last two jobs."""

_KEPT_EPOCHS = 100

_GUARD_BYTES = 1 << 30
"""What a loader has drawn ahead of its reads at most: four workers with two batches of 128 MB each. Without a guard the
samples that were given out first, and are waited for, were fetched after all others: 0.7 s for the first of 48 MiB."""

_SMALL_FILE_BYTES = 110_000
"""What a file of a list is taken for until one has been looked at: an image."""


@dataclass(frozen=True, slots=True)
class Work:
    """Units of one plan for one worker of `prefetch`."""

    plan: EpochPlan
    units: tuple[int, ...]


class EpochPlan:
    """One layout, and the schedule of those who read it."""

    def __init__(self, layout: UnitLayout, coalesce_bytes: int) -> None:
        """`coalesce_bytes`: of chunks that are fetched in the order of the file, at most."""
        self.layout = layout
        sizes = layout.unit_bytes()
        self.schedule = Schedule(
            layout.units,
            _SMALL_FILE_BYTES if sizes is None else sizes,
            guard_samples=min(GUARD_SAMPLES, 1 + _GUARD_BYTES // max(1, layout.sample_bytes())),
            uses_are_seen=layout.whole,
            sweep=None if layout.whole else Sweep(layout.samples / max(1, layout.units)),
            sweep_units=coalesce_bytes // layout.chunk_bytes,
        )
        self.sample_bytes = layout.sample_bytes()
        self.objects: NDArray[np.int64] | None = np.zeros(layout.units, np.int64) if layout.whole else None
        """Of whole files: the staged object of each, 0 where none is known."""
        self.learners: dict[int, HintSession] = {}
        self.staged: dict[int, StagedFile] = {}
        """Of extents: the staged file of each file, once a chunk of it was wanted."""
        self.under_way: set[int] = set()
        """Units that a worker has taken and not staged yet."""
        self.overtaken: set[bytes] = set()
        """The paths of those whole files that a reader opens meanwhile, and fetches himself: once is enough."""
        self.files = FoundFiles()
        self.held: set[int] = set()
        """Whole files that are not staged, only held in memory until they are read."""
        self._looked_at, self._looked_at_bytes = 1, _SMALL_FILE_BYTES
        self.missing = 0
        """Files of the layout that could not be fetched."""

    @property
    def memory_bytes(self) -> int:
        """What it takes, about, without the orders."""
        return self.layout.memory_bytes + _BYTES_A_UNIT * self.layout.units

    def land(self, units: Sequence[int]) -> None:
        """These are no longer under way."""
        self.under_way.difference_update(units)
        if self.overtaken:
            self.overtaken.difference_update(map(self.layout.path, units))

    def looked_at(self, size: int) -> None:
        """One file of the list has this many bytes."""
        self._looked_at += 1
        self._looked_at_bytes += size

    def staged_units(self) -> NDArray[np.int32]:
        """The units that are staged, as far as is known."""
        if self.objects is not None:
            return np.flatnonzero(self.objects).astype(np.int32)
        found = [self.layout.unit(number, i) for number, file in self.staged.items() for i in file.present]
        return np.array(found, np.int32)

    def begin(self) -> None:
        """An epoch begins: what was here and has gone unnoticed is to be fetched again."""
        gone = np.ones(self.layout.units, bool)
        gone[self.staged_units()] = False
        gone[list(self.held)] = False
        self.schedule.evicted(np.flatnonzero(gone))

    @property
    def mean_bytes(self) -> int:
        """Of a file of a list, by those that were looked at."""
        return self._looked_at_bytes // self._looked_at

    def sizes(self, units: NDArray[np.int32]) -> NDArray[np.int64]:
        """Bytes of `units`; of files of a list their mean, since it is asked before they are looked at."""
        if self.layout.whole:
            return np.full(len(units), self.mean_bytes, np.int64)
        return self.schedule.units.sizes[units]


class HintSession:
    """One connection. `receive` is called for each of its messages, `leave` at its end."""

    def __init__(self, owner: Learners, number: int, join: Join, pid: int) -> None:
        self._owner = owner
        self.number = number
        self.join = join
        self.pid = pid
        self.plan: EpochPlan | None = None
        self.epoch: int | None = None
        self.samples = 0
        self.epochs: OrderedDict[int, dict[str, Any]] = OrderedDict()
        self._blob = bytearray()
        self._parts: list[NDArray[np.int64]] = []
        self._wait_ns = 0
        self._order_bytes = [0, 0]
        """Of the order that is followed, and of the one after it."""

    async def receive(self, message: LearnerMessage) -> Result | Failure | None:
        """What to answer, if anything. Never raises for what a learner may send."""
        try:
            match message:
                case At():
                    self.reached(message.position)
                case Waited():
                    self._waited(message)
                case Over():
                    self._over(message.epoch)
                case Order():
                    return self._order(message)
                case LayoutPart():
                    return await self._layout_part(message)
        except HfsError as error:
            log.warning("a hint of %s is not followed: %s", self.title, error)
            self._owner.metrics.add("hints_refused")
            self._parts = []
            return Failure(str(error), 2)
        return None

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.join.name or 'learner'} (rank {self.join.rank} of {self.join.world}, process {self.pid})"

    @property
    def memory_bytes(self) -> int:
        """What its orders take, and what has come of a layout or an order that is not complete."""
        return sum(self._order_bytes) + len(self._blob) + _BYTES_A_USE * sum(map(len, self._parts))

    def leave(self) -> None:
        """The connection has ended."""
        if self.plan is not None:
            self.plan.schedule.leave(self.number)
            del self.plan.learners[self.number]
        self._owner.left(self)

    # -- layout -------------------------------------------------------------------------------------------------------

    async def _layout_part(self, part: LayoutPart) -> Result | None:
        if self.plan is not None:
            return Result() if part.last else None  # another has brought it meanwhile
        if len(self._blob) + len(part.data) > MAX_LAYOUT_BYTES:
            self._blob.clear()
            raise LayoutError(f"a layout of more than {MAX_LAYOUT_BYTES} bytes")
        try:
            self._owner.check_room(len(part.data))
        except LayoutError:
            self._blob.clear()
            raise
        self._blob += part.data
        if not part.last:
            return None
        blob, self._blob = bytes(self._blob), bytearray()
        await self._owner.adopt(self.join.layout, blob)
        self.enter()
        return Result()

    def enter(self) -> None:
        """Take part in the plan of the layout that was named, which is known by now."""
        self.plan = self._owner.plans[self.join.layout]
        self.plan.learners[self.number] = self

    # -- orders -------------------------------------------------------------------------------------------------------

    def _order(self, part: Order) -> Result | None:
        plan = self._plan()
        if len(part.indices) % 8:
            raise LayoutError(f"an order of {len(part.indices)} bytes ends in the middle of a number")
        if part.start == 0:
            self._parts = []
        length = sum(map(len, self._parts))
        if part.start != length:
            raise LayoutError(f"a part of an order begins at {part.start}; {length} was expected")
        indices = np.frombuffer(part.indices, "<i8")
        length += len(indices)
        if length > min(MAX_ORDER_SAMPLES, _REPEATS * plan.layout.samples + _SHORT):
            raise LayoutError(f"an order of {length} samples or more, of {plan.layout.samples} in all, is too long")
        self._owner.check_room(_BYTES_A_USE * len(indices))
        self._parts.append(indices)
        if not part.last:
            return None
        indices, self._parts = np.concatenate(self._parts), []
        order_bytes = _BYTES_A_UNIT_OF_AN_ORDER * plan.layout.units
        # A sample may be many extents, and an extent many units: counted before they are written out.
        self._owner.check_room(order_bytes + _BYTES_A_USE * plan.layout.count_uses(indices))
        units, at = plan.layout.uses(indices)
        order_bytes += _BYTES_A_USE * len(units)
        if part.following:
            plan.schedule.follow_next(self.number, part.epoch, units, at, length)
            self._order_bytes[1] = order_bytes
        else:
            self._note_wait()
            plan.begin()
            plan.schedule.follow(self.number, part.epoch, units, at, length, trio.current_time())
            self.epoch, self.samples = part.epoch, length
            self._order_bytes = [order_bytes, 0]
            self._account(part.epoch)
        self._owner.changed()
        return Result(detail={"units": len(units)})

    def _plan(self) -> EpochPlan:
        if self.plan is None:
            raise LayoutError("an order came before its layout")
        return self.plan

    def reached(self, position: int) -> None:
        """So many samples of the order have been given out. Nonsense is harmless."""
        if self.plan is not None and self.epoch is not None:
            self.plan.schedule.advance(self.number, min(max(position, 0), self.samples), trio.current_time())
            self._owner.changed()

    def _over(self, epoch: int) -> None:
        if self.plan is not None and epoch == self.epoch:
            self._note_wait()
            self.plan.schedule.over(self.number)
            self._owner.changed()

    # -- accounts -----------------------------------------------------------------------------------------------------

    def _account(self, epoch: int) -> dict[str, Any]:
        account = self.epochs.get(epoch)
        if account is None:
            account = self.epochs[epoch] = {
                "epoch": epoch,
                "exposed_s": 0.0,
                "compute_s": 0.0,
                "other_s": 0.0,
                "batches": 0,
                "source_wait_s": 0.0,
            }
            if len(self.epochs) > _KEPT_EPOCHS:
                self.epochs.popitem(last=False)
        return account

    def _waited(self, waited: Waited) -> None:
        times = (waited.exposed_s, waited.compute_s, waited.other_s)
        if not all(0 <= time_s < _MAX_TIME_S for time_s in times) or waited.batches < 0:
            return  # nor NaN: what is shown and written as JSON are figures
        account = self._account(waited.epoch)
        account["batches"] = waited.batches
        for name in ("exposed_s", "compute_s", "other_s"):
            account[name] = round(float(getattr(waited, name)), 6)
        self._note_wait()

    def _note_wait(self) -> None:
        """All that readers of the mount have waited for the source since it was last noted is of the epoch so far."""
        now_ns = self._owner.metrics["source_wait_ns"]
        if self.epoch is not None and self.epoch in self.epochs:
            self.epochs[self.epoch]["source_wait_s"] += (now_ns - self._wait_ns) / 1e9
        self._wait_ns = now_ns

    def shown(self) -> dict[str, Any]:
        """For `hfs status`."""
        self._note_wait()
        standing = None if self.plan is None else self.plan.schedule.statistics(self.number, trio.current_time())
        figures: dict[str, Any] = {}
        if standing is not None:
            figures = {
                "position": standing.position,
                "total": standing.samples,
                "rate": standing.rate,
                "staged_share": round(standing.here_share, 4),
                "eta_s": standing.eta_s,
                "ahead_bytes": standing.ahead_bytes,
                "stopped": standing.stopped,
            }
        join = self.join
        return {
            "name": join.name,
            "job": join.job,
            "rank": join.rank,
            "world": join.world,
            "pid": self.pid,
            "layout": join.layout,
            "samples": 0 if self.plan is None else self.plan.layout.samples,
            "epoch": self.epoch,
            **figures,
            "epochs": list(self.epochs.values()),
        }


class Learners:
    """All of them. `run_in_thread`: as trio.to_thread.run_sync."""

    def __init__(
        self,
        chunk_bytes: int,
        metrics: Metrics,
        run_in_thread: Callable[..., Awaitable[Any]],
        *,
        changed: Callable[[], object] = lambda: None,
        coalesce_bytes: int = 0,
    ) -> None:
        self.metrics = metrics
        self.changed = changed
        self.plans: OrderedDict[str, EpochPlan] = OrderedDict()
        self.forgotten = 0
        """Courses that were, so far."""
        self.chunk_bytes = chunk_bytes
        self._coalesce_bytes = coalesce_bytes
        self._adopting: dict[str, trio.Event] = {}
        """Layouts that are being read, and when that has ended."""
        self.run_in_thread = run_in_thread
        self._numbers = count()
        self._learners: dict[int, HintSession] = {}
        self._past: list[dict[str, Any]] = []

    def planned(self, numbers: Collection[int]) -> set[int]:
        """Those of the staged objects that an order names: they go when it says so."""
        named: set[int] = set()
        asked = np.fromiter(numbers, np.int64, len(numbers))
        for plan in self.plans.values():
            if plan.learners and plan.objects is not None:
                named.update(asked[np.isin(asked, plan.objects)].tolist())
            elif plan.learners:
                held = {file.object_id for file in plan.staged.values()}
                named.update(number for number in numbers if number in held)
        return named

    def __len__(self) -> int:
        return len(self._learners)

    def join(self, join: Join, pid: int) -> tuple[HintSession | None, Result | Failure]:
        """A connection wants to be a learner. The answer is to be sent; with None that is the end of it."""
        if len(self._learners) >= MAX_LEARNERS:
            return None, Failure(f"{MAX_LEARNERS} learners have joined; more are not followed")
        for field in ("layout", "name", "job", "process"):
            if len(getattr(join, field)) > _MAX_TEXT:
                return None, Failure(f"{field} is longer than {_MAX_TEXT} characters", 2)
        if not 0 <= join.rank < join.world:
            return None, Failure(f"rank {join.rank} of {join.world}: a rank is 0 to {join.world - 1}", 2)
        for other in self._learners.values():
            same = (other.join.job, other.join.layout, other.join.rank, other.join.name)
            if same == (join.job, join.layout, join.rank, join.name) and other.join.process != join.process:
                reason = f"rank {join.rank} of {join.world} has joined already, as process {other.pid}"
                return None, Failure(f"{reason}; give each learner its own rank, or each job its own name", 2)
        learner = HintSession(self, next(self._numbers), join, pid)
        self._learners[learner.number] = learner
        known = join.layout in self.plans
        if known:
            self.plans.move_to_end(join.layout)
            learner.enter()
        return learner, Result(detail={"layout": "known" if known else "wanted"})

    async def adopt(self, digest: str, blob: bytes) -> None:
        """Learn a layout. Raises LayoutError, ProtocolError."""
        while (other := self._adopting.get(digest)) is not None:
            await other.wait()  # the learners of a job begin together
        if digest in self.plans:
            return
        self.check_room(2 * len(blob))
        ended = self._adopting[digest] = trio.Event()
        try:
            layout = await self.run_in_thread(_read_layout, digest, blob, self.chunk_bytes)
            self.check_room(layout.memory_bytes + _BYTES_A_UNIT * layout.units)
            self.plans[digest] = EpochPlan(layout, self._coalesce_bytes)
        finally:
            del self._adopting[digest]
            ended.set()
        self._forget_old()

    def forget(self, node: Node) -> None:
        """Nobody knows `node` any more."""
        for plan in self.plans.values():
            plan.files.forget(node)

    def check_room(self, more_bytes: int) -> None:
        """Raise LayoutError if so much more would be more than is kept of hints in all."""
        held = sum(plan.memory_bytes for plan in self.plans.values())
        held += sum(learner.memory_bytes for learner in self._learners.values())
        if held + more_bytes > _MAX_MEMORY_BYTES:
            raise LayoutError(f"hints of {held + more_bytes} bytes are more than the {_MAX_MEMORY_BYTES} that are kept")

    def left(self, learner: HintSession) -> None:
        """A learner has gone; its figures are kept for the summary."""
        del self._learners[learner.number]
        if learner.epochs:
            self._past = [*self._past, learner.shown()][-MAX_LEARNERS:]
        self._forget_old()
        self.changed()

    def _forget_old(self) -> None:
        idle = [digest for digest, plan in self.plans.items() if not plan.learners]
        for digest in idle[: max(0, len(idle) - _KEPT_COURSES)]:
            del self.plans[digest]
            self.forgotten += 1

    def shown(self) -> dict[str, Any]:
        """For `hfs status`: learners now and before, and layouts."""
        return {
            "learners": [learner.shown() for learner in self._learners.values()],
            "past": self._past,
            "layouts": [
                {
                    "digest": digest,
                    "files": plan.layout.files,
                    "samples": plan.layout.samples,
                    "bytes": plan.layout.bytes,
                    "missing": plan.missing,
                    "ahead_bytes": plan.schedule.units.ahead_bytes,
                }
                for digest, plan in self.plans.items()
            ],
        }


def _read_layout(digest: str, blob: bytes, chunk_bytes: int) -> UnitLayout:
    """In a thread: half a second for ten million files."""
    if layout_digest(blob) != digest:
        raise LayoutError("the layout that came is not the one that was announced")
    return UnitLayout(digest, SampleExtents.of_frame(decode_layout(blob)), chunk_bytes)
