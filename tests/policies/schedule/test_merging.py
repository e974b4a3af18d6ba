"""Several learners' wants in one order: by time, as far as it is known, within shares and budget."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hfs.policies.schedule.fetch_order import Wanted, merge


def wanted(units: list[int], due_s: list[float], *, more: bool = False, ahead: int = 0) -> Wanted:
    return Wanted(np.array(units, np.int32), np.array(due_s, np.float64), more, ahead)


def merged(wanting: list[Wanted], *, limit: int = 100, budget: int = 10**9, idle: int = 0) -> list[tuple[int, int]]:
    sizes = np.full(100, 10, np.int64)
    got = merge(wanting, sizes, limit=limit, budget_bytes=budget, idle_bytes=idle)
    assert got.due_s.tolist() == sorted(got.due_s.tolist())
    for unit, due_s, owner in zip(got.units, got.due_s, got.owners, strict=True):
        assert due_s in wanting[owner].due_s[wanting[owner].units == unit]
    return list(zip(got.units.tolist(), got.owners.tolist(), strict=True))


def test_by_time_each_once_for_whom_it_is_due_first() -> None:
    both = [wanted([1, 2, 3], [1, 2, 3]), wanted([3, 4], [1.5, 2.5])]
    assert merged(both) == [(1, 0), (3, 1), (2, 0), (4, 1)]
    assert merged(both, limit=2) == [(1, 0), (3, 1)]


def test_nothing_later_than_what_is_known() -> None:
    assert merged([wanted([1, 2], [1, 2], more=True), wanted([3, 4], [1.5, 2.5])]) == [(1, 0), (3, 1), (2, 0)]
    # Who has no share left for more than is known holds up nobody.
    assert merged([wanted([1, 2], [1, 2], more=True, ahead=50), wanted([3, 4], [1.5, 2.5])], budget=130) == [
        *[(1, 0), (3, 1), (4, 1)]
    ]


def test_who_is_due_first_gets_no_more_than_a_share() -> None:
    soon, late = wanted(list(range(9)), list(range(9))), wanted(list(range(50, 59)), list(range(100, 109)))
    assert merged([soon, late], budget=60) == [(0, 0), (1, 0), (2, 0), (50, 1), (51, 1), (52, 1)]
    assert merged([soon, late], budget=60, idle=20) == [(0, 0), (1, 0), (50, 1), (51, 1)]
    # Who has nothing gets one in any case.
    assert merged([soon, late], budget=6) == [(0, 0), (50, 1)]
    assert merged([soon, late], budget=60, idle=60) == [(0, 0), (50, 1)]
    assert merged([wanted([1], [0.0], ahead=10)], budget=10) == []


WANTED = st.builds(
    lambda units, steps, more, ahead: wanted(units, np.cumsum(steps[: len(units)]).tolist(), more=more, ahead=ahead),
    st.lists(st.integers(0, 20), min_size=1, max_size=10, unique=True),
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=10, max_size=10),
    st.booleans(),
    st.sampled_from([0, 0, 10, 50]),
)


@given(st.lists(WANTED, min_size=1, max_size=4), st.integers(1, 12), st.integers(1, 300), st.sampled_from([0, 30]))
def test_the_rules_hold(wanting: list[Wanted], limit: int, budget: int, idle: int) -> None:
    got = merged(wanting, limit=limit, budget=budget, idle=idle)
    units = [unit for unit, _ in got]
    assert len(set(units)) == len(units) <= limit
    due = [dict(zip(wanting[o].units.tolist(), wanting[o].due_s.tolist(), strict=True))[u] for u, o in got]
    assert due == sorted(due)
    share = (budget - idle) // len(wanting)
    counted = idle + sum(min(each.ahead_bytes, share) for each in wanting)
    have_nothing = sum(not each.ahead_bytes for each in wanting)
    assert counted + 10 * len(got) < max(budget, counted + 1) + 10 * (1 + have_nothing)
    for number, each in enumerate(wanting):
        mine = [unit for unit, owner in got if owner == number]
        assert each.ahead_bytes + 10 * len(mine) <= max(share, each.ahead_bytes or 10)
        # In its own order, and nothing passed over that another one does not get.
        place = each.units.tolist().index(mine[-1]) if mine else -1
        assert set(each.units[: place + 1].tolist()) <= set(units)
    if have_nothing:
        assert got
