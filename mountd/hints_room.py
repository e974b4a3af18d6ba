"""Room for what hints name: what is needed last goes, so that what is needed sooner may stay (Belady, 1966).

As long as the cache has room, whatever is foreseen is staged, as far ahead as the orders go. Once it has none, a small
window is kept ahead of the readers, and of each unit in it is asked when it is needed *after* this use: if that is
sooner than what of the staged is needed last, it takes its place; if not, it is only held in memory until it is used.
So nothing is written that would not be read again, and where the next epoch's order is not known yet nothing moves.

Asked by `hints` before a fetch; the eviction itself is staging's. What no order names is not chosen here: other jobs
may be reading it, and `policies.eviction` decides about that.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import trio
from numpy.typing import NDArray

from mountd.learners import Course, Learners
from mountd.metrics import Metrics
from mountd.staging import Staging
from policies.admission import BLOCK_BYTES, blocks_bytes
from policies.eviction import HINTED_IDLE_S

__all__ = ["HintsRoom", "Stays"]

_WINDOW_SHARE = 50
"""2 % of the cache are kept ahead of the readers when it cannot hold everything, or what memory holds, if less."""

_BATCH_SHARE = 100
"""1 % of it makes room at a time: each eviction is a durable commit."""

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
    course: Course
    unit: int
    room_bytes: int
    use_s: float


class HintsRoom:
    """See the file's story. Event loop only. `held_bytes`: how much may be held in memory."""

    def __init__(self, learners: Learners, staging: Staging, metrics: Metrics, held_bytes: int) -> None:
        self._learners = learners
        self._staging = staging
        self._metrics = metrics
        self._held_bytes = held_bytes
        self._tight_until_s = -1.0
        self._evicting = trio.Lock()
        self._promised_bytes = 0
        """Room that was given out by `stays` and is not charged yet."""
        staging.evictor.hinted = self.protects

    def budget_bytes(self) -> int:
        """How much may be fetched and not used."""
        if trio.current_time() >= self._tight_until_s:
            return _UNLIMITED_BYTES
        return min(self._staging.limit_bytes() // _WINDOW_SHARE, self._held_bytes)

    def protects(self, numbers: Collection[int]) -> set[int]:
        """Those of the staged objects that an order names: they go when it says so."""
        named: set[int] = set()
        asked = np.fromiter(numbers, np.int64, len(numbers))
        for course in self._learners.courses.values():
            if course.learners and course.objects is not None:
                named.update(asked[np.isin(asked, course.objects)].tolist())
            elif course.learners:
                held = {file.object_id for file in course.staged.values()}
                named.update(number for number in numbers if number in held)
        return named

    async def stays(self, course: Course, units: Sequence[int]) -> Stays:
        """Which of `units` are to be staged; the others are to be held in memory until they are used.

        Makes room for those that are to be staged. Each call needs a `settled` when they are, or are not.
        """
        asked = np.array(units, np.int32)
        needs = course.sizes(asked) + _OVERHEAD_BYTES
        if not self._shortfall_bytes(int(needs.sum())):
            return self._promise([True] * len(units), needs)
        now_s = trio.current_time()
        self._tight_until_s = now_s + _TIGHT_S
        self._staging.evictor.refused(int(needs.sum()), HINTED_IDLE_S)  # what nobody names, in the background
        again_s = course.schedule.second_use_s(asked, now_s)
        stays = [False] * len(units)
        async with self._evicting:
            room_bytes = int(needs.sum()) - self._shortfall_bytes(int(needs.sum()))
            for i in np.argsort(again_s, kind="stable").tolist():
                if needs[i] > room_bytes:
                    room_bytes += await self._evict(int(needs[i]), float(again_s[i]))
                if needs[i] > room_bytes:
                    break  # nor for what is needed later still
                room_bytes -= int(needs[i])
                stays[i] = True
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
        short_bytes = self._staging.shortfall_bytes(wanted_bytes + self._promised_bytes)
        return min(short_bytes, wanted_bytes)

    async def _evict(self, need_bytes: int, after_s: float) -> int:
        """Evict what is needed last, if all of that is needed later than `after_s`. The bytes given back."""
        if after_s == math.inf:
            return 0
        batch_bytes = max(need_bytes, self._staging.limit_bytes() // _BATCH_SHARE)
        victims = [victim for victim in self._last(batch_bytes) if victim.use_s > after_s]
        if sum(victim.room_bytes for victim in victims) < need_bytes:
            return 0
        freed_bytes = 0
        objects: dict[int, _Victim] = {}
        for victim in victims:
            if victim.course.objects is not None:
                objects[int(victim.course.objects[victim.unit])] = victim
            elif await self._give_up(victim):
                freed_bytes += victim.room_bytes
        gone: dict[Course, list[int]] = {}
        for number in await self._staging.evict_objects(list(objects)):
            victim = objects[number]
            freed_bytes += victim.room_bytes
            if victim.course.objects is not None and victim.course.objects[victim.unit] == number:
                gone.setdefault(victim.course, []).append(victim.unit)
        for course, units in gone.items():
            assert course.objects is not None
            course.objects[units] = 0
            course.schedule.evicted(np.array(units, np.int32))  # all at once: one by one it would be slow
            self._metrics.add("hinted_evictions", len(units))
        return freed_bytes

    async def _give_up(self, victim: _Victim) -> bool:
        """Evict one chunk of a large file."""
        number, index = victim.course.layout.place(victim.unit)
        file = victim.course.staged.get(number)
        if file is None or index is None or not await self._staging.evict_chunk(file, index):
            return False
        victim.course.schedule.evicted(np.array([victim.unit], np.int32))
        self._metrics.add("hinted_evictions")
        return True

    def _last(self, need_bytes: int) -> list[_Victim]:
        """What of the staged is needed last, the last first, until `need_bytes` have come together."""
        now_s = trio.current_time()
        found: list[_Victim] = []
        for course in self._learners.courses.values():
            units = course.staged_units()
            uses_s = course.schedule.next_use_s(units, now_s)
            rooms = course.schedule.bytes_of(units) + BLOCK_BYTES
            order = np.argsort(-uses_s, kind="stable")
            enough = int(np.searchsorted(np.cumsum(rooms[order]), need_bytes)) + 1
            found += [
                _Victim(course, int(units[i]), blocks_bytes(int(rooms[i])), float(uses_s[i])) for i in order[:enough]
            ]
        found.sort(key=lambda victim: -victim.use_s)
        for i, victim in enumerate(found):
            need_bytes -= victim.room_bytes
            if need_bytes <= 0:
                return found[: i + 1]
        return found
