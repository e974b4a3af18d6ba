"""A learner's session: one connection that brings a layout if nobody has, an order an epoch, and how far it is.

Nothing a learner sends is believed: layouts and orders are checked whole, bounded, and refused with a `Failure` that
says why; a learner that is refused reads on as anybody. Event loop only; reads and opens nothing.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from hfs.mountd.core.caller import Credentials
from hfs.mountd.core.errors import HfsError
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.hints.epoch_plan import EpochPlan, PlanKey
from hfs.mountd.hints.plan_registry import PlanRegistry
from hfs.mountd.wire.hints import (
    MAX_LAYOUT_BYTES,
    MAX_ORDER_SAMPLES,
    MAX_PART_FRAME_BYTES,
    PART_BYTES,
    At,
    LayoutPart,
    LearnerMessage,
    Order,
    Over,
    Waited,
)
from hfs.mountd.wire.layout import LayoutError
from hfs.mountd.wire.protocol import Failure, Join, Result
from hfs.policies.schedule.uses import Uses

log = logging.getLogger(__name__)

_BYTES_A_USE = 16
"""What a schedule keeps of each use of an order (policies/schedule/uses.py)."""
_BYTES_A_UNIT_OF_AN_ORDER = 4

_MAKING_BYTES_A_USE = 24
"""What is gone once it is made: its samples' numbers, and what sorts them."""

_SMALL_MESSAGE_BYTES = 1 << 16
"""Of all learners together a few megabytes: not counted. Where they are and how long they waited is always heard."""

_MAX_TIME_S = 1e9
_MOST_CORES = 1 << 20
"""More than any machine has, nor as many processes."""

_REPEATS = 64
"""An order may name a sample more than once (padding, weights), but not be many times as long as there are samples."""
_SHORT = 1 << 20

_MAX_POSITION = 1 << 62

_KEPT_EPOCHS = 100


class _Parts:
    """Bytes that come in parts, in blocks: one that grows would be copied now and then, all of it."""

    def __init__(self) -> None:
        self._blocks: list[bytearray] = []
        self.size = 0

    def add(self, part: bytes) -> None:
        if not self._blocks or len(self._blocks[-1]) + len(part) > PART_BYTES:
            self._blocks.append(bytearray())
        self._blocks[-1] += part
        self.size += len(part)

    def joined(self) -> memoryview:
        """All of them. In a thread, which keeps nobody waiting meanwhile."""
        blocks = [np.frombuffer(block, np.uint8) for block in self._blocks]
        return np.concatenate(blocks).data if blocks else memoryview(b"")


