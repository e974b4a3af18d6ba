"""What nodes train on in an epoch: the same as batch by batch, each sample once, and the regular slices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hfs.policies.cluster.balance import balance, shares
from hfs.policies.cluster.locality import node_epoch, slice_epoch


def divided(owners: NDArray[np.int32], learners: Sequence[int]) -> tuple[NDArray[np.int32], int]:
    """Who trains on each sample of one batch, and how many of them are given to another node: those that come last."""
    node_of = owners.copy()
    moves = balance((np.bincount(owners, minlength=len(learners)) - shares(len(owners), learners)).tolist())
    for move in moves:
        node_of[np.flatnonzero((owners == move.giver) & (node_of == move.giver))[-move.samples :]] = move.taker
    return node_of, sum(move.samples for move in moves)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6).filter(any), st.integers(1, 5), st.data())
def test_an_epoch_is_its_batches(learners: list[int], each: int, data: st.DataObject) -> None:
    world, nodes = sum(learners), len(learners)
    batch = each * world
    samples = batch * data.draw(st.integers(0, 3)) + world * data.draw(st.integers(0, each - 1))
    owners = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, nodes, samples, dtype=np.int32)
    if data.draw(st.booleans()):
        owners //= 2  # some nodes have nothing
    mine = [node_epoch(owners, batch, learners, node) for node in range(nodes)]
    assert sorted(np.concatenate([positions for positions, _ in mine]).tolist()) == list(range(samples))
    for start in range(0, samples, batch):
        node_of, moved_here = divided(owners[start : start + batch], learners)
        step, size = start // batch, len(owners[start : start + batch])
        for node, (positions, moved) in enumerate(mine):
            assert moved[step] == moved_here
            here = positions[start // world * learners[node] :][: size // world * learners[node]]
            assert sorted(here.tolist()) == (start + np.flatnonzero(node_of == node)).tolist()
            own = owners[here] == node
            assert not np.any(own[1:] & ~own[:-1]), "what comes from others comes last"


def test_the_regular_slices() -> None:
    assert slice_epoch(10, 4, 2, 0).tolist() == [0, 1, 4, 5, 8]
    assert slice_epoch(10, 4, 2, 1).tolist() == [2, 3, 6, 7, 9]
    assert slice_epoch(2, 4, 2, 1).tolist() == [1]
    assert slice_epoch(0, 4, 2, 1).tolist() == []


@pytest.mark.parametrize(("samples", "batch"), [(8, 3), (9, 4), (1, 4)])
def test_batches_that_do_not_divide_are_refused(samples: int, batch: int) -> None:
    with pytest.raises(ValueError, match="do not divide among 2"):
        node_epoch(np.zeros(samples, np.int32), batch, [1, 1], 0)
    with pytest.raises(ValueError, match="do not divide among 2"):
        slice_epoch(samples, batch, 2, 0)
    with pytest.raises(ValueError, match="0 learners"):
        node_epoch(np.zeros(samples, np.int32), batch, [0, 0], 0)
