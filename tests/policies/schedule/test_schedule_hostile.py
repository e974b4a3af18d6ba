"""Schedule under orders, answers and learners as bad as they come: nothing lost, nothing given twice, nobody starves.

The model beside it knows only what was told and what was given: states of units, and what is left of each order.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hfs.policies.schedule import uses
from hfs.policies.schedule.schedule import Schedule
from tests.support.examples import examples

UNLIMITED = 1 << 62


def any_order(random: Random, units: int) -> list[int]:
    """Units of uses: none, each once, all of one unit first, strided, with repeats, one alone."""
    length = random.randint(1, 60)
    match random.randrange(6):
        case 0:
            return []
        case 1:
            return random.sample(range(units), units)
        case 2:
            return sorted(random.randrange(units) for _ in range(length))
        case 3:
            return [(7 * use) % units for use in range(length)]
        case 4:
            return [random.randrange(units)] * length
        case _:
            return [random.randrange(units) for _ in range(length)]


def placed(random: Random, order: list[int]) -> tuple[NDArray[np.int32], NDArray[np.int64] | None, int]:
    """The arguments `units`, `at`, `samples` of an order whose uses lie anywhere in the epoch."""
    units = np.array(order, np.int32)
    if not order or random.random() < 0.5:
        return units, None, len(order) + random.choice([0, 0, 5])
    at = np.cumsum([random.choice([0, 0, 1, 3]) for _ in order], dtype=np.int64)
    return units, at, int(at[-1]) + random.choice([1, 3])


@settings(max_examples=examples(100), deadline=None)
@given(
    random=st.randoms(use_true_random=True),
    guard=st.sampled_from([0, 3, 4096]),
    estimated=st.booleans(),
    window=st.sampled_from([3, 4096]),
)
def test_whatever_is_told_nothing_is_given_twice_and_nothing_counts_for_ever(
    random: Random, guard: int, estimated: bool, window: int
) -> None:
    """Also with windows so small that every order spans many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uses, "_WINDOW", window)
        patch.setattr(uses, "_MAX_WINDOW", 2 * window)
        go_wild(random, guard, estimated=estimated)


def go_wild(random: Random, guard: int, *, estimated: bool) -> None:
    units = random.randint(1, 20)
    sizes = np.array([random.choice([0, 1, 5, 100, 10_000]) for _ in range(units)], np.int64)
    schedule = Schedule(units, 10 if estimated else sizes, guard_samples=guard)
    learners = range(random.randint(1, 4))
    orders: dict[int, set[int]] = {}
    taken: set[int] = set()
    here: set[int] = set()
    now_s = 0.0
    for _ in range(60):
        now_s += random.choice([0.0, 0.1, 1.0, 6.0, 70.0])
        learner = random.choice(learners)
        match random.randrange(11):
            case 0:
                order = any_order(random, units)
                schedule.follow(learner, random.randint(0, 5), *placed(random, order), now_s)
                orders[learner] = set(order)
            case 1:
                order = any_order(random, units)
                following = placed(random, order)
                schedule.follow_next(learner, 3, *following)
                orders[learner] = orders.get(learner, set()) | set(order)
                if random.random() < 0.5:
                    schedule.over(learner)
                    schedule.follow(learner, 3, *following, now_s)
            case 2 | 3:
                schedule.advance(learner, random.choice([0, 1, 5, 10, 70, 10**6]), now_s)
            case 4:
                random.choice([schedule.over, schedule.leave])(learner)
            case 5 | 6 | 7:
                given = schedule.fetch_order.take(
                    random.choice([1, 3, 16]), random.choice([0, 1, 1000, UNLIMITED]), now_s
                )
                assert len(given) == len(set(given))
                assert not set(given) & (taken | here)
                assert set(given) <= set().union(*orders.values())
                taken |= set(given)
            case 8 if taken:
                unit = random.choice(sorted(taken))
                taken.discard(unit)
                match random.randrange(4):
                    case 0:
                        schedule.refused(unit)
                    case 1:
                        schedule.failed(unit)
                    case 2:
                        schedule.here(unit, 7)
                        here.add(unit)
                    case _:
                        schedule.arrived(unit, random.choice([0, 3, 50, 10_000]))
                        here.add(unit)
            case 9:
                gone = [random.randrange(units) for _ in range(random.randint(0, 4))]  # some twice, some never here
                schedule.evicted(np.array(gone, np.int32))
                here -= set(gone)
            case _:
                schedule.seen(random.randrange(units), now_s)
                assert set(schedule.near(learner, 5)) <= here
                assert not np.isnan(schedule.expected.next_use_s(None, now_s)).any()
        assert schedule.units.ahead_bytes >= 0
    # Whatever came before: a fresh order is given completely, and counts for nothing once it is over.
    order = random.sample(range(units), units)
    schedule.follow(0, 9, np.array(order, np.int32), None, units, now_s)
    given = []
    while more := schedule.fetch_order.take(16, UNLIMITED, now_s):
        given += more
    assert set(order) - here - taken <= set(given)
    for unit in {*given, *taken}:
        schedule.arrived(unit, 11)
    for learner in learners:
        schedule.over(learner)
        schedule.leave(learner)
    assert schedule.units.ahead_bytes == 0
    assert schedule.fetch_order.take(16, UNLIMITED, now_s) == []
    assert np.all(np.isinf(schedule.expected.next_use_s(None, now_s)))


