"""Locality: what one node trains on in a whole epoch, when every global batch is divided by who has cached what.

Locality-aware loading (Yang and Cong, 2019): all learners draw the same global batch, each node keeps those of its
samples that it has cached, and what some have too many of goes to those who have too few (Algorithm 1): the largest
surplus meets the largest deficit. At most p - 1 moves between p nodes, at most twice as many as the fewest possible (to
find these is NP-complete), in O(p log p). Where the caches together are smaller than the data (alpha < 1), samples that
nobody has go to nodes with a deficit (section V-A): they are a giver like any other, whose samples come from the
source. The order inside a global batch does not change the summed gradient (Theorem 1), so training is as with the
regular sampler.

A learner of a thousand wants only its own samples, of all the batches of an epoch, before it begins: the samples are
counted and sorted by their owners once for the epoch, and what moves is found by counts, batch by batch. 1.28 million
samples of 1 024 nodes take well under a second.

Learners come to the same answer without asking each other. Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hfs.policies.cluster.placement import NOBODY


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


def node_epoch(
    owners: NDArray[np.int32], batch: int, learners: Sequence[int], node: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What `node` trains on: (positions in the order of the epoch, int64 [all], samples moved in each step, int64).

    `owners`: int32 [samples], the node that has each sample of the epoch's order, in [0, len(learners)), or NOBODY.
    Step s is the global batch [s batch, (s + 1) batch) of it, the last may be smaller. `learners`: of each node; each
    trains on as many samples of a step as any other, so their sum must divide `batch` and the last batch (ValueError).
    The positions are in order of the steps, and in each step those that it owns come first. Moved is what one node has
    and another trains on, not what nobody has.
    """
    world, nodes = sum(learners), len(learners)
    if not world or batch % world or len(owners) % batch % world:
        raise ValueError(f"batches of {batch} and {len(owners) % batch} samples do not divide among {world} learners")
    steps = -(-len(owners) // batch)
    per_learner = np.array([*learners, 0], np.int64)  # the last has what nobody has
    wanted, givers = per_learner * (batch // world), nodes + 1
    keys = np.arange(len(owners)) // batch * givers + np.where(owners <= NOBODY, nodes, owners)
    have = np.bincount(keys, minlength=steps * givers).reshape(steps, givers)
    # Stable: samples of one owner keep the order of the batch.
    order = np.argsort(keys, kind="stable")
    ends = np.cumsum(have).reshape(steps, givers)
    found: list[NDArray[np.int64]] = []
    moved = np.zeros(steps, np.int64)
    for step in range(steps):
        if (step + 1) * batch > len(owners):
            wanted = per_learner * (len(owners) % batch // world)
        surplus = have[step] - wanted
        moved[step] = np.maximum(surplus[:nodes], 0).sum()
        mine, end = int(min(have[step, node], wanted[node])), int(ends[step, node])
        start = end - int(have[step, node])
        found.append(order[start : start + mine])
        if surplus[node] >= 0:
            continue
        given: dict[int, int] = {}
        for move in balance(surplus.tolist()):
            before = given.get(move.giver, 0)
            given[move.giver] = before + move.samples
            if move.taker == node:  # of a node with a surplus those that come last are given
                last = int(ends[step, move.giver]) - before
                found.append(order[last - move.samples : last])
    return np.concatenate(found) if found else np.empty(0, np.int64), moved


def slice_epoch(samples: int, batch: int, world: int, rank: int) -> NDArray[np.int64]:
    """What learner `rank` trains on by the regular sampler: the positions of its slice of each global batch.

    int64, in order of the steps; `world` must divide `batch` and the last batch (ValueError).
    """
    if batch % world or samples % batch % world:
        raise ValueError(f"batches of {batch} and {samples % batch} samples do not divide among {world} learners")
    each, rest = batch // world, samples % batch // world
    whole = samples // batch
    full = np.arange(whole)[:, None] * batch + np.arange(rank * each, (rank + 1) * each)
    return np.concatenate([full.ravel(), whole * batch + np.arange(rank * rest, (rank + 1) * rest)])
