"""The cache of one simulated node, and what the node fetches ahead: siblings of small files, chunks behind sequential
reads, or what orders name.

The decisions are those of `policies.cache`, `policies.prefetch.siblings` and `policies.schedule`; how the daemon asks
them is in mountd/cache, mountd/fetch and mountd/hints. As there, uses become known late, what is not durable yet is not
evicted, and the data plane is granted room ahead of what it stages.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Sequence
from itertools import islice

import numpy as np

from hfs.policies.cache.admission import BLOCK_BYTES, COMMIT_EVERY_S, blocks_bytes, grant_bytes, object_overhead_bytes
from hfs.policies.cache.eviction import NOTED_EVERY_S, POLICIES, Entry, ahead_bytes, victims
from hfs.policies.iomode import SMALL_BYTES
from hfs.policies.prefetch.siblings import FIRST_S, PAUSE_S, Siblings
from hfs.policies.schedule.schedule import Schedule
from hfs.policies.simulation.pieces import Epoch, Pieces, SimulatedMount

_PAGE = 16
"""Of what was used longest ago are asked about together. The index's pages are larger, and it is asked as seldom."""
_TOGETHER = 16
"""That are asked for at a time (mountd/fetch/prefetch.py)."""
_WINDOW_CHUNKS = 8
"""Behind a sequential read."""
_STEP_READS = 8
"""Between two words of a learner."""
_WINDOW_SHARE = 50
"""2 % of a full cache are kept ahead of the readers (mountd/hints/space_reservation.py)."""
_BATCH_SHARE = 100
"""1 % of it makes room at a time."""


class SimulatedCache:
    """Its room, and what is staged. `part`: of a larger cache that this stands for. Times never go back."""

    def __init__(self, capacity_bytes: int, policy: str, sizes: Sequence[int], part: float = 1.0) -> None:
        self._policy = POLICIES[policy]
        self._rooms = [blocks_bytes(size) + object_overhead_bytes(1) for size in sizes]
        whole_bytes = int(capacity_bytes / part)
        self._ahead_bytes = int(ahead_bytes(whole_bytes) * part) if self._policy.makes_room else 0
        self.granted_bytes = int(grant_bytes(whole_bytes) * part) // 2
        """Room is granted in lumps: so much is on average ready for small files that come, and unused in the end."""
        self.free_bytes = capacity_bytes - self.granted_bytes
        self.staged: OrderedDict[int, tuple[float, float]] = OrderedDict()
        """When each piece was staged, and used last as far as the index knows; the one not used for longest first."""

    def has_room(self, size_bytes: int) -> bool:
        """Whether so much could be staged, as far as is known before it is tried."""
        return self._policy.makes_room or self.free_bytes >= blocks_bytes(size_bytes) + object_overhead_bytes(1)

    def stage(self, piece: int, now_s: float) -> bool:
        """Keep a piece that was fetched, if there is room or some can be made."""
        if piece in self.staged:
            return True
        short_bytes = self._rooms[piece] + self._ahead_bytes - self.free_bytes
        if short_bytes > 0:
            entries = [
                Entry(old, self._rooms[old], int(used_s), pinned=now_s < staged_s + COMMIT_EVERY_S)
                for old, (staged_s, used_s) in islice(self.staged.items(), _PAGE)
            ]
            self.drop(entry.key for entry in victims(entries, short_bytes, self._policy, now_s=int(now_s)))
        if self.free_bytes < self._rooms[piece]:
            return False
        self.free_bytes -= self._rooms[piece]
        self.staged[piece] = now_s, now_s
        return True

    def opened(self, piece: int, now_s: float) -> None:
        """It was opened. Of what was opened, or fetched, just before nobody is told."""
        staged_s, used_s = self.staged.get(piece, (0.0, now_s))
        if now_s > used_s + NOTED_EVERY_S:
            self.staged[piece] = staged_s, now_s
            self.staged.move_to_end(piece)

    def drop(self, pieces: Iterable[int]) -> None:
        """Evict these."""
        for piece in pieces:
            del self.staged[piece]
            self.free_bytes += self._rooms[piece]


