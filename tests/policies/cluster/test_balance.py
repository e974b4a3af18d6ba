"""Nothing is left over, equal parts, few moves."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfs.policies.cluster.balance import Move, balance, shares

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
    left = list(surpluses)
    for move in balance(surpluses):
        assert move.samples > 0
        assert surpluses[move.giver] > 0 > surpluses[move.taker]
        left[move.giver] -= move.samples
        left[move.taker] += move.samples
    assert not any(left)
    assert len(balance(surpluses)) <= max(0, sum(bool(surplus) for surplus in surpluses) - 1)


def fewest_moves(surpluses: list[int]) -> int:
    """By trying: k groups of nodes that balance among themselves need k moves fewer than there are nodes."""
    nodes = [surplus for surplus in surpluses if surplus]
    best = 0
    balanced = [
        frozenset(group)
        for size in range(1, len(nodes) + 1)
        for group in itertools.combinations(range(len(nodes)), size)
        if sum(nodes[i] for i in group) == 0
    ]

    def search(free: frozenset[int], groups: int, start: int) -> None:
        nonlocal best
        best = max(best, groups)
        for i in range(start, len(balanced)):
            if balanced[i] <= free:
                search(free - balanced[i], groups + 1, i + 1)

    search(frozenset(range(len(nodes))), 0, 0)
    return len(nodes) - best


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=6).map(lambda some: [*some, -sum(some)]))
def test_at_most_twice_the_fewest_moves(surpluses: list[int]) -> None:
    assert len(balance(surpluses)) <= 2 * fewest_moves(surpluses)


@given(st.integers(0, 200), st.lists(st.integers(0, 4), min_size=1, max_size=6).filter(any))
def test_parts_of_learners_differ_by_one_at_most(samples: int, learners: list[int]) -> None:
    parts = shares(samples, learners)
    assert sum(parts) == samples
    each = samples // sum(learners)
    for part, count in zip(parts, learners, strict=True):
        assert each * count <= part <= (each + 1) * count