def test_units_that_are_evicted_twice_in_one_breath_count_once() -> None:
    schedule = Schedule(4, 100)
    schedule.follow(0, 0, np.arange(4, dtype=np.int32), None, 4, 0.0)
    for unit in schedule.fetch_order.take(4, UNLIMITED, 0.0):
        schedule.arrived(unit, 100)
    schedule.evicted(np.array([2, 2, 2], np.int32))
    assert schedule.units.ahead_bytes == 300


def test_announcing_other_orders_again_and_again_uses_no_budget_up() -> None:
    schedule = Schedule(1000, 100, guard_samples=0)
    schedule.follow(0, 0, np.arange(10, dtype=np.int32), None, 10, 0.0)
    for unit in schedule.fetch_order.take(100, 2000, 0.0):
        schedule.arrived(unit, 100)
    schedule.advance(0, 10, 1.0)
    for start in range(10, 910, 100):
        schedule.follow_next(0, 1, np.arange(start, start + 100, dtype=np.int32), None, 100)
        given = schedule.fetch_order.take(100, 2000, 1.0)
        assert given == list(range(start, start + 20)), "what was fetched for an order that is no more does not count"
        for unit in given:
            schedule.arrived(unit, 100)
    schedule.follow_next(0, 1, np.arange(810, 910, dtype=np.int32), None, 100)
    assert schedule.fetch_order.take(100, 2000, 1.0) == [], "the same order again keeps what was planned for it"


class Job:
    """Learners that consume what is here at their own rates, one node whose source brings 100 units a second."""

    def __init__(self, rates: list[float], budget_bytes: int, unit_bytes: int = 100) -> None:
        self.rates = rates
        self.budget_bytes = budget_bytes
        self.unit_bytes = unit_bytes
        self.schedule = Schedule(5000 * len(rates), unit_bytes, guard_samples=0)
        self.used = [0.0] * len(rates)
        self.now_s = 0.0
        self.most_ahead_bytes = 0
        self._here: set[int] = set()
        self._joined: set[int] = set()

    def join(self, learner: int) -> None:
        self._joined.add(learner)
        order = np.arange(5000 * learner, 5000 * (learner + 1), dtype=np.int32)
        self.schedule.follow(learner, 0, order, None, 5000, self.now_s)

    def run(self, seconds: float) -> None:
        """In steps of 50 ms."""
        for _ in range(round(seconds * 20)):
            for unit in self.schedule.fetch_order.take(5, self.budget_bytes, self.now_s):
                self.schedule.arrived(unit, self.unit_bytes)
                self._here.add(unit)
            self.most_ahead_bytes = max(self.most_ahead_bytes, self.schedule.units.ahead_bytes)
            for learner in self._joined:
                wanted = self.used[learner] + self.rates[learner] / 20
                at = int(self.used[learner])
                while at < int(wanted) and 5000 * learner + at in self._here:
                    at += 1
                self.used[learner] = wanted if at == int(wanted) else float(at)
                self.schedule.advance(learner, at, self.now_s)
            self.now_s += 0.05


@pytest.mark.parametrize("slow", [0.05, 0.3])
def test_who_took_the_whole_budget_and_crawls_does_not_starve_who_comes_later(slow: float) -> None:
    job = Job([slow, 50.0], budget_bytes=2000)
    job.join(0)
    job.run(2)
    assert job.schedule.units.ahead_bytes == 2000
    job.join(1)
    job.run(20)
    assert job.used[1] >= 0.95 * 50 * 20
    assert job.most_ahead_bytes <= 4000, "what one had before the other came is all that is more"


@pytest.mark.slow
def test_one_learner_a_thousand_times_slower_delays_nobody() -> None:
    job = Job([0.012, *[12.0] * 7], budget_bytes=1600)
    for learner in range(8):
        job.join(learner)
    job.run(20)
    assert min(job.used[1:]) >= 0.95 * 12 * 20
    assert job.most_ahead_bytes <= 1600


def test_a_budget_smaller_than_a_unit_still_feeds_every_learner() -> None:
    job = Job([0.01, 20.0, 20.0], budget_bytes=30)
    for learner in range(3):
        job.join(learner)
    job.run(20)
    assert min(job.used[1:]) >= 100, "one unit at a time, fetched once the last is used"
    assert job.most_ahead_bytes <= 300, "a unit each"