class HintSession:
    """One connection. `receive` is called for each of its messages, `leave` at its end."""

    def __init__(
        self,
        plans: PlanRegistry,
        number: int,
        join: Join,
        pid: int,
        reader: Credentials | None,
        metrics: Metrics,
        *,
        changed: Callable[[], object],
        left: Callable[[HintSession], None],
    ) -> None:
        """`reader`: whose rights at the source count; None: the daemon's own. `changed`: a schedule has. `left`: the
        connection has ended."""
        self.number = number
        self.join = join
        self.pid = pid
        self.reader = reader
        self._plans = plans
        self._metrics = metrics
        self._changed = changed
        self._left = left
        self.plan: EpochPlan | None = None
        self.epoch: int | None = None
        self.samples = 0
        self._first = 0
        """Position in the epoch of the first sample of the order."""
        self._only_given = False
        self._is_over = True
        """No epoch is under way."""
        self.epochs: OrderedDict[int, dict[str, Any]] = OrderedDict()
        self._frame_bytes = 0
        self._blob = _Parts()
        """Of a layout that has not come whole."""
        self._indices = _Parts()
        """Of an order that has not."""
        self._wait_ns = 0
        self._cpu_ns = 0
        self._order_bytes = [0, 0]
        """Of the order that is followed, and of the one after it."""

    def refusal(self, size_bytes: int) -> Failure | None:
        """A message of so many bytes begins, to be given to `receive`; the answer to it where there is no room."""
        if size_bytes <= _SMALL_MESSAGE_BYTES:
            return None
        if size_bytes > MAX_PART_FRAME_BYTES:
            return self._refused(LayoutError(f"a message of {size_bytes} bytes; parts have {PART_BYTES}"))
        try:
            self._plans.memory.check_room(size_bytes, self.reader)
        except LayoutError as error:
            self._blob = _Parts()
            return self._refused(error)
        self._frame_bytes = size_bytes
        return None

    async def receive(self, message: LearnerMessage) -> Result | Failure | None:
        """What to answer, if anything. Never raises for what a learner may send."""
        self._frame_bytes = 0
        try:
            match message:
                case At():
                    await self.reached(message.position)
                case Waited():
                    self._waited(message)
                case Over():
                    await self._over(message.epoch)
                case Order():
                    return await self._order(message)
                case LayoutPart():
                    return await self._layout_part(message)
        except HfsError as error:
            return self._refused(error)
        return None

    def _refused(self, error: HfsError) -> Failure:
        log.warning("a hint of %s is not followed: %s", self.title, error)
        self._metrics.add("hints_refused")
        self._indices = _Parts()
        return Failure(str(error), 2)

    @property
    def title(self) -> str:
        """For people, in one line of the log, whatever the learner calls itself."""
        name = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in self.join.name)
        return f"{name or 'learner'} (rank {self.join.rank} of {self.join.world}, process {self.pid})"

    @property
    def plan_key(self) -> PlanKey:
        """Of the plan that it takes part in."""
        return PlanKey(self.join.layout, self.reader)

    @property
    def memory_bytes(self) -> int:
        """What its orders take, and what has come of a layout or an order that is not complete."""
        return sum(self._order_bytes) + self._frame_bytes + self._blob.size + self._indices.size

    def leave(self) -> None:
        """The connection has ended."""
        if self.plan is not None:
            self.plan.schedule.leave(self.number)
            self.plan.learners.remove(self.number)
            self.plan.given_only.discard(self.number)
        self._left(self)

    # -- layout -------------------------------------------------------------------------------------------------------

    async def _layout_part(self, part: LayoutPart) -> Result | None:
        if self.plan is not None:
            return Result() if part.last else None  # another has brought it meanwhile
        if self._blob.size + len(part.data) > MAX_LAYOUT_BYTES:
            self._blob = _Parts()
            raise LayoutError(f"a layout of more than {MAX_LAYOUT_BYTES} bytes")
        try:
            self._plans.memory.check_room(len(part.data), self.reader)
        except LayoutError:
            self._blob = _Parts()
            raise
        self._blob.add(part.data)
        if not part.last:
            return None
        blob, self._blob = self._blob, _Parts()
        await self._plans.attach(self.plan_key, blob.size, blob.joined)
        self.enter()
        return Result()

    def enter(self) -> None:
        """Take part in the plan of the layout that was named, which is known by now."""
        self.plan = self._plans[self.plan_key]
        self.plan.learners.add(self.number)

    # -- orders -------------------------------------------------------------------------------------------------------

    async def _order(self, part: Order) -> Result | None:
        plan = self._plan()
        if len(part.indices) % 8:
            raise LayoutError(f"an order of {len(part.indices)} bytes ends in the middle of a number")
        if part.start == 0:
            self._indices = _Parts()
        length = self._indices.size // 8
        if part.start != length:
            raise LayoutError(f"a part of an order begins at {part.start}; {length} was expected")
        length += len(part.indices) // 8
        if length > min(MAX_ORDER_SAMPLES, _REPEATS * plan.layout.samples + _SHORT):
            raise LayoutError(f"an order of {length} samples or more, of {plan.layout.samples} in all, is too long")
        self._plans.memory.check_room(len(part.indices), self.reader)
        self._indices.add(part.indices)
        if not part.last:
            return None
        units, uses, order_bytes = await self._made(plan)
        slices, schedule = self._plans.slices, plan.schedule
        if part.following:
            self._order_bytes[1] = order_bytes
            await slices.carry_out(schedule.follow_next_steps(self.number, part.epoch, uses))
        else:
            self._note_wait()
            begins, self._is_over = self._is_over or part.epoch != self.epoch, False
            self._order_bytes = [order_bytes, 0]
            self.epoch, self.samples = part.epoch, length
            self._first, self._only_given = min(max(part.first, 0), _MAX_POSITION), part.only_given
            (plan.given_only.add if part.only_given else plan.given_only.discard)(self.number)
            self._account(part.epoch)
            if begins:  # else more of an epoch is told, perhaps with each batch
                await slices.carry_out(plan.begin_steps())
            await slices.carry_out(schedule.follow_steps(self.number, part.epoch, uses, trio.current_time()))
        self._changed()
        return Result(detail={"units": units})

    async def _made(self, plan: EpochPlan) -> tuple[int, Uses, int]:
        """How many units the order that has come names, its uses, and what they take. In a thread: a second for ten
        million samples. Raises LayoutError."""
        memory, run_in_thread = self._plans.memory, self._plans.run_in_thread
        async with self._plans.one_at_a_time(self.reader):
            parts, self._indices = self._indices, _Parts()
            with memory.reserved(2 * parts.size, self.reader):
                # A sample may be many extents, and an extent many units: counted before they are written out.
                indices, count = await run_in_thread(_counted, plan, parts)
            order_bytes = _BYTES_A_UNIT_OF_AN_ORDER * plan.layout.units + _BYTES_A_USE * count
            with memory.reserved(order_bytes + _MAKING_BYTES_A_USE * count, self.reader):
                return count, await run_in_thread(_uses, plan, self.number, indices), order_bytes

    def _plan(self) -> EpochPlan:
        if self.plan is None:
            raise LayoutError("an order came before its layout")
        return self.plan

    async def reached(self, position: int) -> None:
        """So many samples of the epoch have been given out. Nonsense is harmless."""
        if self.plan is not None and self.epoch is not None:
            position = min(max(position - self._first, 0), self.samples)
            steps = self.plan.schedule.advance_steps(self.number, position, trio.current_time())
            await self._plans.slices.carry_out(steps)
            self._changed()

    async def _over(self, epoch: int) -> None:
        if self.plan is not None and epoch == self.epoch:
            self._note_wait()
            self._is_over = True
            await self._plans.slices.carry_out(self.plan.schedule.over_steps(self.number))
            self._changed()

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
                "workers": None,
                "cores": 0,
                "source_wait_s": 0.0,
                "daemon_cpu_s": 0.0,
            }
            if len(self.epochs) > _KEPT_EPOCHS:
                self.epochs.popitem(last=False)
        return account

    def _waited(self, waited: Waited) -> None:
        times = (waited.exposed_s, waited.compute_s, waited.other_s)
        if not all(0 <= time_s < _MAX_TIME_S for time_s in times) or waited.batches < 0:
            return  # nor NaN: what is shown and written as JSON are figures
        account = self._account(waited.epoch)
        # A report is of the epoch so far; the counters, which only grow, are of all learners there have been.
        self._metrics.add("learner_batches", max(0, waited.batches - account["batches"]))
        account["batches"] = waited.batches
        if waited.workers is not None and 0 <= waited.workers < _MOST_CORES >= waited.cores > 0:
            account["workers"], account["cores"] = waited.workers, waited.cores
        for name in ("exposed", "compute", "other"):
            now_s = round(float(getattr(waited, f"{name}_s")), 6)
            self._metrics.add(f"learner_{name}_ns", max(0, round((now_s - account[f"{name}_s"]) * 1e9)))
            account[f"{name}_s"] = now_s
        self._note_wait()

    def _note_wait(self) -> None:
        """All that readers of the mount have waited for the source since it was last noted is of the epoch so far, and
        all that the daemon has computed, for others too."""
        now_ns, cpu_ns = self._metrics["source_wait_ns"], time.process_time_ns()
        if self.epoch is not None and self.epoch in self.epochs:
            account = self.epochs[self.epoch]
            account["source_wait_s"] += (now_ns - self._wait_ns) / 1e9
            account["daemon_cpu_s"] = round(account["daemon_cpu_s"] + (cpu_ns - self._cpu_ns) / 1e9, 6)
        self._wait_ns, self._cpu_ns = now_ns, cpu_ns

    def shown(self) -> dict[str, Any]:
        """For `hfs status`."""
        self._note_wait()
        standing = None if self.plan is None else self.plan.schedule.statistics(self.number, trio.current_time())
        figures: dict[str, Any] = {}
        if standing is not None:
            figures = {
                "position": standing.position + self._first,
                "total": standing.samples and standing.samples + self._first,
                "only_given": self._only_given,
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


def _counted(plan: EpochPlan, parts: _Parts) -> tuple[NDArray[np.int64], int]:
    """In a thread."""
    indices = np.frombuffer(parts.joined(), "<i8")
    return indices, plan.layout.count_uses(indices)


def _uses(plan: EpochPlan, learner: int, indices: NDArray[np.int64]) -> Uses:
    """In a thread."""
    units, at = plan.layout.uses(indices)
    return plan.schedule.uses(learner, units, at, len(indices))
