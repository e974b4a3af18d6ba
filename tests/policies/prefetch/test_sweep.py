"""What is fetched in the order of the file, and what in the order of its use."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hfs.policies.schedule.fetch_order import Sweep
from hfs.policies.schedule.schedule import Schedule
from tests.support.examples import examples

MUCH = 1 << 60
UNITS = 64


def ordered(random: Random, samples_a_unit: int, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """A permutation of samples that lie one after the other in UNITS units, and its units in order of use."""
    permutation = np.array(random.sample(range(UNITS * samples_a_unit), samples))
    return permutation, (permutation // samples_a_unit).astype(np.int32)


def swept(samples_a_unit: float, window: int = UNITS) -> Schedule:
    return Schedule(UNITS, 10, guard_samples=16, uses_are_seen=False, sweep=Sweep(samples_a_unit), sweep_units=window)


def all_taken(schedule: Schedule, budget: int = MUCH) -> list[int]:
    taken: list[int] = []
    while units := schedule.fetch_order.take(1, budget, 0.0):
        schedule.arrived(units[0], 10)
        taken += units
    return taken


def test_small_samples_at_random_are_fetched_in_the_order_of_the_file() -> None:
    _, units = ordered(Random(1), 2000, UNITS * 2000)
    schedule = swept(2000)
    schedule.follow(0, 0, units, None, len(units), 0.0)
    assert all_taken(schedule) == list(range(UNITS))


def test_large_samples_are_fetched_in_the_order_of_their_use() -> None:
    _, units = ordered(Random(1), 2, UNITS * 2)
    schedule = swept(2)
    schedule.follow(0, 0, units, None, len(units), 0.0)
    assert all_taken(schedule) == list(dict.fromkeys(units.tolist()))


def test_groups_of_neighbours_are_fetched_one_after_the_other_each_from_its_beginning() -> None:
    """Group shuffle: what is shuffled inside a group is read as a piece."""
    random = Random(2)
    groups = random.sample(range(UNITS // 4), UNITS // 4)
    order = np.concatenate([g * 4 * 100 + np.array(random.sample(range(400), 400)) for g in groups])
    schedule = swept(100)
    schedule.follow(0, 0, (order // 100).astype(np.int32), None, len(order), 0.0)
    assert all_taken(schedule) == [4 * g + i for g in groups for i in range(4)]


def test_the_window_is_as_large_as_is_said_and_goes_round() -> None:
    units = np.array([9, 30, 3, 20, 8, 40, 2, 50], np.int32)
    schedule = swept(10_000, window=4)
    schedule.follow(0, 0, units, None, len(units), 0.0)
    # The second window begins where the first one ended.
    assert all_taken(schedule) == [3, 9, 20, 30, 40, 50, 2, 8]


def test_it_comes_as_long_as_it_is_planned() -> None:
    units = np.array([9, 30, 3, 20], np.int32)
    schedule = swept(10_000)
    schedule.follow(0, 0, units, None, len(units), 0.0)
    assert not schedule.fetch_order.comes_in_sweep(30)
    assert schedule.fetch_order.take(1, MUCH, 0.0) == [3]
    assert [schedule.fetch_order.comes_in_sweep(unit) for unit in (3, 9, 30, 31)] == [True, True, True, False]
    schedule.arrived(3, 10)
    schedule.here(9, 10)
    assert [schedule.fetch_order.comes_in_sweep(unit) for unit in (3, 9, 30)] == [False, False, True]
    assert schedule.fetch_order.take(1, MUCH, 0.0) == [20]
    schedule.failed(20)
    assert not schedule.fetch_order.comes_in_sweep(20)
    schedule.over(0)
    assert not schedule.fetch_order.comes_in_sweep(30)
    assert schedule.fetch_order.take(1, MUCH, 0.0) == []


def test_a_long_sweep_is_one_that_nobody_waits_for_a_part_of() -> None:
    schedule = swept(10_000)
    schedule.follow(0, 0, np.arange(20, dtype=np.int32), None, 20, 0.0)
    assert not schedule.fetch_order.is_sweeping
    schedule.fetch_order.take(1, MUCH, 0.0)
    assert schedule.fetch_order.is_sweeping
    schedule.follow(0, 1, np.arange(20, 30, dtype=np.int32), None, 10, 0.0)
    schedule.fetch_order.take(1, MUCH, 0.0)
    assert not schedule.fetch_order.is_sweeping


def test_one_unit_at_a_time_is_nothing_to_wait_for() -> None:
    schedule = swept(1)
    schedule.follow(0, 0, np.array([9, 30, 3], np.int32), None, 3, 0.0)
    assert schedule.fetch_order.take(1, MUCH, 0.0) == [9]
    assert not schedule.fetch_order.comes_in_sweep(9)
    assert not schedule.fetch_order.comes_in_sweep(30)


def test_the_budget_holds() -> None:
    _, units = ordered(Random(3), 1000, 4000)
    schedule = swept(1000)
    schedule.follow(0, 0, units, None, len(units), 0.0)
    assert len(all_taken(schedule, budget=100)) == 10
    assert schedule.units.ahead_bytes == 100


def test_a_learner_that_comes_later_is_planned_for() -> None:
    schedule = swept(1000)
    schedule.follow(0, 0, np.arange(20, 40, dtype=np.int32), None, 20, 0.0)
    assert schedule.fetch_order.take(2, MUCH, 0.0) == [20, 21]
    schedule.follow(1, 0, np.arange(22, 30, dtype=np.int32)[::-1].copy(), None, 8, 0.0)
    assert schedule.fetch_order.take(3, MUCH, 0.0) == [22, 23, 24]


@pytest.mark.parametrize("samples_a_unit", [1, 3, 10, 500])
@settings(max_examples=examples(25))
@given(seed=st.integers(0, 10_000), window=st.sampled_from([1, 2, 7, UNITS]), learners=st.integers(1, 3))
def test_everything_comes_once_whatever_happens(samples_a_unit: int, seed: int, window: int, learners: int) -> None:
    """Learners advance, units fail and are evicted: all that is wanted is given, once, and soonest where it matters."""
    random = Random(seed)
    schedule = swept(samples_a_unit, window)
    orders = [ordered(random, samples_a_unit, min(300, UNITS * samples_a_unit))[1] for _ in range(learners)]
    for learner, units in enumerate(orders):
        schedule.follow(learner, 0, units, None, len(units), 0.0)
    position = [0] * learners
    here: set[int] = set()
    asleep = 0
    while asleep < 2:
        taken = schedule.fetch_order.take(random.randint(1, 3), MUCH, 0.0)
        asleep = 0 if taken else asleep + 1
        for unit in taken:
            assert unit not in here
            if random.random() < 0.1:
                schedule.refused(unit)
            else:
                schedule.arrived(unit, 10)
                here.add(unit)
        if here and random.random() < 0.1:
            gone = random.choice(sorted(here))
            here.remove(gone)
            asleep = 0
            schedule.evicted(np.array([gone]))
        if random.random() < 0.3:
            learner = random.randrange(learners)
            position[learner] += random.randint(0, 9)
            schedule.advance(learner, position[learner], 0.0)
    for learner, units in enumerate(orders):
        assert set(units[position[learner] :].tolist()) <= here
