"""What is fetched in which order and within which budget, what is over when, and what is needed again when: what
test_schedule_model.py, which has all interleavings of a few units, does not tell by itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hfs.policies.schedule.schedule import Schedule
from hfs.policies.schedule.uses import Uses
from tests.support.examples import examples

MUCH = 1 << 60
UNITS = 12


def order(*units: int) -> np.ndarray:
    return np.array(units, np.int32)


def begun(
    *orders: np.ndarray, units: int = UNITS, size: int = 10, guard: int = 0, at: np.ndarray | None = None
) -> Schedule:
    """A schedule whose learners 0, 1, ... have just begun these orders."""
    schedule = Schedule(units, size, guard_samples=guard)
    for learner, each in enumerate(orders):
        schedule.follow(learner, 0, each, at, len(each), 0.0)
    return schedule


def bring(schedule: Schedule, limit: int = 1000, budget: int = MUCH, now_s: float = 0.0, size: int = 10) -> list[int]:
    taken = schedule.fetch_order.take(limit, budget, now_s)
    for unit in taken:
        schedule.arrived(unit, size)
    return taken


# --- Fetching


def test_learners_are_merged_by_time_of_use() -> None:
    schedule = begun(order(0, 1, 2, 3), order(8, 9, 10, 11))
    for second in range(5):  # one is four times as fast as the other
        schedule.advance(0, second, float(second))
    schedule = Schedule(40, 1, guard_samples=0)
    schedule.follow(0, 0, np.arange(20, dtype=np.int32), None, 2000, 0.0)
    schedule.follow(1, 0, np.arange(20, 40, dtype=np.int32), None, 2000, 0.0)
    at = np.arange(20, dtype=np.int64) * 100
    schedule.follow(0, 1, np.arange(20, dtype=np.int32), at, 2000, 0.0)
    schedule.follow(1, 1, np.arange(20, 40, dtype=np.int32), at, 2000, 0.0)
    for second in (1, 2, 3):
        schedule.advance(0, 100 * second, float(second))
        schedule.advance(1, 50 * second, float(second))
    rates = [schedule.statistics(learner).rate for learner in (0, 1)]
    assert rates == pytest.approx([100, 50])
    # Due in (300 - 300) / 100 s, 1 s, 2 s ... and in (100 - 150) / 50 = -1 s, 1 s, 3 s ...
    assert schedule.fetch_order.take(7, MUCH, 3.0) == [21, 3, 4, 22, 5, 6, 23]


def test_a_slow_learner_counts_as_a_quarter_of_the_fastest() -> None:
    schedule = Schedule(2000, 1, guard_samples=0)
    for learner in (0, 1):
        first = 1000 * learner
        schedule.follow(learner, 0, np.arange(first, first + 1000, dtype=np.int32), None, 1000, 0.0)
    for second in (1, 2, 3):
        schedule.advance(0, 100 * second, float(second))
        schedule.advance(1, second, float(second))
    taken = schedule.fetch_order.take(100, MUCH, 3.0)
    assert sum(unit >= 1000 for unit in taken) == pytest.approx(20, abs=2)


def test_the_budget_is_what_is_taken_and_not_used() -> None:
    schedule = begun(np.arange(12, dtype=np.int32))
    assert bring(schedule, budget=35) == [0, 1, 2]
    assert bring(schedule, budget=35) == []
    schedule.advance(0, 2, 0.1)
    assert bring(schedule, budget=35) == [3, 4]
    assert schedule.units.ahead_bytes == 30


def test_a_unit_larger_than_the_budget_comes_alone() -> None:
    schedule = begun(np.arange(12, dtype=np.int32))
    assert bring(schedule, budget=3) == [0]
    assert bring(schedule, budget=3) == []
    schedule.advance(0, 1, 0.1)
    assert bring(schedule, budget=3) == [1]


def test_the_budget_is_shared_and_what_one_does_not_want_the_other_gets() -> None:
    schedule = begun(np.arange(50, dtype=np.int32), np.arange(50, 100, dtype=np.int32), units=100)
    schedule.advance(0, 1, 0.1)  # its uses are sooner by a sample
    taken = bring(schedule, budget=100)
    assert sorted(taken) == [1, 2, 3, 4, 5, 50, 51, 52, 53, 54]
    schedule = begun(order(0, 1), np.arange(50, 100, dtype=np.int32), units=100)
    assert len(bring(schedule, budget=100)) <= 10
    bring(schedule, budget=100)
    assert schedule.units.ahead_bytes == 100


def test_two_buffers_as_budget_are_double_buffering() -> None:
    """Groups of B contiguous samples, one unit each: while one is used up the next is read, and never a third."""
    group, groups = 16, 10
    shuffled = np.random.default_rng(0).permutation(groups).astype(np.int32)
    # Sample by sample, or group by group at its first sample: the same.
    for units, at in [(np.repeat(shuffled, group), None), (shuffled, np.arange(groups, dtype=np.int64) * group)]:
        schedule = Schedule(groups, group * 100, guard_samples=0)
        schedule.follow(0, 0, units, at, group * groups, 0.0)
        reads = []
        for sample in range(group * groups):
            schedule.advance(0, sample, sample * 0.01)
            for unit in bring(schedule, budget=2 * group * 100, size=group * 100, now_s=sample * 0.01):
                reads.append((sample // group, unit))
            assert schedule.units.ahead_bytes <= 2 * group * 100
        assert reads == [(max(0, number - 1), unit) for number, unit in enumerate(shuffled.tolist())]


def test_the_next_epoch_is_fetched_when_this_one_is_and_its_plan_is_kept() -> None:
    schedule = begun(order(0, 1, 2))
    schedule.follow_next(0, 1, order(5, 1, 4), None, 3)
    assert bring(schedule) == [0, 1, 2, 5, 4]
    schedule.advance(0, 3, 0.2)
    assert schedule.units.ahead_bytes == 20
    schedule.over(0)
    assert schedule.units.ahead_bytes == 20
    schedule.follow(0, 1, order(5, 1, 4), None, 3, 0.3)
    assert schedule.units.ahead_bytes == 20
    schedule.advance(0, 1, 0.4)
    assert schedule.units.ahead_bytes == 10
    schedule.follow(0, 2, order(4, 3), None, 2, 0.5)  # another one than announced
    assert schedule.units.ahead_bytes == 0


def test_an_epoch_that_ends_early_leaves_nothing() -> None:
    schedule = begun(np.arange(12, dtype=np.int32))
    schedule.fetch_order.take(4, MUCH, 0.0)
    schedule.over(0)
    assert (schedule.units.ahead_bytes, schedule.fetch_order.take(10, MUCH, 0.0)) == (0, [])
    schedule.arrived(0, 10)
    assert schedule.units.ahead_bytes == 0
    assert np.isinf(schedule.expected.next_use_s(None, 0.0)).all()
    schedule.leave(0)
    assert schedule.statistics(0) is None
    for call in (schedule.over, schedule.leave):
        call(0)
    schedule.advance(0, 5, 0.0)
    schedule.seen(0, 0.0)
    assert schedule.near(0, 10) == []


def test_a_learner_that_has_stopped_does_not_hold_the_budget() -> None:
    schedule = begun(np.arange(50, dtype=np.int32), np.arange(50, 100, dtype=np.int32), units=100)
    bring(schedule, budget=100)
    for second in range(1, 7):
        schedule.advance(1, second, float(second))
        taken = bring(schedule, budget=100, now_s=float(second))
    # After 5 s without a step the other one's half is free for this one, not for the one that does not move.
    assert len(taken) == 6
    assert all(unit >= 50 for unit in taken)
    assert schedule.statistics(0, 6.0).stopped
    assert not schedule.statistics(1, 6.0).stopped
    known = schedule.expected.next_use_s(order(49, 99), 6.0)
    assert math.isfinite(known[0])
    assert known[0] > known[1]
    schedule.advance(0, 1, 7.0)
    assert not schedule.statistics(0, 7.0).stopped


# --- Over


def test_what_was_given_out_is_due_now_until_it_is_seen_or_the_guard_has_passed() -> None:
    schedule = begun(np.arange(12, dtype=np.int32), guard=4)
    bring(schedule)
    schedule.advance(0, 3, 1.0)
    assert (schedule.expected.next_use_s(order(0, 2), 1.0) == 1.0).all()
    assert schedule.units.ahead_bytes == 120
    schedule.seen(2, 1.0)
    assert schedule.units.ahead_bytes == 110
    assert np.isinf(schedule.expected.next_use_s(order(2), 1.0)).all()
    schedule.advance(0, 6, 1.0)
    assert np.isinf(schedule.expected.next_use_s(order(0, 1, 2), 1.0)).all()
    assert (schedule.expected.next_use_s(order(3), 1.0) == 1.0).all()
    assert schedule.units.ahead_bytes == 90


def test_what_was_given_out_and_is_never_seen_is_due_first_and_costs_no_budget() -> None:
    """Large samples: a loader draws some ahead, and the first of them is waited for."""
    schedule = Schedule(12, 10, guard_samples=4, uses_are_seen=False)
    schedule.follow(0, 0, np.arange(12, dtype=np.int32), np.repeat(np.arange(4), 3), 4, 0.0)
    assert schedule.fetch_order.take(2, MUCH, 0.0) == [0, 1]
    schedule.advance(0, 2, 0.1)
    assert schedule.units.ahead_bytes == 0
    assert schedule.fetch_order.take(1, 10, 0.1) == [2]
    assert schedule.fetch_order.take(1, 10, 0.1) == []
    schedule.advance(0, 3, 0.2)
    assert schedule.units.ahead_bytes == 0
    assert schedule.fetch_order.take(1, 10, 0.2) == [3]


def test_what_is_seen_long_before_it_is_due_is_read_by_somebody_else() -> None:
    schedule = begun(np.arange(20_000, dtype=np.int32), units=20_000, guard=4096)
    schedule.seen(15_000, 0.0)
    schedule.seen(500, 0.0)
    assert np.isinf(schedule.expected.next_use_s(order(15_000, 500), 0.0)).tolist() == [False, True]


def test_an_epoch_that_is_resumed_does_not_fetch_what_was_used() -> None:
    schedule = begun(np.arange(20_000, dtype=np.int32), units=20_000, guard=4096)
    schedule.advance(0, 10_000, 0.1)
    assert schedule.fetch_order.take(2, MUCH, 0.1) == [10_000, 10_001]


def test_near_gives_what_is_here_in_order_once() -> None:
    schedule = begun(order(0, 1, 2, 0, 3, 4, 0))
    bring(schedule, limit=2)
    assert schedule.near(0, 4) == [0, 1]
    bring(schedule)
    assert schedule.near(0, 4) == [2]
    schedule.advance(0, 3, 0.1)
    assert schedule.near(0, 4) == [3, 4, 0]
    assert schedule.near(0, 4) == []


def test_what_a_reader_has_used_ahead_of_the_sampler_is_not_missed() -> None:
    """Or an open that is heard of after the next order would keep the share below 1 for the whole epoch."""
    schedule = begun(order(0, 1, 2, 3, 0))
    schedule.seen(0, 0.0)
    schedule.seen(3, 0.0)
    bring(schedule)
    assert schedule.statistics(0).here_share == 1
    schedule.evicted(np.array([0, 3], np.int32))
    assert schedule.statistics(0).here_share == pytest.approx(2 / 3)  # the second use of 0 is left


def test_statistics() -> None:
    schedule = begun(np.arange(12, dtype=np.int32))
    bring(schedule, limit=6)
    for second in range(4):
        schedule.advance(0, second, float(second))
    standing = schedule.statistics(0, 3.0)
    assert (standing.position, standing.samples, standing.epoch, standing.ahead_bytes) == (3, 12, 0, 30)
    assert standing.rate == pytest.approx(1.0)
    assert standing.eta_s == pytest.approx(9.0)
    assert standing.here_share == pytest.approx(3 / 9)
    assert type(standing.here_share) is float  # it goes into an answer to `hfs status`, which takes no numbers of numpy


@pytest.mark.parametrize(
    ("units", "at", "samples"),
    [
        (order(0, 12), None, 2),
        (order(-1, 3), None, 2),
        (order(0, 1, 2), None, 2),
        (order(0, 1), np.array([1]), 2),
        (order(0, 1), np.array([1, 0]), 2),
        (order(0, 1), np.array([0, 2]), 2),
        (order(0, 1), np.array([-1, 1]), 2),
    ],
)
def test_orders_that_mean_nothing_are_refused(units: np.ndarray, at: np.ndarray | None, samples: int) -> None:
    schedule = begun(order(0, 1))
    with pytest.raises(ValueError):
        schedule.follow(0, 1, units, at, samples, 1.0)
    with pytest.raises(ValueError):
        schedule.follow_next(0, 1, units, at, samples)
    assert schedule.fetch_order.take(5, MUCH, 1.0) == [0, 1]


def test_an_empty_order_and_going_back_are_nothing() -> None:
    schedule = begun(order())
    assert schedule.fetch_order.take(5, MUCH, 0.0) == []
    schedule = begun(order(0, 1, 2))
    schedule.advance(0, 2, 0.0)
    schedule.advance(0, 1, 0.0)
    assert schedule.fetch_order.take(5, MUCH, 0.0) == [2]


def test_a_search_that_is_too_long_is_continued() -> None:
    units = 600_000
    schedule = begun(np.arange(units, dtype=np.int32), units=units)
    for unit in range(units - 1):
        schedule.here(unit, 10)
    calls = 0
    while not (taken := schedule.fetch_order.take(5, MUCH, 0.0)):
        assert schedule.fetch_order.searching
        calls += 1
    assert taken == [units - 1]
    assert calls == units // (1 << 16)


def test_of_many_learners_some_are_looked_at_in_a_call_and_all_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learners, each = 100, 7
    schedule = Schedule(learners * each, 10)
    for learner in range(learners):
        schedule.follow(learner, 0, np.arange(learner * each, (learner + 1) * each, dtype=np.int32), None, each, 0.0)
    looked_at: list[int] = []
    absent = Uses.absent

    def counted(uses: Uses, limit: int, look_at: int, state: NDArray[np.uint8]) -> tuple[NDArray[np.int64], int]:
        looked_at.append(int(uses.order[0]) // each)
        return absent(uses, limit, look_at, state)

    monkeypatch.setattr(Uses, "absent", counted)
    taken: list[int] = []
    while (units := schedule.fetch_order.take(16, MUCH, 0.0)) or schedule.fetch_order.searching:
        taken += units
        assert len(set(looked_at)) <= 32
        looked_at.clear()
        if len(taken) == 8 * 16:
            assert len({unit // each for unit in taken}) == learners, "nobody waits for the end of others"
    assert sorted(taken) == list(range(learners * each))


def test_many_learners_share_what_may_be_ahead() -> None:
    learners, each = 100, 50
    schedule = Schedule(learners * each, 10)
    for learner in range(learners):
        schedule.follow(learner, 0, np.arange(learner * each, (learner + 1) * each, dtype=np.int32), None, each, 0.0)
    budget_bytes = learners * 10 * 4
    taken: list[int] = []
    while (units := schedule.fetch_order.take(16, budget_bytes, 0.0)) or schedule.fetch_order.searching:
        taken += units
    shares = np.bincount(np.array(taken) // each, minlength=learners)
    assert (shares.min(), shares.max()) == (4, 4)


# --- A whole epoch


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(10, 200), st.integers(1, 9))
def test_an_epoch_is_given_completely_each_unit_once_before_its_use(
    seed: int, learners: int, budget: int, limit: int
) -> None:
    """Random steps of random learners; a learner goes on only when its sample is here, as one that waits does."""
    random = np.random.default_rng(seed)
    orders = [random.integers(0, 60, 40).astype(np.int32) for _ in range(learners)]
    schedule = begun(*orders, units=60)
    position = [0] * learners
    here: set[int] = set()
    given = []
    for step in range(10_000):
        now_s = step * 0.01
        taken = schedule.fetch_order.take(limit, budget, now_s)
        assert not here & set(taken)
        given += taken
        for unit in random.permutation(taken).tolist():
            schedule.arrived(unit, 10)
            here.add(unit)
        # A unit for each at any budget; and who wants nothing for now keeps what it has, beside the others' shares.
        assert schedule.units.ahead_bytes < 2 * budget + 10 * learners
        moves = [k for k in range(learners) if position[k] < 40 and int(orders[k][position[k]]) in here]
        if not moves:
            break
        k = int(random.choice(moves))
        position[k] += 1
        schedule.advance(k, position[k], now_s)
    assert position == [40] * learners
    assert len(given) == len(set(given)) == len(here) == len(set(np.concatenate(orders).tolist()))
