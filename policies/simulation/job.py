"""A simulated job: epochs read by all readers of all nodes, through their caches, from one source.

Each node reads its share of an epoch, every n-th read as a distributed sampler gives them out; an epoch ends for all
when its last read has ended. With several nodes each piece has an owner, which alone asks the source for it
(policies/cluster/placement.py), and where all data fits every node keeps what it has got from others.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hfs.policies.cache.admission import blocks_bytes
from hfs.policies.cluster.placement import Nodes, choose, owners
from hfs.policies.iomode import SMALL_BYTES
from hfs.policies.simulation.node import (
    HINTED,
    Epoch,
    EpochOutcome,
    Neighbours,
    Orders,
    Pieces,
    Rates,
    SimulatedCache,
    SimulatedMount,
    thinned,
)

_BEGIN_S = 10 * 24 * 3600.0
"""The clock starts late enough that "not used for a day" can be told."""
_SPREAD = 0.5
"""From three to five quarters of the mean, as those of servers without load are."""
_GOLDEN = 0.6180339887498949
"""Its multiples fill the unit interval evenly, whatever their number (Weyl)."""
_QUEUED = 512
"""Small files that wait to be fetched ahead, or are being fetched (mountd/fetch/small_pipeline.py)."""
_READER = -1
"""In the place of a piece: a reader goes on."""


def simulate(pieces: Pieces, epochs: Sequence[Epoch], mount: SimulatedMount, rates: Rates) -> list[EpochOutcome]:
    """What each epoch comes to, from an empty cache on. Of very many pieces a part is simulated, see `thinned`."""
    part, part_epochs, share = thinned(pieces, epochs)
    if share == 1:
        return _Job(pieces, mount, rates).run(epochs)
    smaller = replace(
        mount,
        cache_bytes=int(mount.cache_bytes * share),
        siblings_bytes=int(mount.siblings_bytes * share),
        part=share,
    )
    found = _Job(part, smaller, rates.slower(1 / share)).run(part_epochs)
    return [outcome.of_all(epoch) for outcome, epoch in zip(found, epochs, strict=True)]


class _Job:
    """Events are (time, number, node, piece or -1): a fetch has ended, or a reader goes on."""

    def __init__(self, pieces: Pieces, mount: SimulatedMount, rates: Rates) -> None:
        self.pieces, self.mount, self._rates = pieces, mount, rates
        self.sizes: list[int] = pieces.sizes.tolist()
        self._source = _Link(rates.latency_s, rates.source_rate)
        self._peers = _Link(rates.peer_s, rates.peer_rate)
        self._events: list[tuple[float, int, int, int]] = []
        self._count = 0
        self._owners: list[int] | None = None
        self._replicates = True
        if mount.nodes > 1:
            nodes = Nodes(tuple(range(1, mount.nodes + 1)), (1.0,) * mount.nodes)
            self._owners = owners(nodes.table(), pieces.keys).tolist()
            self._replicates = choose(sum(self.sizes), [mount.cache_bytes] * mount.nodes) == "replicate"
        self._nodes = [_Node(self, number) for number in range(mount.nodes)]

    def run(self, epochs: Sequence[Epoch]) -> list[EpochOutcome]:
        """One after the other."""
        now_s, found = _BEGIN_S, []
        for epoch, following in zip(epochs, [*epochs[1:], None], strict=True):
            for link in (self._source, self._peers):
                link.fetches = link.bytes = 0
            end_s = self._epoch(epoch, following, now_s)
            staged_bytes = sum(self.sizes[piece] for node in self._nodes for piece in node.cache.staged)
            found.append(
                EpochOutcome(
                    *(end_s - now_s, len(epoch.pieces), int(epoch.sizes.sum())),
                    *(self._source.fetches, self._source.bytes, self._peers.bytes, staged_bytes),
                )
            )
            now_s = end_s
        return found

    def _epoch(self, epoch: Epoch, following: Epoch | None, now_s: float) -> float:
        """When its last read has ended."""
        reads, sizes, nodes = epoch.pieces.tolist(), epoch.sizes.tolist(), self.mount.nodes
        left = [iter(range(number, len(reads), nodes)) for number in range(nodes)]
        for number, node in enumerate(self._nodes):
            node.begin(epoch.part(number, nodes), following and following.part(number, nodes), now_s)
            for _ in range(self.mount.readers):
                self._later(now_s, number, _READER)
        running, end_s = nodes * self.mount.readers, now_s
        while running:
            at_s, _, number, piece = heapq.heappop(self._events)
            if piece != _READER:
                self._nodes[number].arrived(piece, at_s)
                continue
            index = next(left[number], None)
            if index is None:
                running -= 1
                end_s = max(end_s, at_s)
                continue
            ready_s, is_look_due = self._nodes[number].read(reads[index], sizes[index], at_s)
            ready_s += self._rates.compute_s + (self._rates.look_s if is_look_due else 0.0)
            self._later(ready_s, number, _READER)
        return end_s

    def _later(self, at_s: float, node: int, piece: int) -> None:
        self._count += 1
        heapq.heappush(self._events, (at_s, self._count, node, piece))

    def fetch(self, node: int, piece: int, size_bytes: int, now_s: float) -> float:
        """Begin to fetch for a node, by the owner from the source, by others from the owner; when it will have come,
        which the node is told then."""
        owner = node if self._owners is None else self._owners[piece]
        if owner == node:
            end_s = self._source.done_s(now_s, size_bytes)
        else:
            end_s = self._peers.done_s(self._nodes[owner].have(piece, now_s), size_bytes)
        self._later(end_s, node, piece)
        return end_s

    def stages(self, node: int, piece: int) -> bool:
        """Whether it is staged on this node, and not only on its owner."""
        return self._replicates or self._owners is None or self._owners[piece] == node


@dataclass(slots=True)
class _Fetch:
    """What is on its way to a node."""

    end_s: float
    is_ahead: bool
    """It was begun before its reader came."""
    is_awaited: bool = False


class _Node:
    """Its readers' reads, its cache, what is on its way, and what it fetches ahead."""

    def __init__(self, job: _Job, number: int) -> None:
        pieces, mount = job.pieces, job.mount
        self._job, self._number, self._mount, self._sizes = job, number, mount, job.sizes
        self.cache = SimulatedCache(mount.cache_bytes, mount.eviction, job.sizes, mount.part)
        self._is_hinted = mount.way == HINTED
        self._ahead = Orders(pieces, mount, self.cache) if self._is_hinted else Neighbours(pieces, mount)
        self._held: OrderedDict[int, int] = OrderedDict()
        """In memory until their reader comes: bytes."""
        self._held_bytes = 0
        self._memory_bytes = math.inf if self._is_hinted else mount.buffer_bytes // 4
        self._largest_bytes = min(SMALL_BYTES, int(pieces.sizes.max(where=pieces.directories >= 0, initial=1)))
        self._coming: dict[int, _Fetch] = {}
        self._coming_ahead = 0
        self._was_staged: set[int] = set()
        """What the data plane takes for here when it is asked for ahead: it learns of evictions from readers only."""
        self._looked_s: dict[int, float] = {}
        """When the source was asked last what a file is."""

    def begin(self, epoch: Epoch, following: Epoch | None, now_s: float) -> None:
        """An epoch begins."""
        self._ahead.begin(epoch, following, now_s)
        self._fetch_ahead(now_s)

    def have(self, piece: int, now_s: float, size_bytes: int | None = None) -> float:
        """Have it here for a reader, or for another node: when it is, which that one is told."""
        if piece in self.cache.staged or piece in self._held:
            return now_s
        if piece not in self._coming:
            self._begin(piece, size_bytes or self._sizes[piece], now_s)
        self._coming[piece].is_awaited = True
        return self._coming[piece].end_s

    def read(self, piece: int, size_bytes: int, now_s: float) -> tuple[float, bool]:
        """A reader comes to a piece: when its bytes are there, and whether a look at the source was due besides."""
        here = piece in self.cache.staged or piece in self._held
        self._ahead.opened(piece, now_s, staged=here)
        ready_s = self.have(piece, now_s, None if self.cache.has_room(self._sizes[piece]) else size_bytes)
        looked_s = self._looked_s.get(piece)
        is_due = here and looked_s is not None and now_s > looked_s + self._mount.ttl_s
        if is_due or looked_s is None or not here:
            self._looked_s[piece] = ready_s
        if here:
            self.cache.opened(piece, now_s)
            self._release(piece)
        self._fetch_ahead(now_s)
        return ready_s, is_due

    def _begin(self, piece: int, size_bytes: int, now_s: float, *, is_ahead: bool = False) -> None:
        self._coming_ahead += is_ahead
        self._coming[piece] = _Fetch(self._job.fetch(self._number, piece, size_bytes, now_s), is_ahead)

    def arrived(self, piece: int, now_s: float) -> None:
        """A fetch has ended."""
        fetch = self._coming.pop(piece)
        stays = self._job.stages(self._number, piece)
        if fetch.is_ahead:
            self._coming_ahead -= 1
            stays &= self._ahead.came(piece, now_s)
            self._looked_s.setdefault(piece, now_s)
        if stays and self.cache.stage(piece, now_s):
            self._was_staged.add(piece)
        elif not fetch.is_awaited:
            self._hold(piece)
        self._fetch_ahead(now_s)

    def _fetch_ahead(self, now_s: float) -> None:
        """Begin what is worth fetching now. Small files for which the cache has no room wait in memory."""
        while self._coming_ahead < self._mount.fetches_ahead:
            places = self.cache.granted_bytes / blocks_bytes(self._largest_bytes)
            if not self.cache.has_room(self._largest_bytes):
                places = (self._memory_bytes / 2 - self._held_bytes) / SMALL_BYTES
            piece = self._ahead.next(int(min(places, _QUEUED)) - len(self._coming), now_s)
            if piece is None:
                return
            is_here = piece in self.cache.staged or (piece in self._was_staged and not self._is_hinted)
            if is_here or piece in self._held or piece in self._coming:
                self._ahead.not_needed(piece)
            else:
                self._begin(piece, self._sizes[piece], now_s, is_ahead=True)

    def _hold(self, piece: int) -> None:
        self._held[piece] = self._sizes[piece]
        self._held_bytes += self._sizes[piece]
        while self._held_bytes > self._memory_bytes:
            _, dropped = self._held.popitem(last=False)
            self._held_bytes -= dropped

    def _release(self, piece: int) -> None:
        """It was read: what only memory had goes."""
        size_bytes = self._held.pop(piece, None)
        if size_bytes is not None:
            self._held_bytes -= size_bytes
            if piece not in self.cache.staged:
                self._ahead.forgotten([piece])


class _Link:
    """A source, or the network between nodes: latencies overlap, bandwidth does not. Times never go back.

    A fetch is done when the link that all share has carried its bytes after all that was asked before, plus the
    latency. Latencies are spread a little, always in the same way: else what is begun together comes together, again
    and again.
    """

    def __init__(self, latency_s: float, rate: float) -> None:
        self._latency_s = latency_s
        self._rate = rate
        self._free_s = 0.0
        self._place = 0.0
        self.fetches = self.bytes = 0

    def done_s(self, now_s: float, size_bytes: int) -> float:
        """When a fetch that begins now has ended."""
        self.fetches += 1
        self.bytes += size_bytes
        self._place = (self._place + _GOLDEN) % 1
        self._free_s = max(now_s, self._free_s) + size_bytes / self._rate
        return self._free_s + self._latency_s * (1 + _SPREAD * (self._place - 0.5))
