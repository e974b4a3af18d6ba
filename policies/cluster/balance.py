"""Balance: how many samples of a global batch nodes give each other, when each node should train on what it has.

Locality-aware loading (Yang and Cong, 2019): all learners draw the same global batch, each node keeps those of its
samples that it has cached, and what some have too many of goes to those who have too few (Algorithm 1): the largest
surplus meets the largest deficit. At most p - 1 moves between p nodes, at most twice as many as the fewest possible (to
find these is NP-complete), in O(p log p). The order inside a global batch does not change the summed gradient (Theorem
1), so training is as with the regular sampler. Whose samples these are is said in locality.py.

Every rank gets the same answer. Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


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
