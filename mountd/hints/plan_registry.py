"""All epoch plans of the daemon: one for each layout that learners read by, and for the last ones that have no learner.

Users whose rights at the source differ have plans of their own, also of the same layout: nobody learns from what others
have said.

Also counts how much memory hints take in all: layouts, orders, and what has come of them so far. More is refused. One
user who is neither root nor the owner of the mount has half of it at most, and all of these together three quarters, so
that there is room for others, and for root whatever they do.

Knows which plan names a large file, once a chunk of it was wanted. Asked by the cache before it evicts, by readers, and
by what fetches. Event loop only; what takes longer is done in a thread.
"""

from __future__ import annotations

import contextlib
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import trio

from hfs.mountd.cache import StagedFile
from hfs.mountd.core.attributes import Version
from hfs.mountd.core.background import Slices
from hfs.mountd.core.caller import Credentials
from hfs.mountd.hints.epoch_plan import EpochPlan, PlanKey, UnitLayout, layout_bytes, plan_bytes
from hfs.mountd.namespace import Node
from hfs.mountd.wire.hints import decode_layout, layout_digest
from hfs.mountd.wire.layout import LayoutError, SampleExtents

_KEPT_PLANS = 4
"""Layouts without learners that are remembered: training and validation of the last two jobs."""


_MAX_MEMORY_BYTES = 2 << 30
"""Layouts and orders together: eight million files of fifty bytes and eight learners that read an eighth of them each,
in this epoch and the next, take 1.5 GB."""


class _Holder(Protocol):
    @property
    def memory_bytes(self) -> int:
        """What it takes now."""

    @property
    def reader(self) -> Credentials | None:
        """Of which user it is; None: of root or the owner."""


@dataclass(eq=False, frozen=True)
class _Reserved:
    memory_bytes: int
    reader: Credentials | None


