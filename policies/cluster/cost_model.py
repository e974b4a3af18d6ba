"""The cost model of loading data on many nodes: how long an epoch takes, and where each way of loading stops scaling.

Equations (1) to (8) of locality-aware loading (Yang and Cong, 2019), in their symbols; D in samples, rates in samples a
second, times in seconds, p nodes. Training, preprocessing and loading overlap, so an epoch takes as long as the longer
of training and loading.

Pure; measures nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

Way = Literal["direct", "node_cache", "distributed", "locality"]
WAYS: tuple[Way, ...] = get_args(Way)
"""Of loading: everything from the shared storage; what its own cache has not from the storage; what its own cache has
not from others' caches; what has to move for balance from others' caches."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a training is like. All rates are more than 0; `math.inf` for what costs nothing."""

    samples: int
    """D"""
    train_rate: float
    """V: samples a second that one node trains on."""
    preprocess_rate: float
    """U: samples a second that one node can prepare."""
    storage_rate: float
    """R: samples a second that the shared storage gives to all nodes together."""
    remote_rate: float
    """R_c: samples a second that all nodes together read from each other's caches."""
    local_rate: float = math.inf
    """Samples a second that one node reads from its own cache. The paper takes it for infinite."""
    balance_rate: float | None = None
    """R_b: samples a second that all nodes together exchange for balance; None: `remote_rate`."""
    cached: float | None = None
    """alpha, in 0..1: the part of the data that all caches together hold; None: what as many caches as nodes hold."""
    node_cached: float = 1.0
    """In 0..1: the part of the data that fits into the cache of one node; each node then caches on its own."""
    moved: float = 0.0
    """beta, in 0..1: the part of the data that moves for balance."""
    step_samples: int | None = None
    """Samples that one node trains on in a step; beta is then what `expected_imbalance` says, and not `moved`."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of an epoch after the first, on p nodes. `*_io_s` are sample I/O; the others whole epochs."""

    nodes: int
    train_s: float
    """(1)"""
    preprocess_s: float
    """(3)"""
    direct_io_s: float
    """(2)"""
    node_cache_io_s: float
    distributed_io_s: float
    """(7)"""
    locality_io_s: float
    """(8)"""
    direct_s: float
    """(6), with the preprocessing of (4) that the paper leaves out there."""
    node_cache_s: float
    distributed_s: float
    locality_s: float


def costs(job: Job, nodes: int) -> Costs:
    """Equations (1) to (8) for `nodes` nodes, at least 1."""
    if nodes < 1:
        raise ValueError(f"{nodes} nodes")
    train_s = job.samples / (nodes * job.train_rate)
    preprocess_s = job.samples / (nodes * job.preprocess_rate)
    direct_io_s = job.samples / job.storage_rate
    local_s = job.samples / (nodes * job.local_rate)
    # Each node reads its p-th part; what its own cache has not, it reads from the storage that all share.
    node_cache_io_s = (1 - job.node_cached) * direct_io_s + job.node_cached * local_s
    cached = min(1.0, nodes * job.node_cached) if job.cached is None else job.cached
    missed = (1 - cached) * direct_io_s
    elsewhere = (nodes - 1) / nodes
    distributed_io_s = missed + cached * (job.samples / job.remote_rate * elsewhere + local_s * (1 - elsewhere))
    balance_rate = job.remote_rate if job.balance_rate is None else job.balance_rate
    if nodes == 1:
        moved = 0.0
    else:
        moved = job.moved if job.step_samples is None else expected_imbalance(nodes, job.step_samples)
    locality_io_s = missed + cached * (job.samples / balance_rate * moved + local_s * (1 - moved))

    def whole(io_s: float) -> float:
        return max(train_s, io_s + preprocess_s)

    return Costs(
        nodes,
        train_s,
        preprocess_s,
        direct_io_s,
        node_cache_io_s,
        distributed_io_s,
        locality_io_s,
        whole(direct_io_s),
        whole(node_cache_io_s),
        whole(distributed_io_s),
        whole(locality_io_s),
    )


def stops_scaling(job: Job, way: Way, most: int = 4096) -> int | None:
    """The fewest nodes whose training waits for data, so that it no longer decides how long an epoch takes; None: never
    up to `most`. For "direct" without preprocessing the node after (5)."""
    for nodes in range(1, most + 1):
        found = costs(job, nodes)
        if _epoch_s(found, way) > found.train_s * (1 + 1e-9):
            return nodes
    return None


def gains_end(job: Job, way: Way, gain: float = 1.1, most: int = 4096) -> int | None:
    """The fewest nodes from which on it is not worth to double them: an epoch gets shorter by less than the factor
    `gain`, there and at every doubling after it, up to `most`; None: it is worth it up to there."""
    last = None
    for nodes in range(most, 0, -1):
        if _epoch_s(costs(job, nodes), way) > gain * _epoch_s(costs(job, 2 * nodes), way):
            return last
        last = nodes
    return last


def _epoch_s(found: Costs, way: Way) -> float:
    return float(getattr(found, f"{way}_s"))


def expected_imbalance(nodes: int, local_batch: int) -> float:
    """The share of a batch that moves (figure 6): half the mean deviation of a binomial variable from its mean."""
    return math.sqrt((1 - 1 / nodes) / (2 * math.pi * local_batch))
