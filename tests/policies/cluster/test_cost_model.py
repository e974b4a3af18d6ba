"""The equations by hand, what they say of scaling, and the paper's imbalance."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfs.policies.cluster.cost_model import WAYS, Job, costs, expected_imbalance, gains_end, stops_scaling
from scripts.benchmarks.peers_simulation import imbalance

JOB = Job(samples=1200, train_rate=10, preprocess_rate=30, storage_rate=40, remote_rate=120, cached=0.75, moved=0.05)


def test_the_equations_by_hand() -> None:
    found = costs(JOB, 4)
    assert found.train_s == 1200 / (4 * 10)  # (1)
    assert found.direct_io_s == 1200 / 40  # (2)
    assert found.preprocess_s == 1200 / (4 * 30)  # (3)
    assert found.direct_s == 30 + 10  # (4), (6): loading takes longer than 30 s of training
    assert found.distributed_io_s == pytest.approx(0.25 * 30 + 0.75 * 10 * 3 / 4)  # (7)
    assert found.locality_io_s == pytest.approx(0.25 * 30 + 0.75 * 10 * 0.05)  # (8)
    assert found.distributed_s == found.locality_s == 30


def test_without_preprocessing_direct_loading_scales_to_r_over_v() -> None:
    job = Job(samples=1000, train_rate=10, preprocess_rate=math.inf, storage_rate=85, remote_rate=1e9)
    assert stops_scaling(job, "direct") == 9  # (5): p <= 8.5 is dominated by training
    assert costs(job, 8).direct_s == 1000 / 80
    assert costs(job, 9).direct_s == costs(job, 900).direct_s == 1000 / 85
    assert stops_scaling(job, "locality") is None


def test_where_more_nodes_gain_nothing() -> None:
    job = Job(samples=1000, train_rate=10, preprocess_rate=math.inf, storage_rate=80, remote_rate=1e9)
    assert gains_end(job, "direct") == 8  # 1000 / 80 s from there on; at 7 nodes twice as many gain a seventh
    assert gains_end(job, "node_cache") is None
    # Preparing takes longer than training on any number of nodes: training waits, but more nodes help all the same.
    slow = Job(samples=1000, train_rate=10, preprocess_rate=5, storage_rate=1e6, remote_rate=1e6)
    assert stops_scaling(slow, "direct") == 1
    assert gains_end(slow, "direct", most=1000) is None


def test_caches_that_hold_the_data_only_together() -> None:
    job = Job(samples=1000, train_rate=1, preprocess_rate=math.inf, storage_rate=4, remote_rate=40, node_cached=0.125)
    assert costs(job, 4).distributed_io_s == pytest.approx(0.5 * 250 + 0.5 * 25 * 3 / 4)
    assert costs(job, 8).distributed_io_s == costs(job, 8).locality_io_s + 25 * 7 / 8 == pytest.approx(25 * 7 / 8)
    assert costs(job, 800).distributed_io_s == pytest.approx(25 * 799 / 800)
    assert costs(job, 800).node_cache_io_s == pytest.approx(0.875 * 250)
    assert [stops_scaling(job, way) for way in WAYS] == [5, 5, 42, None]  # 25 (p - 1) > 1000


def test_what_moves_follows_from_the_batch() -> None:
    job = Job(1000, 1, math.inf, 10, 10, moved=0.9, step_samples=32)
    assert costs(job, 8).locality_io_s == pytest.approx(100 * expected_imbalance(8, 32))
    assert costs(job, 1).locality_io_s == 0


def test_one_node_reads_nothing_from_others() -> None:
    found = costs(Job(100, 1, math.inf, 10, 10, cached=1.0, moved=0.5, node_cached=0.0), 1)
    assert found.distributed_io_s == found.locality_io_s == 0
    assert found.node_cache_io_s == found.direct_io_s == 10


@given(st.integers(1, 1024), st.floats(0, 1), st.floats(0, 1), st.floats(0.1, 1e6), st.floats(0.1, 1e6))
def test_caches_never_cost_more_than_they_save(
    nodes: int, cached: float, moved: float, storage: float, remote: float
) -> None:
    job = Job(1000, 5, 50, storage, max(storage, remote), cached=cached, moved=moved)
    found = costs(job, nodes)
    slack = 1 + 1e-9
    assert found.distributed_io_s <= found.direct_io_s * slack
    assert found.locality_io_s <= found.direct_io_s * slack
    assert found.train_s <= found.locality_s
    if moved <= (nodes - 1) / nodes:
        assert found.locality_s <= found.distributed_s * slack


@pytest.mark.parametrize(("batch", "percent"), [(32, 6.9), (64, 4.8), (128, 3.4)])
@pytest.mark.parametrize("nodes", [8, 64, pytest.param(1024, marks=pytest.mark.slow)])
def test_the_imbalance_is_the_papers(nodes: int, batch: int, percent: float) -> None:
    found = 100 * float(np.median(imbalance(nodes, batch, 64 if nodes > 64 else 256, seed=1)))
    assert abs(found - percent) < 0.5
    assert abs(found - 100 * expected_imbalance(nodes, batch)) < 0.4
