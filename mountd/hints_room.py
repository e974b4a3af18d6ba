"""Room for what hints name: what is needed last goes, so that what is needed first may come (Belady, 1966).

As long as the cache has room, whatever is foreseen is staged, as far ahead as the orders go. Once it has none, a window
is kept ahead of the readers, and each step of it takes the place of what the orders need later, or not at all. Asked by
`hints` before a fetch; the eviction itself is staging's. What no order names is left alone: other jobs may be reading
it, and `policies.eviction` decides about that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import trio

from mountd.learners import Course, Learners
from mountd.metrics import Metrics
from mountd.staging import Staging
from policies.admission import BLOCK_BYTES, blocks_bytes

__all__ = ["HintsRoom"]

_WINDOW_SHARE = 50
"""2 % of the cache are kept ahead of the readers when it cannot hold everything."""

_BATCH_SHARE = 100
"""1 % of it makes room at a time: each eviction is a durable commit."""

_TIGHT_S = 60.0
"""For so long after a time without room the window is kept small."""

_UNLIMITED_BYTES = 1 << 62


class HintsRoom:
    """See the file's story. Event loop only."""

    def __init__(self, learners: Learners, staging: Staging, metrics: Metrics) -> None:
        self._learners = learners
        self._staging = staging
        self._metrics = metrics
        self._tight_until_s = -1.0
        self._evicting = trio.Lock()

    def budget_bytes(self) -> int:
        """How much may be fetched and not used."""
        if trio.current_time() >= self._tight_until_s:
            return _UNLIMITED_BYTES
        return self._staging.limit_bytes() // _WINDOW_SHARE

    async def have(self, course: Course, units: Sequence[int]) -> int:
        """How many of `units`, from the first on, may be staged now.

        Makes room for them if what is needed later than they are can go.
        """
        asked = np.array(units, np.int32)
        # An object takes whole blocks and an inode.
        needs = np.cumsum(course.sizes(asked) + 2 * BLOCK_BYTES)
        wanted_bytes = int(needs[-1])
        if not self._staging.shortfall_bytes(wanted_bytes):
            return len(units)
        self._tight_until_s = trio.current_time() + _TIGHT_S
        async with self._evicting:
            if self._staging.shortfall_bytes(wanted_bytes):  # else another has made room meanwhile
                batch_bytes = max(wanted_bytes, self._staging.limit_bytes() // _BATCH_SHARE)
                uses_s = course.schedule.next_use_s(asked, trio.current_time())
                await self._evict(self._staging.shortfall_bytes(batch_bytes), float(uses_s.min()))
        free_bytes = wanted_bytes - self._staging.shortfall_bytes(wanted_bytes)
        return int(np.searchsorted(needs, free_bytes, side="right"))

    async def _evict(self, need_bytes: int, after_s: float) -> None:
        """Evict staged files of courses that are needed later than `after_s`, the last first."""
        now_s = trio.current_time()
        candidates: list[tuple[float, Course, int, int]] = []
        for course in self._learners.courses.values():
            if course.objects is None:
                continue
            units = np.flatnonzero(course.objects).astype(np.int32)
            uses_s = course.schedule.next_use_s(units, now_s)
            sizes = course.schedule.bytes_of(units)
            later = np.flatnonzero(uses_s > after_s)
            order = later[np.argsort(-uses_s[later], kind="stable")]
            enough = int(np.searchsorted(np.cumsum(sizes[order]), need_bytes)) + 1
            candidates += [(float(uses_s[i]), course, int(units[i]), int(sizes[i])) for i in order[:enough]]
        candidates.sort(key=lambda candidate: -candidate[0])
        chosen: dict[int, tuple[Course, int]] = {}
        for _, course, unit, size in candidates:
            if need_bytes <= 0:
                break
            assert course.objects is not None
            chosen[int(course.objects[unit])] = course, unit
            need_bytes -= blocks_bytes(size)
        gone = await self._staging.evict_objects(list(chosen))
        for number in gone:
            course, unit = chosen[number]
            if course.objects is not None and course.objects[unit] == number:
                course.objects[unit] = 0
                course.schedule.evicted(np.array([unit], np.int32))
        self._metrics.add("hinted_evictions", len(gone))