class HintMemory:
    """The plans and sessions that hold memory, and how much more of it they may."""

    def __init__(self) -> None:
        self._holders: set[_Holder] = set()

    def add(self, holder: _Holder) -> None:
        """From now on what it takes is counted."""
        self._holders.add(holder)

    def remove(self, holder: _Holder) -> None:
        """It has gone."""
        self._holders.remove(holder)

    @contextlib.contextmanager
    def reserved(self, more_bytes: int, reader: Credentials | None) -> Iterator[None]:
        """So much more of `reader` is taken while the block runs. Raises LayoutError as `check_room`."""
        self.check_room(more_bytes, reader)
        reserved = _Reserved(more_bytes, reader)
        self.add(reserved)
        try:
            yield
        finally:
            self.remove(reserved)

    def check_room(self, more_bytes: int, reader: Credentials | None) -> None:
        """Raise LayoutError if so much more of `reader` would be more than is kept of hints in all, or of one user."""
        _check(sum(holder.memory_bytes for holder in self._holders) + more_bytes, _MAX_MEMORY_BYTES, "")
        if reader is None:
            return
        of_user: Counter[int] = Counter()
        for holder in self._holders:
            if holder.reader is not None:
                of_user[holder.reader.uid] += holder.memory_bytes
        _check(of_user[reader.uid] + more_bytes, _MAX_MEMORY_BYTES // 2, " of one user")
        _check(of_user.total() + more_bytes, _MAX_MEMORY_BYTES * 3 // 4, " of users who do not own the mount")


def _check(wanted_bytes: int, most_bytes: int, of: str) -> None:
    if wanted_bytes > most_bytes:
        raise LayoutError(f"hints of {wanted_bytes} bytes are more than the {most_bytes} that are kept{of}")


class PlanRegistry:
    """By their layout and whose rights count, the one longest without work or a new learner first.

    `run_in_thread`: as trio.to_thread.run_sync. `coalesce_bytes`: of chunks that are fetched in the order of the file,
    at most.
    """

    def __init__(self, chunk_bytes: int, run_in_thread: Callable[..., Awaitable[Any]], *, coalesce_bytes: int) -> None:
        self.memory = HintMemory()
        self.slices = Slices()
        """For all that learners say."""
        self.run_in_thread = run_in_thread
        self._making: defaultdict[int | None, trio.Lock] = defaultdict(trio.Lock)
        self._chunk_bytes = chunk_bytes
        self._coalesce_bytes = coalesce_bytes
        self._plans: OrderedDict[PlanKey, EpochPlan] = OrderedDict()
        self._of_version: dict[Version, tuple[EpochPlan, int]] = {}
        self._adopting: dict[PlanKey, trio.Event] = {}
        """Layouts that are being read, and when that has ended."""

    def __len__(self) -> int:
        return len(self._plans)

    def __iter__(self) -> Iterator[EpochPlan]:
        """All plans, as of now."""
        return iter(list(self._plans.values()))

    def __contains__(self, key: PlanKey) -> bool:
        return key in self._plans

    def __getitem__(self, key: PlanKey) -> EpochPlan:
        return self._plans[key]

    def followed(self) -> Iterator[EpochPlan]:
        """Those that have a learner, as of now."""
        return (plan for plan in self if plan.learners)

    def move_to_end(self, key: PlanKey) -> None:
        """Others come first from now on, and this one is forgotten last."""
        if key in self._plans:
            self._plans.move_to_end(key)

    def one_at_a_time(self, reader: Credentials | None) -> trio.Lock:
        """What takes much memory while it is made is made for one learner of each user after the other."""
        return self._making[None if reader is None else reader.uid]

    async def attach(self, key: PlanKey, size_bytes: int, blob: Callable[[], memoryview]) -> None:
        """Learn a layout; `blob`, asked in a thread, gives its encoding, of so many bytes. Raises LayoutError and
        ProtocolError."""
        while (other := self._adopting.get(key)) is not None:
            await other.wait()  # the learners of a job begin together
        if key in self._plans:
            return
        ended = self._adopting[key] = trio.Event()
        try:
            with self.memory.reserved(2 * size_bytes, key.reader):
                extents = await self.run_in_thread(_read_layout, key.digest, blob)
            self.forget_idle()
            # Two bytes name a file, and fifty are kept of it: counted before they are written out.
            with self.memory.reserved(layout_bytes(extents), key.reader):
                layout = await self.run_in_thread(UnitLayout, key.digest, extents, self._chunk_bytes)
            self.forget_idle()
            with self.memory.reserved(plan_bytes(layout), key.reader):
                plan = await self.run_in_thread(EpochPlan, layout, self._coalesce_bytes, key.reader)
            self._plans[key] = plan
            self.memory.add(plan)
        finally:
            del self._adopting[key]
            ended.set()

    def forget_idle(self) -> None:
        """Of the plans without learners only the last few are kept, and none of those whose readers have to be asked
        for: the next job is asked for anew."""
        idle = [key for key, plan in self._plans.items() if not plan.learners]
        own = [key for key in idle if key.reader is None]
        kept = own[max(0, len(own) - _KEPT_PLANS) :]
        for key in [key for key in idle if key not in kept]:
            plan = self._plans.pop(key)
            self.memory.remove(plan)
            for file in plan.staged.values():
                if self._of_version.get(file.version, (None, 0))[0] is plan:
                    del self._of_version[file.version]

    # -- what plans name ----------------------------------------------------------------------------------------------

    def note_file(self, plan: EpochPlan, number: int, file: StagedFile) -> None:
        """File `number` of the layout of `plan`, a large one, is this one."""
        plan.staged[number] = file
        if self._plans.get(plan.key) is plan:
            self._of_version[file.version] = plan, number

    def unit(self, version: Version, index: int) -> tuple[EpochPlan, int] | None:
        """The plan that names a chunk of a large file, and the unit there; None if no chunk of it was wanted."""
        found = self._of_version.get(version)
        if found is None:
            return None
        plan, number = found
        return plan, plan.layout.unit(number, index)

    def forget(self, node: Node) -> None:
        """Nobody knows `node` any more."""
        for plan in self._plans.values():
            plan.units_of.pop(node, None)

    async def planned(self, numbers: Sequence[int]) -> set[int]:
        """Those of the staged objects that an order names: they go when it says so."""
        named: set[int] = set()
        asked = np.fromiter(numbers, np.int64, len(numbers))
        for plan in self.followed():
            if plan.objects is not None:
                known = asked[await self.run_in_thread(np.isin, asked, plan.objects)]
                named.update(known.tolist())
            else:
                held = {file.object_id for file in plan.staged.values()}
                named.update(number for number in numbers if number in held)
        return named

    def shown(self, reader: Credentials | None) -> list[dict[str, Any]]:
        """For `hfs status`: all, or those of one user."""
        return [
            {
                "digest": key.digest,
                "files": plan.layout.files,
                "samples": plan.layout.samples,
                "bytes": plan.layout.bytes,
                "missing": plan.missing,
                "outside": plan.outside,
                "ahead_bytes": plan.schedule.units.ahead_bytes,
            }
            for key, plan in self._plans.items()
            if reader in (None, key.reader)
        ]


def _read_layout(digest: str, blob: Callable[[], memoryview]) -> SampleExtents:
    """In a thread: a tenth of a second for ten million files."""
    whole = blob()
    if layout_digest(whole) != digest:
        raise LayoutError("the layout that came is not the one that was announced")
    return SampleExtents.of_frame(decode_layout(whole))
