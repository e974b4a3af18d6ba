"""A simulated job: epochs read by all readers of all nodes, through their caches, from one source.

Each node reads its share of an epoch, every n-th read as a distributed sampler gives them out; an epoch ends for all
when its last read has ended. With several nodes each piece has an owner, which alone asks the source for it
(policies/cluster/placement.py), and where all data fits every node keeps what it has got from others.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hfs.policies.cluster.placement import Nodes, choose, owners
from hfs.policies.simulation.cache import BEGIN_S
from hfs.policies.simulation.node import SimulatedNode
from hfs.policies.simulation.pieces import Epoch, EpochOutcome, Pieces, Rates, SimulatedMount, thinned

_SPREAD = 0.5
"""From three to five quarters of the mean, as those of servers without load are."""
_GOLDEN = 0.6180339887498949
"""Its multiples fill the unit interval evenly, whatever their number (Weyl)."""
_READER = -1
"""In the place of a piece: a reader goes on."""


def simulate(pieces: Pieces, epochs: Sequence[Epoch], mount: SimulatedMount, rates: Rates) -> list[EpochOutcome]:
    """What each epoch comes to, from an empty cache on. Of very many pieces a part is simulated, see `thinned`."""
    part, part_epochs, share = thinned(pieces, epochs)
    if share < 1:
        mount = replace(
            mount,
            cache_bytes=int(mount.cache_bytes * share),
            siblings_bytes=int(mount.siblings_bytes * share),
            part=share,
        )
        rates = rates.slower(1 / share)
    found = _Job(part, mount, rates).run(part_epochs)
    if share == 1:
        return found
    whole = [int(epoch.sizes.sum()) for epoch in epochs]
    return [
        outcome.times(size / max(1, outcome.read_bytes), len(epoch.pieces))
        for outcome, size, epoch in zip(found, whole, epochs, strict=True)
    ]


class _Job:
    """Events are (time, number, node, piece or -1): a fetch has ended, or a reader goes on."""

    def __init__(self, pieces: Pieces, mount: SimulatedMount, rates: Rates) -> None:
        self._pieces = pieces
        self._mount = mount
        self._rates = rates
        self._source = _Link(rates.latency_s, rates.source_rate)
        self._peers = _Link(rates.peer_s, rates.peer_rate)
        self._events: list[tuple[float, int, int, int]] = []
        self._count = 0
        self._owners: list[int] | None = None
        self._replicates = True
        if mount.nodes > 1:
            nodes = Nodes(tuple(range(1, mount.nodes + 1)), (1.0,) * mount.nodes)
            self._owners = owners(nodes.table(), pieces.keys).tolist()
            self._replicates = choose(int(pieces.sizes.sum()), [mount.cache_bytes] * mount.nodes) == "replicate"
        self._nodes = [
            SimulatedNode(number, pieces, mount, self._fetch, self._later, self._stages)
            for number in range(mount.nodes)
        ]
        self._clear()

    def _clear(self) -> None:
        self._source_reads = self._source_bytes = self._peer_bytes = 0

    def run(self, epochs: Sequence[Epoch]) -> list[EpochOutcome]:
        """One after the other."""
        now_s, found = BEGIN_S, []
        for number, epoch in enumerate(epochs):
            following = epochs[number + 1] if number + 1 < len(epochs) else None
            self._clear()
            end_s = self._epoch(epoch, following, now_s)
            found.append(
                EpochOutcome(
                    seconds=end_s - now_s,
                    reads=len(epoch.pieces),
                    read_bytes=int(epoch.sizes.sum()),
                    source_reads=self._source_reads,
                    source_bytes=self._source_bytes,
                    peer_bytes=self._peer_bytes,
                    staged_bytes=sum(node.cache.staged_bytes for node in self._nodes),
                )
            )
            now_s = end_s
        return found

    def _epoch(self, epoch: Epoch, following: Epoch | None, now_s: float) -> float:
        """When its last read has ended."""
        reads, sizes, nodes = epoch.pieces.tolist(), epoch.sizes.tolist(), self._mount.nodes
        left: list[Iterator[int]] = [iter(range(number, len(reads), nodes)) for number in range(nodes)]
        for node in self._nodes:
            node.begin(_part(epoch, node.number, nodes), following and _part(following, node.number, nodes), now_s)
        running = 0
        for number in range(nodes):
            for _ in range(self._mount.readers):
                self._later(now_s, number, _READER)
                running += 1
        end_s, rates = now_s, self._rates
        while running:
            at_s, _, number, piece = heapq.heappop(self._events)
            node = self._nodes[number]
            if piece != _READER:
                node.arrived(piece, at_s)
                continue
            index = next(left[number], None)
            if index is None:
                running -= 1
                end_s = max(end_s, at_s)
                continue
            ready_s, is_look_due = node.read(reads[index], sizes[index], at_s)
            ready_s += rates.compute_s + (rates.look_s if is_look_due else 0.0)
            self._later(ready_s, number, _READER)
        return end_s

    def _later(self, at_s: float, node: int, piece: int) -> None:
        self._count += 1
        heapq.heappush(self._events, (at_s, self._count, node, piece))

    def _fetch(self, node: int, piece: int, size_bytes: int, now_s: float) -> float:
        """By the owner from the source, by others from the owner."""
        owner = node if self._owners is None else self._owners[piece]
        if owner != node:
            self._peer_bytes += size_bytes
            return self._peers.done_s(self._nodes[owner].have(piece, now_s), size_bytes)
        self._source_reads += 1
        self._source_bytes += size_bytes
        return self._source.done_s(now_s, size_bytes)

    def _stages(self, node: int, piece: int) -> bool:
        return self._replicates or self._owners is None or self._owners[piece] == node


def _part(epoch: Epoch, node: int, nodes: int) -> Epoch:
    return Epoch(epoch.pieces[node::nodes], epoch.sizes[node::nodes])


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
        self._fetches = 0

    def done_s(self, now_s: float, size_bytes: int) -> float:
        """When a fetch that begins now has ended."""
        self._fetches += 1
        latency_s = self._latency_s * (1 + _SPREAD * (self._fetches * _GOLDEN % 1 - 0.5))
        self._free_s = max(now_s, self._free_s) + size_bytes / self._rate
        return self._free_s + latency_s
