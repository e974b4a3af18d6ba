"""Room for what hints name: what is needed last goes, so that what is needed sooner may stay (Belady, 1966).

As long as the cache has room, whatever is foreseen is staged, as far ahead as the orders go. Once it has none, a small
window is kept ahead of the readers, and of each unit in it is asked when it is needed *after* this use: if that is
sooner than what of the staged is needed last, it takes its place; if not, it is only held in memory until it is used.
So nothing is written that would not be read again, and where the next epoch's order is not known yet nothing moves.

Asked before a fetch; the eviction itself is the cache's. What no order names is not chosen here: other jobs may be
reading it, and `policies.cache.eviction` decides about that.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from hfs.mountd.cache import Cache
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.hints.epoch_plan import EpochPlan
from hfs.mountd.hints.plan_registry import PlanRegistry
from hfs.policies.cache.admission import BLOCK_BYTES, blocks_bytes
from hfs.policies.cache.eviction import HINTED_IDLE_S

_WINDOW_SHARE = 50
"""2 % of the cache are kept ahead of the readers when it cannot hold everything, or what memory holds, if less."""

_BATCH_SHARE = 100
"""1 % of it makes room at a time: each eviction is a durable commit."""

_CANDIDATE_SHARE = 20
"""What 5 % of it hold is looked for at a time: what is needed last does not change quickly."""

_LOOK_S_A_USE = 1e-6
"""So long after a look until the next, for each next use that it has asked for (which takes 50 ns): a million staged
files of eight learners are looked at every 16 s, some dozens every time."""

_LOOK_AT_ONCE_USES = 50_000
"""More is looked for in a thread: the mount answers meanwhile."""

_TIGHT_S = 60.0
"""For so long after a time without room the window is kept small."""

_UNLIMITED_BYTES = 1 << 62


_OVERHEAD_BYTES = 2 * BLOCK_BYTES
"""An object takes whole blocks, and an inode."""


@dataclass(frozen=True, slots=True)
class Stays:
    """An answer: which of the units asked for stay, and the room that is promised to them."""

    each: list[bool]
    promised_bytes: int


@dataclass(frozen=True, slots=True)
class _Victim:
    plan: EpochPlan
    unit: int
    room_bytes: int
    """What it takes at most: it may shrink."""

    def is_here(self) -> bool:
        """It is staged still."""
        if self.plan.objects is not None:
            return bool(self.plan.objects[self.unit])
        number, index = self.plan.layout.place(self.unit)
        file = self.plan.staged.get(number)
        return file is not None and index is not None and index in file.present


class SpaceReservation:
    """Event loop only. `held_bytes`: how much may be held in memory. `run_in_thread`: as trio.to_thread.run_sync.
    `is_kept`: as of `Owners`."""

    def __init__(
        self,
        plans: PlanRegistry,
        cache: Cache,
        metrics: Metrics,
        held_bytes: int,
        run_in_thread: Callable[..., Awaitable[Any]],
        is_kept: Callable[[bytes, int], bool],
    ) -> None:
        self._is_kept = is_kept
        self._plans = plans
        self._run_in_thread = run_in_thread
        self._cache = cache
        self._metrics = metrics
        self._held_bytes = held_bytes
        self._tight_until_s = -1.0
        self._evicting = trio.Lock()
        self._candidates: list[_Victim] = []
        """What is needed last, the last first, as of the last look."""
        self._look_again_s = -1.0
        self._gone_since_look = False
        self._promised_bytes = 0
        """Room that was given out by `stays` and is not charged yet."""

    @property
    def is_tight(self) -> bool:
        """There was no room a moment ago."""
        return trio.current_time() < self._tight_until_s

    def budget_bytes(self) -> int:
        """How much may be fetched and not used."""
        if not self.is_tight:
            return _UNLIMITED_BYTES
        return min(self._cache.room.limit_bytes() // _WINDOW_SHARE, self._held_bytes)

    async def stays(self, plan: EpochPlan, units: Sequence[int]) -> Stays:
        """Which of `units` are to be staged; the others are to be held in memory until they are used.

        Makes room for those that are to be staged. Each call needs a `settled` when they are, or are not.
        """
        asked, now_s = np.array(units, np.int32), trio.current_time()
        kept = np.array([self._is_kept(plan.path(unit), plan.layout.place(unit)[1] or 0) for unit in units])
        needs = np.where(kept, plan.sizes(asked) + _OVERHEAD_BYTES, 0)
        if not kept.all():
            self._tight_until_s = now_s + _TIGHT_S
        if not self._shortfall_bytes(int(needs.sum())):
            return self._promise(kept.tolist(), needs)
        self._tight_until_s = now_s + _TIGHT_S
        self._cache.evictor.refused(int(needs.sum()), HINTED_IDLE_S)  # what nobody names, in the background
        again_s = plan.schedule.expected.second_use_s(asked, now_s)
        stays = [False] * len(units)
        async with self._evicting:
            room_bytes = int(needs.sum()) - self._shortfall_bytes(int(needs.sum()))
            for i in np.argsort(again_s, kind="stable").tolist():
                # Several times, if need be: what has shrunk gives back less than it holds.
                while needs[i] > room_bytes and (freed := await self._evict(int(needs[i]), float(again_s[i]))):
                    room_bytes += freed
                if needs[i] > room_bytes:
                    break  # nor for what is needed later still
                room_bytes -= int(needs[i])
                stays[i] = bool(kept[i])
            return self._promise(stays, needs)

    def settled(self, stays: Stays) -> None:
        """What was to stay has been charged, or will not be."""
        self._promised_bytes -= stays.promised_bytes

    def _promise(self, stays: list[bool], needs: NDArray[np.int64]) -> Stays:
        promised_bytes = int(needs[np.array(stays, bool)].sum())
        self._promised_bytes += promised_bytes
        return Stays(stays, promised_bytes)

    def _shortfall_bytes(self, wanted_bytes: int) -> int:
        """How much must go before so much more fits, on top of what was promised."""
        short_bytes = self._cache.room.shortfall_bytes(wanted_bytes + self._promised_bytes)
        return min(short_bytes, wanted_bytes)

    async def _evict(self, need_bytes: int, after_s: float) -> int:
        """Evict what is needed last, if all of that is needed later than `after_s`. The bytes given back."""
        if after_s == math.inf:
            return 0
        await self._look(need_bytes)
        victims = self._choose(need_bytes, need_bytes, after_s)
        if not victims:
            return 0
        victims += self._choose(self._cache.room.limit_bytes() // _BATCH_SHARE - need_bytes, 0, after_s)
        freed_bytes = 0
        objects: dict[int, _Victim] = {}
        for victim in victims:
            if victim.plan.objects is not None:
                objects[int(victim.plan.objects[victim.unit])] = victim
            else:
                freed_bytes += await self._give_up(victim)
        gone: dict[EpochPlan, list[int]] = {}
        for number, room_bytes in (await self._cache.evictions.evict_objects(list(objects))).items():
            victim = objects[number]
            freed_bytes += room_bytes
            if victim.plan.objects is not None and victim.plan.objects[victim.unit] == number:
                gone.setdefault(victim.plan, []).append(victim.unit)
        for plan, units in gone.items():
            assert plan.objects is not None
            plan.objects[units] = 0
            plan.schedule.evicted(np.array(units, np.int32))  # all at once: one by one it would be slow
            self._metrics.add("hinted_evictions", len(units))
        self._gone_since_look |= freed_bytes > 0
        return freed_bytes

    async def _give_up(self, victim: _Victim) -> int:
        """Evict one chunk of a large file. The bytes given back."""
        number, index = victim.plan.layout.place(victim.unit)
        file = victim.plan.staged.get(number)
        if file is None or index is None:
            return 0
        room_bytes = await self._cache.evictions.evict_chunk(file, index)
        if not room_bytes:
            return 0
        victim.plan.schedule.evicted(np.array([victim.unit], np.int32))
        self._metrics.add("hinted_evictions")
        return room_bytes

    def _choose(self, want_bytes: int, least_bytes: int, after_s: float) -> list[_Victim]:
        """Take the first candidates that hold `want_bytes`, as far as they are here and needed later than `after_s`.

        None of them, if these hold less than `least_bytes`.
        """
        count = 0
        while want_bytes > 0 and count < len(self._candidates):
            want_bytes -= self._candidates[count].room_bytes
            count += 1
        first, self._candidates = self._candidates[:count], self._candidates[count:]
        first = [victim for victim in first if victim.is_here()]
        chosen: list[_Victim] = []
        others: list[_Victim] = []
        now_s = trio.current_time()
        for plan in {victim.plan for victim in first}:
            its = [victim for victim in first if victim.plan is plan]
            uses_s = plan.schedule.expected.next_use_s(np.array([victim.unit for victim in its], np.int32), now_s)
            for victim, use_s in zip(its, uses_s.tolist(), strict=True):
                (chosen if use_s > after_s else others).append(victim)
        if sum(victim.room_bytes for victim in chosen) < least_bytes:
            chosen, others = [], first
        self._candidates = others + self._candidates
        return chosen

    def _are_few(self, need_bytes: int) -> bool:
        for victim in self._candidates:
            need_bytes -= victim.room_bytes
            if need_bytes <= 0:
                return False
        return True

    async def _look(self, need_bytes: int) -> None:
        """Look for candidates, if it is time, or if those that there were have gone."""
        now_s = trio.current_time()
        if now_s < self._look_again_s and not (self._gone_since_look and self._are_few(need_bytes)):
            return
        self._gone_since_look = False
        pins = self._cache.pinned
        bits = bytes(pins.bits()) if len(pins) else b""
        staged = [(plan, None if plan.objects is not None else self._chunks(plan)) for plan in self._plans]
        want_bytes = max(4 * need_bytes, self._cache.room.limit_bytes() // _CANDIDATE_SHARE)
        looked_at = sum(plan.layout.units * max(1, 2 * len(plan.learners)) for plan, _ in staged)
        if looked_at <= _LOOK_AT_ONCE_USES:
            self._candidates, uses = _last(staged, bits, want_bytes, now_s)
        else:
            self._candidates, uses = await self._run_in_thread(_last, staged, bits, want_bytes, now_s)
        self._look_again_s = now_s + uses * _LOOK_S_A_USE

    def _chunks(self, plan: EpochPlan) -> NDArray[np.int32]:
        """Those that are staged of files that are not pinned."""
        pins = self._cache.pinned
        return plan.staged_chunks([number for number, file in plan.staged.items() if file.object_id not in pins])


def _files(objects: NDArray[np.int64], pins: bytes) -> NDArray[np.int32]:
    """Those that are staged and not pinned. `pins`: bits."""
    units = np.flatnonzero(objects)
    if pins:
        bits = np.unpackbits(np.frombuffer(pins, np.uint8), bitorder="little")
        numbers = objects[units]
        units = units[(numbers >= len(bits)) | (bits[np.minimum(numbers, len(bits) - 1)] == 0)]
    return units.astype(np.int32)


def _last(
    staged: Sequence[tuple[EpochPlan, NDArray[np.int32] | None]], pins: bytes, want_bytes: int, now_s: float
) -> tuple[list[_Victim], int]:
    """What of the staged units of plans is needed last, the last first, until `want_bytes` have come together; and how
    many uses were looked at. No units: those of whole files, that `pins` does not name.

    May run in a thread beside changes of the schedules: whoever acts on it asks again.
    """
    found: list[_Victim] = []
    uses_of: list[float] = []
    uses = 0
    for plan, chunks in staged:
        units = chunks if chunks is not None else _files(plan.objects, pins)  # type: ignore[arg-type]  # whole files
        uses += len(units) * max(1, 2 * len(plan.learners))
        uses_s = plan.schedule.expected.next_use_s(units, now_s)
        rooms = plan.schedule.units.sizes[units] + BLOCK_BYTES
        order = np.argsort(-uses_s, kind="stable")
        enough = int(np.searchsorted(np.cumsum(rooms[order]), want_bytes)) + 1
        found += [_Victim(plan, int(units[i]), blocks_bytes(int(rooms[i]))) for i in order[:enough]]
        uses_of += uses_s[order[:enough]].tolist()
    candidates = [found[i] for i in np.argsort(-np.array(uses_of), kind="stable")]
    for i, victim in enumerate(candidates):
        want_bytes -= victim.room_bytes
        if want_bytes <= 0:
            return candidates[: i + 1], uses
    return candidates, uses
