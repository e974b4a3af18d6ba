"""Caches of files of one size under random epochs, simulated: what each way of evicting reads from the source.

Pure. A job reads files in the given order of each epoch; a cache holds some of them. Each function gives, for each
epoch, how many reads found nothing in the cache. What can be the daemon's own rules are: `policies.cache.eviction`
chooses for LRU and fill-once, `policies.schedule.schedule` says which hinted files come next and when each is needed
again; what then makes room is what `mountd.hints.space_reservation` does, in short.

Source of MIN: L. A. Belady, A study of replacement algorithms for a virtual-storage computer, IBM Systems Journal 5(2),
1966.
"""

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from hfs.policies.cache.eviction import POLICIES, Entry, victims
from hfs.policies.schedule.schedule import Schedule
from scripts.benchmarks.async_io_belady_bound import next_uses

Orders = Sequence[NDArray[np.int32]]

PAGE_ENTRIES = 4
"""Of the oldest entries that `victims` is given at a time; all are as large as what comes, so one is enough."""
STEP_SAMPLES = 8
"""Samples between two words of the learner; a window is no smaller."""


def epochs(files: int, count: int, seed: int) -> Orders:
    """Every file once an epoch, in a random order: what a sampler without replacement draws for one node."""
    random = np.random.default_rng(seed)
    return [random.permutation(files).astype(np.int32) for _ in range(count)]


def epochs_of_one_node(files: int, nodes: int, count: int, seed: int) -> Orders:
    """A random part of the files each epoch, each once: what a distributed sampler gives to one of `nodes`."""
    return [order[: files // nodes] for order in epochs(files, count, seed)]


def epochs_with_replacement(files: int, count: int, seed: int) -> Orders:
    """As many draws as there are files, each of any file."""
    random = np.random.default_rng(seed)
    return [random.integers(0, files, files).astype(np.int32) for _ in range(count)]


def unhinted(orders: Orders, capacity: int, policy: str) -> list[int]:
    """Misses under `policy`: what gets no room is not kept."""
    cached: OrderedDict[int, int] = OrderedDict()  # file -> second of its last use, the oldest first
    misses = []
    now_s = 0
    for order in orders:
        missed = 0
        for file in order.tolist():
            now_s += 1
            if file not in cached:
                missed += 1
                if len(cached) >= capacity:
                    oldest = [Entry(key, 1, used_s) for key, used_s in islice(cached.items(), PAGE_ENTRIES)]
                    for victim in victims(oldest, 1, POLICIES[policy], now_s=now_s):
                        del cached[victim.key]
                if len(cached) >= capacity:
                    continue
            cached[file] = now_s
            cached.move_to_end(file)
        misses.append(missed)
    return misses


def least(orders: Orders, capacity: int, *, bypass: bool) -> list[int]:
    """Misses under MIN, which knows all orders: what is needed last goes.

    `bypass`: what is read need not be kept. Without it whatever is read takes the place of something.
    """
    requests = np.concatenate(orders).astype(np.int64)
    uses = next_uses(requests, int(requests.max()) + 1).tolist()
    cached: set[int] = set()
    farthest: list[tuple[int, int]] = []  # (-next use, file) of what is cached, and of what has been used since then
    misses = []
    now = 0
    for order in orders:
        missed = 0
        for file in order.tolist():
            use = uses[now]
            now += 1
            if file not in cached:
                missed += 1
                if len(cached) >= capacity:
                    while -farthest[0][0] < now:
                        heapq.heappop(farthest)
                    if bypass and use >= -farthest[0][0]:
                        continue
                    cached.remove(heapq.heappop(farthest)[1])
                cached.add(file)
            heapq.heappush(farthest, (-use, file))
        misses.append(missed)
    return misses


def hinted(orders: Orders, files: int, capacity: int, *, window: int, batch: int) -> list[int]:
    """Files read from the source by a daemon that knows the order of the epoch and, once it has begun, of the next.

    It fetches ahead until `window` files are unused. A file that is not needed again before all that is cached is held
    in memory until it is used; for one that is, the `batch` files that are needed last make room.
    """
    schedule = Schedule(files, 1, guard_samples=0)
    cache = _Cache(schedule, files, capacity, batch)
    step = STEP_SAMPLES
    window = max(window, step)
    misses = []
    for epoch, order in enumerate(orders):
        schedule.follow(0, epoch, order, None, len(order), cache.now_s)
        if epoch + 1 < len(orders):
            schedule.follow_next(0, epoch + 1, orders[epoch + 1], None, len(orders[epoch + 1]))
        missed = 0
        for start in range(0, len(order), step):
            taken = schedule.fetch_order.take(window, window, cache.now_s)
            cache.place(taken)
            # Where evicting many at a time took what is needed now, the job itself reads it.
            now_used = order[start : start + step]
            missed += len(taken) + cache.missing(now_used)
            cache.now_s += step
            schedule.advance(0, min(start + step, len(order)), cache.now_s)
            cache.used(now_used)
        schedule.over(0)
        misses.append(missed)
    return misses


class _Cache:
    """What a daemon with hints keeps, and what it holds in memory until its use."""

    def __init__(self, schedule: Schedule, files: int, capacity: int, batch: int) -> None:
        self.schedule = schedule
        self.now_s = 0.0
        self.batch = batch
        self.capacity = capacity
        self.kept = np.zeros(files, bool)
        self.kept_files = 0
        self.held: set[int] = set()

    def place(self, taken: list[int]) -> None:
        """Keep what is needed again before the last of what is kept, and hold the rest."""
        again_s = self.schedule.expected.second_use_s(np.array(taken, np.int32), self.now_s)
        for i in np.argsort(again_s, kind="stable").tolist():
            self.schedule.arrived(taken[i], 1)
            if self.kept_files >= self.capacity and np.isfinite(again_s[i]):
                self._make_room(float(again_s[i]))
            if self.kept_files < self.capacity:
                self.kept[taken[i]] = True
                self.kept_files += 1
            else:
                self.held.add(taken[i])

    def _make_room(self, before_s: float) -> None:
        kept = np.flatnonzero(self.kept)
        uses_s = self.schedule.expected.next_use_s(kept, self.now_s)
        last = np.argsort(-uses_s, kind="stable")[: self.batch]
        gone = kept[last[uses_s[last] > before_s]]
        self.kept[gone] = False
        self.kept_files -= len(gone)
        self.schedule.evicted(gone)

    def used(self, files: NDArray[np.int32]) -> None:
        """Forget what was held for these uses."""
        gone = self.held.intersection(files.tolist())
        self.held -= gone
        self.schedule.evicted(np.array(sorted(gone), np.int32))

    def missing(self, files: NDArray[np.int32]) -> int:
        return sum(not self.kept[file] and file not in self.held for file in set(files.tolist()))
