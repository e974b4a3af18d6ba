"""Schedule under orders, answers and learners as bad as they come: nothing counts for ever, and nobody starves."""

from __future__ import annotations

import numpy as np
import pytest

from hfs.policies.schedule.schedule import Schedule

UNLIMITED = 1 << 62


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