class Neighbours:
    """Siblings of small files, and the chunks behind a sequential read. They know nothing of epochs."""

    def __init__(self, pieces: Pieces, mount: SimulatedMount) -> None:
        self._files: list[int] = pieces.files.tolist()
        self._sizes: list[int] = pieces.sizes.tolist()
        self._directories: list[int] = pieces.directories.tolist()
        self._names = pieces.names
        self._siblings = Siblings(
            SMALL_BYTES,
            budget_bytes=mount.siblings_bytes,
            cache_bytes=max(1.0, float(mount.cache_bytes)),
            evicts_by_use=POLICIES[mount.eviction].makes_room,
        )
        self._numbers: dict[Hashable, dict[bytes, int]] = {}
        for piece, directory in enumerate(self._directories):
            self._numbers.setdefault(directory, {})[pieces.names[piece]] = piece
        self._queue: deque[int] = deque()
        self._last: dict[int, int] = {}
        """The chunk of each large file that was read last."""
        self._is_woken = False
        """There may be a file to fetch ahead; else nobody is asked."""
        self._opened_s = self._begin_s = -1e9

    def begin(self, epoch: Epoch, following: Epoch | None, now_s: float) -> None:
        """See `Orders`."""

    def opened(self, piece: int, now_s: float, *, staged: bool) -> None:
        """A reader has come to a piece."""
        directory = self._directories[piece]
        if directory < 0:
            file = self._files[piece]
            if self._last.get(file) == piece - 1:
                window = range(piece + 1, min(piece + 1 + _WINDOW_CHUNKS, len(self._files)))
                self._queue = deque(i for i in window if self._files[i] == file)
            self._last[file] = piece
            return
        if now_s > self._opened_s + PAUSE_S:
            self._begin_s = now_s + FIRST_S
        self._opened_s = now_s
        if self._siblings.opened(directory, self._names[piece], self._sizes[piece], now_s, staged=staged):
            self._siblings.listed(directory, sorted(self._numbers[directory]), now_s)
            self._is_woken = True
        elif not self._is_woken:
            self._is_woken = self._siblings.has_work(directory, _TOGETHER, now_s)

    def next(self, places: int, now_s: float) -> int | None:
        """A piece to fetch now; None: there is none. `places`: for so many there is room."""
        if not self._queue and self._is_woken and now_s >= self._begin_s:
            limit = min(_TOGETHER, places)
            found = self._siblings.next(limit, now_s) if limit > 0 else []
            self._queue.extend(self._numbers[directory][name] for directory, name in found)
            self._is_woken = bool(found)
        return self._queue.popleft() if self._queue else None

    def came(self, piece: int, now_s: float) -> bool:  # noqa: ARG002 - as `Orders` has it
        """It was fetched ahead. Whether it is to be staged."""
        if self._directories[piece] >= 0:
            self._siblings.fetched(self._directories[piece], self._names[piece], self._sizes[piece])
            self._is_woken = True
        return True

    def not_needed(self, piece: int) -> None:
        """It was here already, or is on its way."""
        if self._directories[piece] >= 0:
            self._siblings.drop(self._directories[piece], self._names[piece])
            self._is_woken = True

    def forgotten(self, pieces: Sequence[int]) -> None:
        """See `Orders`."""


class Orders:
    """What the order of the epoch names, as far ahead as there is room; what is needed last goes (Belady, 1966)."""

    def __init__(self, pieces: Pieces, mount: SimulatedMount, cache: SimulatedCache) -> None:
        self._cache = cache
        self._sizes = pieces.sizes
        self._schedule = Schedule(len(pieces), pieces.sizes, guard_samples=0)
        self._window_bytes = max(1, min(mount.cache_bytes // _WINDOW_SHARE, mount.buffer_bytes // 2))
        self._batch_bytes = mount.cache_bytes // _BATCH_SHARE
        self._epoch = self._reads = 0
        self._is_tight = False
        self._queue: deque[int] = deque()

    def begin(self, epoch: Epoch, following: Epoch | None, now_s: float) -> None:
        """An epoch begins, and the next one will be this."""
        self._schedule.over(0)
        self._epoch, self._reads = self._epoch + 1, 0
        self._schedule.follow(0, self._epoch, epoch.pieces.astype(np.int32), None, len(epoch.pieces), now_s)
        if following is not None:
            order = following.pieces.astype(np.int32)
            self._schedule.follow_next(0, self._epoch + 1, order, None, len(order))

    def opened(self, piece: int, now_s: float, *, staged: bool) -> None:  # noqa: ARG002 - as `Neighbours` has it
        """See `Neighbours`."""
        self._reads += 1
        self._schedule.seen(piece, now_s)
        if self._reads % _STEP_READS == 0:
            self._schedule.advance(0, self._reads, now_s)

    def next(self, places: int, now_s: float) -> int | None:  # noqa: ARG002 - as `Neighbours` has it
        """See `Neighbours`."""
        if not self._queue:
            budget_bytes = self._window_bytes if self._is_tight else 1 << 62
            self._queue.extend(self._schedule.fetch_order.take(_TOGETHER, budget_bytes, now_s))
        return self._queue.popleft() if self._queue else None

    def came(self, piece: int, now_s: float) -> bool:
        """See `Neighbours`."""
        size_bytes = int(self._sizes[piece])
        self._schedule.arrived(piece, size_bytes)
        needed = size_bytes + 2 * BLOCK_BYTES
        if self._cache.free_bytes >= needed:
            return True
        self._is_tight = True
        again_s = float(self._schedule.expected.second_use_s(np.array([piece], np.int32), now_s)[0])
        if np.isfinite(again_s):
            self._make_room(again_s, needed, now_s)
        return self._cache.free_bytes >= needed

    def _make_room(self, before_s: float, needed_bytes: int, now_s: float) -> None:
        staged = np.fromiter(self._cache.staged, np.int64, len(self._cache.staged))
        uses_s = self._schedule.expected.next_use_s(staged, now_s)
        last = np.argsort(-uses_s, kind="stable")
        rooms = np.cumsum(self._sizes[staged[last]] + BLOCK_BYTES)
        enough = int(np.searchsorted(rooms, max(needed_bytes, self._batch_bytes))) + 1
        going = [int(staged[i]) for i in last[:enough] if uses_s[i] > before_s]
        self._cache.drop(going)
        self.forgotten(going)

    def forgotten(self, pieces: Sequence[int]) -> None:
        """They are not here any more."""
        if pieces:
            self._schedule.evicted(np.array(sorted(pieces), np.int32))

    def not_needed(self, piece: int) -> None:
        """See `Neighbours`."""
        self._schedule.here(piece, int(self._sizes[piece]))
