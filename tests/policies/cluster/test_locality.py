"""How batches are balanced: nothing is left over, few moves. What nodes train on in an epoch: the same as batch by
batch, each sample once, and the regular slices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hfs.policies.cluster.locality import Move, balance, node_epoch, slice_epoch
from hfs.policies.cluster.placement import NOBODY

SURPLUSES = st.lists(st.integers(-9, 9), min_size=1, max_size=11).map(lambda some: [*some, -sum(some)])


def test_the_papers_example() -> None:
    """Red has 2 of 12 samples, Green 6, Blue 4: two go from Green to Red, 17 % of the batch."""
    assert balance([-2, 2, 0]) == [Move(1, 0, 2)]


def test_the_largest_meet_first_and_of_equals_the_one_that_comes_first() -> None:
    assert balance([1, 5, -2, -3, -2, 1]) == [Move(1, 3, 3), Move(1, 2, 2), Move(0, 4, 1), Move(5, 4, 1)]


def test_a_sum_that_is_not_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="differ by 3"):
        balance([4, -1])


@given(SURPLUSES)
def test_nothing_is_left_and_nobody_gives_and_takes(surpluses: list[int]) -> None:
    """One move less than there are nodes that give or take is at most twice the fewest: each is of two of them."""
    left = list(surpluses)
    for move in balance(surpluses):
        assert move.samples > 0
        assert surpluses[move.giver] > 0 > surpluses[move.taker]
        left[move.giver] -= move.samples
        left[move.taker] += move.samples
    assert not any(left)
    assert len(balance(surpluses)) <= max(0, sum(bool(surplus) for surplus in surpluses) - 1)


def divided(owners: NDArray[np.int32], learners: Sequence[int]) -> tuple[NDArray[np.int32], int]:
    """Who trains on each sample of one batch, and how many of them are given to another node: those that come last.
    What nobody has is given too, and not counted."""
    nobody = len(learners)
    owners = np.where(owners == NOBODY, nobody, owners)
    node_of = owners.copy()
    wanted = np.array([*learners, 0]) * (len(owners) // sum(learners))
    moves = balance((np.bincount(owners, minlength=nobody + 1) - wanted).tolist())
    for move in moves:
        node_of[np.flatnonzero((owners == move.giver) & (node_of == move.giver))[-move.samples :]] = move.taker
    return node_of, sum(move.samples for move in moves if move.giver != nobody)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6).filter(any), st.integers(1, 5), st.data())
def test_an_epoch_is_its_batches(learners: list[int], each: int, data: st.DataObject) -> None:
    world, nodes = sum(learners), len(learners)
    batch = each * world
    samples = batch * data.draw(st.integers(0, 3)) + world * data.draw(st.integers(0, each - 1))
    owners = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, nodes, samples, dtype=np.int32)
    if data.draw(st.booleans()):
        owners //= 2  # some nodes have nothing
    if data.draw(st.booleans()):
        owners[np.random.default_rng(1).random(samples) < 0.4] = NOBODY
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


def test_what_nobody_has_goes_where_there_is_a_deficit_and_as_little_moves_as_without_it() -> None:
    owners = np.array([0, 0, 0, 0, 0, NOBODY, NOBODY, 1], np.int32)
    first, moved = node_epoch(owners, 8, [1, 1], 0)
    second, _ = node_epoch(owners, 8, [1, 1], 1)
    assert (first.tolist(), second.tolist(), moved.tolist()) == ([0, 1, 2, 3], [7, 5, 6, 4], [1])


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
