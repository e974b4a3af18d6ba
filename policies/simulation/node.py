"""The cache of one simulated node, and what the node fetches ahead: siblings of small files, chunks behind sequential
reads, or what orders name.

The decisions are those of `policies.cache`, `policies.prefetch.siblings` and `policies.schedule`; how the daemon asks
them is in mountd/cache, mountd/fetch and mountd/hints. As there, uses become known late, what is not durable yet is not
evicted, and the data plane is granted room ahead of what it stages.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from hfs.policies.cache.admission import BLOCK_BYTES, COMMIT_EVERY_S, blocks_bytes, grant_bytes, object_overhead_bytes
from hfs.policies.cache.eviction import DEFAULT, NOTED_EVERY_S, POLICIES, Entry, ahead_bytes, victims
from hfs.policies.iomode import SMALL_BYTES
from hfs.policies.prefetch.siblings import FIRST_S, PAUSE_S, Siblings
from hfs.policies.schedule.schedule import Schedule

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


HINTED = "hinted"
WAYS = (*POLICIES, HINTED)
"""The evictions of a mount, and the default one with the orders of the epochs told ahead."""

MANY = 10_000
"""Pieces that are simulated one by one. Of more a part stands for all (Waldspurger et al., 2015, have shown that a
thousandth does for LRU): a point in hits at most, and some seconds a simulation."""


_MANY_DIRECTORIES = 500


@dataclass(frozen=True)
class Pieces:
    """Pieces of a data set, as arrays of one length: what is fetched and staged as one, a small file or a chunk."""

    sizes: NDArray[np.int64]
    """Bytes, at least 1."""
    files: NDArray[np.int64]
    """The number of its file; the pieces of a file are evicted together."""
    directories: NDArray[np.int64]
    """Of a small file: a number of its directory; -1 of a chunk of a large one, which has no siblings."""
    names: Sequence[bytes]
    """Of small files, within their directories."""
    keys: NDArray[np.uint64]
    """By which owner nodes are placed (`policies.cluster.placement.keys`)."""

    def __len__(self) -> int:
        return len(self.sizes)

    def some(self, kept: NDArray[np.bool_], epochs: Sequence[Epoch]) -> tuple[Pieces, list[Epoch]]:
        """Only these, with all that is read of them."""
        names = [self.names[i] for i in np.flatnonzero(kept).tolist()]
        part = Pieces(self.sizes[kept], self.files[kept], self.directories[kept], names, self.keys[kept])
        numbers = np.cumsum(kept) - 1
        found = []
        for epoch in epochs:
            reads = kept[epoch.pieces]
            found.append(Epoch(numbers[epoch.pieces[reads]], epoch.sizes[reads]))
        return part, found


@dataclass(frozen=True)
class Epoch:
    """The reads of one epoch, in their order: which piece, and how many bytes of it."""

    pieces: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def part(self, node: int, nodes: int) -> Epoch:
        """The share of one of several nodes."""
        return Epoch(self.pieces[node::nodes], self.sizes[node::nodes])


@dataclass(frozen=True, slots=True)
class Rates:
    """Seconds, and bytes a second; `math.inf` for what costs nothing."""

    latency_s: float
    """What a fetch from the source takes besides its bytes: of a small file its look-up, open and read."""
    source_rate: float = math.inf
    """Of all fetches of all nodes together."""
    look_s: float = 0.0
    """What it takes to ask the source whether a file is still what it was."""
    compute_s: float = 0.0
    """From when its bytes are there until the reader comes to its next read."""
    peer_rate: float = math.inf
    """From other nodes, all nodes together."""
    peer_s: float = 0.0
    """And what one question takes."""

    def slower(self, factor: float) -> Rates:
        """All of it takes so many times as long."""
        return replace(
            self,
            **{name: getattr(self, name) * factor for name in self.__slots__ if name.endswith("_s")},
            **{name: getattr(self, name) / factor for name in self.__slots__ if name.endswith("_rate")},
        )


@dataclass(frozen=True, slots=True)
class SimulatedMount:
    """One daemon of the job, all alike."""

    cache_bytes: int
    way: str = DEFAULT
    nodes: int = 1
    readers: int = 1
    """Of each node: threads or processes that read."""
    ttl_s: float = 60.0
    siblings_bytes: int = 256 * 1000**2
    buffer_bytes: int = 128 << 20
    fetches_ahead: int = 32
    """At a time."""
    part: float = 1.0
    """Of the data that stands for all of it; `cache_bytes` and `siblings_bytes` are of this part."""

    @property
    def eviction(self) -> str:
        """Name of the policy."""
        return DEFAULT if self.way == HINTED else self.way


@dataclass(frozen=True, slots=True)
class EpochOutcome:
    """What an epoch has come to, all nodes together."""

    seconds: float
    reads: int
    read_bytes: int
    source_reads: int
    source_bytes: int
    peer_bytes: int
    staged_bytes: int
    """At its end, of all caches."""

    def of_all(self, epoch: Epoch) -> EpochOutcome:
        """Of the whole epoch of which this is a part, in the same time."""
        factor = float(epoch.sizes.sum()) / max(1, self.read_bytes)
        counts = {name: round(value * factor) for name, value in asdict(self).items() if name != "seconds"}
        return replace(self, **{**counts, "reads": len(epoch.pieces)})

    @property
    def hit_share(self) -> float:
        """The part of what was read that the source did not have to give in this epoch, at most 1; less than 0 where it
        gave more than was read, such as what was fetched ahead and evicted before its use."""
        return 1 - self.source_bytes / self.read_bytes if self.read_bytes else 0.0


def thinned(pieces: Pieces, epochs: Sequence[Epoch], many: int = MANY) -> tuple[Pieces, list[Epoch], float]:
    """A part of the files, by chance but always the same, with all that is read of them; and how large a part it is.

    The caches must be made as much smaller, and everything as much slower, so that an epoch takes its time. Of many
    directories whole ones are taken: in each then goes on what went on before.
    """
    if len(pieces) <= many:
        return pieces, list(epochs), 1.0
    are_many = pieces.directories.min() >= 0 and len(np.unique(pieces.directories)) >= _MANY_DIRECTORIES
    groups = pieces.directories if are_many else pieces.files
    count = int(groups.max()) + 1
    drawn = np.random.default_rng(0).permutation(count) < max(1.0, count * many / len(pieces))
    kept = drawn[groups]
    if not kept.any():
        return pieces, list(epochs), 1.0
    return *pieces.some(kept, epochs), float(pieces.sizes[kept].sum() / pieces.sizes.sum())


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
