"""Balance: who trains on which samples of a global batch, when each node should train on what it has.

Locality-aware loading (Yang and Cong, 2019): all learners draw the same global batch, each node keeps those of its
samples that it has cached, and what some have too many of goes to those who have too few (Algorithm 1): the largest
surplus meets the largest deficit. At most p - 1 moves between p nodes, at most twice as many as the fewest possible (to
find these is NP-complete), in O(p log p). The order inside a global batch does not change the summed gradient (Theorem
1), so training is as with the regular sampler. Samples that nobody has cached fill the deficits first: they must be
loaded anyway.

Every rank gets the same answer. Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Move:
    """`samples` of a batch that node `giver` has are trained on by node `taker`."""

    giver: int
    taker: int
    samples: int


def balance(surpluses: Sequence[int]) -> list[Move]:
    """Algorithm 1. `surpluses`: of each node, how many samples it has too many, negative for a deficit; their sum is 0.

    Raises ValueError if it is not. Of equals the node with the lower number comes first, so that all ranks agree.
    """
    if sum(surpluses) != 0:
        raise ValueError(f"surpluses and deficits differ by {sum(surpluses)}")
    givers = [(-surplus, node) for node, surplus in enumerate(surpluses) if surplus > 0]
    takers = [(surplus, node) for node, surplus in enumerate(surpluses) if surplus < 0]
    heapq.heapify(givers)
    heapq.heapify(takers)
    moves: list[Move] = []
    while givers:
        (more, giver), (less, taker) = givers[0], takers[0]
        samples = min(-more, -less)
        moves.append(Move(giver, taker, samples))
        for heap, left, node in ((givers, more + samples, giver), (takers, less + samples, taker)):
            if left:
                heapq.heapreplace(heap, (left, node))
            else:
                heapq.heappop(heap)
    return moves


def shares(samples: int, learners: Sequence[int]) -> list[int]:
    """How many samples of a global batch each node trains on: its learners' parts, which differ by one at most.

    `learners`: of each node. The parts of an uneven batch are larger for the learners that come first.
    """
    each, more = divmod(samples, sum(learners))
    ends = np.cumsum([0, *learners])
    return [
        each * count + min(max(more - start, 0), count) for start, count in zip(ends.tolist(), learners, strict=False)
    ]


@dataclass(frozen=True, slots=True)
class Assignment:
    """A global batch, divided. `node_of`: int32 [samples], who trains on each; `moved`: how many of them their owner
    gives to another node; `loaded`: how many nobody has cached."""

    node_of: NDArray[np.int32]
    moved: int
    loaded: int
    moves: int


def assign(owners: NDArray[np.int32], learners: Sequence[int]) -> Assignment:
    """Divide one global batch. `owners`: int32 [samples], the node that has each cached, or negative for none.

    Each node gets what `shares` gives it. Of a node with a surplus the samples that come last in the batch are given.
    """
    nodes = len(learners)
    cached = np.flatnonzero(owners >= 0)
    wanted = np.array(shares(len(owners), learners))
    order = cached[np.argsort(owners[cached], kind="stable")]
    have = np.bincount(owners[cached], minlength=nodes)
    node_of = np.empty(len(owners), np.int32)
    node_of[cached] = owners[cached]
    surplus = have - wanted
    # What nobody has goes where something is missing, the largest deficit first.
    loaded = np.flatnonzero(owners < 0)
    fill = [Move(-1, int(node), int(count)) for node, count in _filled(-surplus, len(loaded))]
    start = 0
    for one in fill:
        node_of[loaded[start : start + one.samples]] = one.taker
        surplus[one.taker] += one.samples
        start += one.samples
    moves = balance(surplus.tolist())
    ends = np.cumsum(have)
    for move in moves:
        end = int(ends[move.giver])
        node_of[order[end - move.samples : end]] = move.taker
        ends[move.giver] -= move.samples
    return Assignment(node_of, sum(move.samples for move in moves), len(loaded), len(moves))


def _filled(deficits: NDArray[np.int64], samples: int) -> list[tuple[int, int]]:
    """(node, samples) of those that fill their deficits with so many samples, the largest deficit first."""
    filled = []
    for node in np.argsort(-deficits, kind="stable").tolist():
        count = min(samples, max(0, int(deficits[node])))
        if count:
            filled.append((node, count))
            samples -= count
    return filled
