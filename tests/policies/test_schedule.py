"""What is fetched in which order, within which budget, and what is needed again when: against a slow, obvious model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.schedule import Schedule
from policies.uses import ABSENT, FAILED, HERE, TAKEN

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
    taken = schedule.take(limit, budget, now_s)
    for unit in taken:
        schedule.arrived(unit, size)
    return taken


# --- Fetching


def test_units_come_in_the_order_of_use_each_once() -> None:
    schedule = begun(order(3, 1, 3, 2, 1, 0))
    assert schedule.take(2, MUCH, 0.0) == [3, 1]
    assert schedule.take(10, MUCH, 0.0) == [2, 0]
    assert schedule.take(10, MUCH, 0.0) == []


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
    assert schedule.take(7, MUCH, 3.0) == [21, 3, 4, 22, 5, 6, 23]


def test_a_slow_learner_counts_as_a_quarter_of_the_fastest() -> None:
    schedule = Schedule(2000, 1, guard_samples=0)
    for learner in (0, 1):
        first = 1000 * learner
        schedule.follow(learner, 0, np.arange(first, first + 1000, dtype=np.int32), None, 1000, 0.0)
    for second in (1, 2, 3):
        schedule.advance(0, 100 * second, float(second))
        schedule.advance(1, second, float(second))
    taken = schedule.take(100, MUCH, 3.0)
    assert sum(unit >= 1000 for unit in taken) == pytest.approx(20, abs=2)


def test_a_unit_that_two_learners_need_is_given_once() -> None:
    schedule = begun(order(0, 1, 2), order(2, 1, 0))
    assert sorted(schedule.take(10, MUCH, 0.0)) == [0, 1, 2]


def test_the_budget_is_what_is_taken_and_not_used() -> None:
    schedule = begun(np.arange(12, dtype=np.int32))
    assert bring(schedule, budget=35) == [0, 1, 2]
    assert bring(schedule, budget=35) == []
    schedule.advance(0, 2, 0.1)
    assert bring(schedule, budget=35) == [3, 4]
    assert schedule.ahead_bytes == 30


def test_a_unit_larger_than_the_budget_comes_alone() -> None:
    schedule = begun(np.arange(12, dtype=np.int32))
    assert bring(schedule, budget=3) == [0]
    assert bring(schedule, budget=3) == []
    schedule.advance(0, 1, 0.1)
    assert bring(schedule, budget=3) == [1]


def test_real_sizes_replace_the_estimate() -> None:
    schedule = begun(np.arange(12, dtype=np.int32))
    assert schedule.take(10, 30, 0.0) == [0, 1, 2]
    schedule.arrived(0, 1)
    schedule.here(1, 4)
    assert schedule.ahead_bytes == 11
    assert schedule.take(10, 30, 0.0) == [3]


def test_the_budget_is_shared_and_what_one_does_not_want_the_other_gets() -> None:
    schedule = begun(np.arange(50, dtype=np.int32), np.arange(50, 100, dtype=np.int32), units=100)
    schedule.advance(0, 1, 0.1)  # its uses are sooner by a sample
    taken = bring(schedule, budget=100)
    assert sorted(taken) == [1, 2, 3, 4, 5, 50, 51, 52, 53, 54]
    schedule = begun(order(0, 1), np.arange(50, 100, dtype=np.int32), units=100)
    assert len(bring(schedule, budget=100)) <= 10
    bring(schedule, budget=100)
    assert schedule.ahead_bytes == 100


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
            assert schedule.ahead_bytes <= 2 * group * 100
        assert reads == [(max(0, number - 1), unit) for number, unit in enumerate(shuffled.tolist())]


def test_refused_comes_again_failed_does_not_before_the_next_epoch() -> None:
    schedule = begun(order(0, 1, 2))
    assert schedule.take(2, MUCH, 0.0) == [0, 1]
    schedule.refused(0)
    schedule.failed(1)
    assert schedule.ahead_bytes == 0
    assert bring(schedule) == [0, 2]
    assert bring(schedule) == []
    schedule.follow(0, 1, order(2, 1, 0), None, 3, 1.0)
    assert bring(schedule) == [1]


def test_what_was_evicted_comes_again_if_it_is_needed() -> None:
    schedule = begun(order(0, 1, 2, 0, 3, 4))
    bring(schedule)
    schedule.advance(0, 2, 0.1)
    schedule.evicted(order(0, 1, 2, 4))
    assert bring(schedule) == [2, 0, 4]


def test_the_next_epoch_is_fetched_when_this_one_is_and_its_plan_is_kept() -> None:
    schedule = begun(order(0, 1, 2))
    schedule.follow_next(0, 1, order(5, 1, 4), None, 3)
    assert bring(schedule) == [0, 1, 2, 5, 4]
    schedule.advance(0, 3, 0.2)
    assert schedule.ahead_bytes == 20
    schedule.over(0)
    assert schedule.ahead_bytes == 20
    schedule.follow(0, 1, order(5, 1, 4), None, 3, 0.3)
    assert schedule.ahead_bytes == 20
    schedule.advance(0, 1, 0.4)
    assert schedule.ahead_bytes == 10
    schedule.follow(0, 2, order(4, 3), None, 2, 0.5)  # another one than announced
    assert schedule.ahead_bytes == 0


def test_an_epoch_that_ends_early_leaves_nothing() -> None:
    schedule = begun(np.arange(12, dtype=np.int32))
    schedule.take(4, MUCH, 0.0)
    schedule.over(0)
    assert (schedule.ahead_bytes, schedule.take(10, MUCH, 0.0)) == (0, [])
    schedule.arrived(0, 10)
    assert schedule.ahead_bytes == 0
    assert np.isinf(schedule.next_use_s(None, 0.0)).all()
    schedule.leave(0)
    assert schedule.statistics(0) is None
    for call in (schedule.over, schedule.leave):
        call(0)
    schedule.advance(0, 5, 0.0)
    schedule.seen(0, 0.0)
    assert schedule.near(0, 10, 0.0) == []


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
    known = schedule.next_use_s(order(49, 99), 6.0)
    assert math.isfinite(known[0])
    assert known[0] > known[1]
    schedule.advance(0, 1, 7.0)
    assert not schedule.statistics(0, 7.0).stopped


def test_a_learner_that_waits_for_its_data_has_not_stopped() -> None:
    schedule = begun(np.arange(12, dtype=np.int32))
    for unit in schedule.take(5, MUCH, 0.0):
        assert not schedule.statistics(0, 60.0).stopped
        schedule.arrived(unit, 10)
    assert schedule.statistics(0, 60.0).stopped


# --- Over


def test_what_was_given_out_is_due_now_until_it_is_seen_or_the_guard_has_passed() -> None:
    schedule = begun(np.arange(12, dtype=np.int32), guard=4)
    bring(schedule)
    schedule.advance(0, 3, 1.0)
    assert (schedule.next_use_s(order(0, 2), 1.0) == 1.0).all()
    assert schedule.ahead_bytes == 120
    schedule.seen(2, 1.0)
    assert schedule.ahead_bytes == 110
    assert np.isinf(schedule.next_use_s(order(2), 1.0)).all()
    schedule.advance(0, 6, 1.0)
    assert np.isinf(schedule.next_use_s(order(0, 1, 2), 1.0)).all()
    assert (schedule.next_use_s(order(3), 1.0) == 1.0).all()
    assert schedule.ahead_bytes == 90


def test_what_is_seen_long_before_its_turn_is_read_by_somebody_else() -> None:
    schedule = begun(np.arange(20_000, dtype=np.int32), units=20_000, guard=4096)
    schedule.seen(15_000, 0.0)
    schedule.seen(500, 0.0)
    assert np.isinf(schedule.next_use_s(order(15_000, 500), 0.0)).tolist() == [False, True]


def test_an_epoch_that_is_resumed_does_not_fetch_what_was_used() -> None:
    schedule = begun(np.arange(20_000, dtype=np.int32), units=20_000, guard=4096)
    schedule.advance(0, 10_000, 0.1)
    assert schedule.take(2, MUCH, 0.1) == [10_000, 10_001]


def test_near_gives_what_is_here_in_order_once() -> None:
    schedule = begun(order(0, 1, 2, 0, 3, 4, 0))
    bring(schedule, limit=2)
    assert schedule.near(0, 4, 0.0) == [0, 1]
    bring(schedule)
    assert schedule.near(0, 4, 0.0) == [2]
    schedule.advance(0, 3, 0.1)
    assert schedule.near(0, 4, 0.1) == [3, 4, 0]
    assert schedule.near(0, 4, 0.1) == []


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
    assert schedule.take(5, MUCH, 1.0) == [0, 1]


def test_an_empty_order_and_going_back_are_nothing() -> None:
    schedule = begun(order())
    assert schedule.take(5, MUCH, 0.0) == []
    schedule = begun(order(0, 1, 2))
    schedule.advance(0, 2, 0.0)
    schedule.advance(0, 1, 0.0)
    assert schedule.take(5, MUCH, 0.0) == [2]


def test_a_search_that_is_too_long_is_continued() -> None:
    units = 600_000
    schedule = begun(np.arange(units, dtype=np.int32), units=units)
    for unit in range(units - 1):
        schedule.here(unit, 10)
    calls = 0
    while not (taken := schedule.take(5, MUCH, 0.0)):
        assert schedule.searching
        calls += 1
    assert taken == [units - 1]
    assert 1 <= calls <= 3


# --- Against the model


@dataclass
class Use:
    unit: int
    at: int
    end: int
    over: bool = False


@dataclass
class Follower:
    position: int = 0
    moved_s: float = 0.0
    uses: list[Use] = field(default_factory=list)
    samples: int = 0
    following: list[Use] = field(default_factory=list)

    def orders(self) -> list[tuple[list[Use], int]]:
        return [(self.uses, self.position), (self.following, self.position - self.samples)]


def uses_of(units: list[int], at: list[int], samples: int) -> list[Use]:
    kept = [(unit, p) for i, (unit, p) in enumerate(zip(units, at, strict=True)) if i == 0 or units[i - 1] != unit]
    starts = [p for _, p in kept]
    ends = [max(p + 1, following) for p, following in zip(starts, [*starts, samples][1:], strict=True)]
    return [Use(unit, p, end) for (unit, p), end in zip(kept, ends, strict=True)]


class Model:
    """Everything by walking over everything."""

    def __init__(self, guard: int) -> None:
        self.guard = guard
        self.state = [ABSENT] * UNITS
        self.size = [10] * UNITS
        self.owner: dict[int, int] = {}
        self.learners: dict[int, Follower] = {}

    def due_s(self, unit: int, rates: dict[int, float]) -> float:
        soonest = math.inf
        for learner, found in self.learners.items():
            for uses, position in found.orders():
                for use in uses:
                    if use.unit == unit and not use.over:
                        soonest = min(soonest, (use.at - position) / rates[learner])
                        break
        return soonest

    def stopped(self, learner: int, now_s: float) -> bool:
        found = self.learners[learner]
        if now_s - found.moved_s <= 5:
            return False
        for uses, position in found.orders():
            if uses:
                given_out = sum(use.end <= position for use in uses)
                if any(self.state[use.unit] == TAKEN for use in uses):
                    return False
                return not any(not use.over and self.state[use.unit] == ABSENT for use in uses[: given_out + 1])
        return True

    def ended(self, learner: int, unit: int) -> None:
        if self.owner.get(unit) == learner:
            del self.owner[unit]

    def ahead(self, learners: set[int]) -> int:
        return sum(self.size[unit] for unit, owner in self.owner.items() if owner in learners)


ATS = st.one_of(st.none(), st.just("sparse"))
UNIT = st.integers(0, UNITS - 1)
LEARNER = st.integers(0, 2)
ORDERS = st.tuples(st.lists(UNIT, max_size=20), st.lists(st.integers(0, 3), min_size=20, max_size=20), st.booleans())
OPS = st.lists(
    st.one_of(
        st.tuples(st.just("follow"), LEARNER, ORDERS),
        st.tuples(st.just("next"), LEARNER, ORDERS),
        st.tuples(st.just("promote"), LEARNER, st.none()),
        st.tuples(st.just("advance"), LEARNER, st.integers(0, 12)),
        st.tuples(st.just("seen"), UNIT, st.none()),
        st.tuples(st.just("over"), LEARNER, st.none()),
        st.tuples(st.just("leave"), LEARNER, st.none()),
        st.tuples(st.just("take"), st.integers(1, 8), st.sampled_from([0, 15, 40, 100, MUCH, MUCH])),
        st.tuples(st.just("settle"), st.sampled_from(["arrived", "here", "failed", "refused"]), st.integers(1, 30)),
        st.tuples(st.just("came"), UNIT, st.integers(1, 30)),
        st.tuples(st.just("evicted"), UNIT, UNIT),
        st.tuples(st.just("wait"), st.sampled_from([0.2, 1.0, 6.0]), st.none()),
    ),
    max_size=60,
)


class Pair:
    """A schedule and the model, given the same words."""

    def __init__(self, guard: int) -> None:
        self.real = Schedule(UNITS, 10, guard_samples=guard)
        self.model = Model(guard)
        self.now_s = 0.0
        self.taken: list[int] = []
        self.announced: dict[int, tuple[np.ndarray, np.ndarray | None, int]] = {}

    def arrays(self, drawn: tuple[list[int], list[int], bool]) -> tuple[np.ndarray, np.ndarray | None, int, list[Use]]:
        units, steps, dense = drawn
        at = list(range(len(units))) if dense else np.cumsum(steps[: len(units)]).tolist()
        samples = (at[-1] + 1 if at else 0) + steps[-1]
        given = None if dense else np.array(at, np.int64)
        return np.array(units, np.int32), given, samples, uses_of(units, at, samples)

    def follow(self, learner: int, drawn: tuple[list[int], list[int], bool]) -> None:
        units, at, samples, uses = self.arrays(drawn)
        self.real.follow(learner, 0, units, at, samples, self.now_s)
        self._followed(learner, uses, samples)
        if (before := self.announced.pop(learner, None)) is None or not same(before, (units, at, samples)):
            self.model.owner = {unit: owner for unit, owner in self.model.owner.items() if owner != learner}
        else:
            self._adopt()

    def promote(self, learner: int, _: None) -> None:
        if learner in self.announced:
            units, at, samples = self.announced.pop(learner)
            self.real.follow(learner, 0, units, at, samples, self.now_s)
            self._followed(learner, self.model.learners[learner].following, samples)
            self._adopt()

    def _followed(self, learner: int, uses: list[Use], samples: int) -> None:
        self.model.learners[learner] = Follower(0, self.now_s, uses, samples)
        for use in uses:
            if self.model.state[use.unit] == FAILED:
                self.model.state[use.unit] = ABSENT

    def _adopt(self) -> None:
        """Which charges a plan keeps is for the schedule to say; only for units that are ahead, and no new ones."""
        kept = {unit: owner for unit, owner in self.model.owner.items() if self._owner(unit) is not None}
        assert all(self._owner(unit) == owner for unit, owner in kept.items())
        self.model.owner = kept

    def _owner(self, unit: int) -> int | None:
        number = self.real._owner[unit]
        return next((key for key, found in self.real._learners.items() if found.number == number), None)

    def next(self, learner: int, drawn: tuple[list[int], list[int], bool]) -> None:
        units, at, samples, uses = self.arrays(drawn)
        self.real.follow_next(learner, 1, units, at, samples)
        self.announced[learner] = units, at, samples
        self.model.learners.setdefault(learner, Follower()).following = uses

    def advance(self, learner: int, by: int) -> None:
        found = self.model.learners.get(learner)
        position = by if found is None else found.position + by
        self.real.advance(learner, position, self.now_s)
        if found is None or not by or learner not in self.real._learners or self.real._learners[learner].uses is None:
            return
        resumed = found.position == 0 and position > self.model.guard
        found.position, found.moved_s = position, self.now_s
        for use in found.uses:
            if not use.over and use.end <= position - (0 if resumed else self.model.guard):
                use.over = True
                self.model.ended(learner, use.unit)

    def seen(self, unit: int, _: None) -> None:
        self.real.seen(unit, self.now_s)
        due = []
        for learner, found in self.model.learners.items():
            rate = self.real._learners[learner].pace.rate or 100.0
            for use in found.uses:
                if use.unit == unit and not use.over:
                    due.append(((use.at - found.position) / rate, learner, use))
                    break
        if due:
            # Of equals, the one that has been there longest.
            least = min(at for at, _, _ in due)
            first = next(learner for learner in self.real._learners if (least, learner) in {d[:2] for d in due})
            use = next(use for at, learner, use in due if learner == first)
            use.over = True
            self.model.learners[first].moved_s = self.now_s
            self.model.ended(first, unit)

    def over(self, learner: int, _: None) -> None:
        self.real.over(learner)
        if (found := self.model.learners.get(learner)) is not None:
            found.uses, found.samples, found.position = [], 0, 0
            self._adopt()

    def leave(self, learner: int, _: None) -> None:
        self.real.leave(learner)
        self.announced.pop(learner, None)
        self.model.learners.pop(learner, None)
        self.model.owner = {unit: owner for unit, owner in self.model.owner.items() if owner != learner}

    def take(self, limit: int, budget: int) -> None:
        model = self.model
        rates = {key: self.real._rates()[found.number] for key, found in self.real._learners.items()}
        going = {learner for learner in model.learners if not model.stopped(learner, self.now_s)}
        due = [model.due_s(unit, rates) for unit in range(UNITS)]
        absent = sorted(due[unit] for unit in range(UNITS) if model.state[unit] == ABSENT and due[unit] < math.inf)
        before = model.ahead(going)
        taken = self.real.take(limit, budget, self.now_s)
        assert len(set(taken)) == len(taken) <= limit
        for unit in taken:
            assert model.state[unit] == ABSENT
            assert due[unit] < math.inf
            model.state[unit] = TAKEN
            owner = self._owner(unit)
            assert owner is not None
            model.owner[unit] = owner
        self.taken += taken
        if going == set(model.learners):
            if budget == MUCH:
                assert [due[unit] for unit in taken] == pytest.approx(absent[:limit])
            elif len(going) == 1:
                assert [due[unit] for unit in taken] == pytest.approx(absent[: len(taken)])
            if budget > 0 and before == 0 and absent:
                assert taken
        after = model.ahead(going)
        largest = max((model.size[unit] for unit in taken), default=0)
        assert after <= max(before, budget - 1 + largest)
        if len(taken) < limit and budget == MUCH:
            assert len(taken) == len(absent)

    def settle(self, how: str, size: int) -> None:
        if not self.taken:
            return
        unit = self.taken.pop(0)
        if how in ("arrived", "here"):
            getattr(self.real, how)(unit, size)
            self.model.size[unit] = size
        else:
            getattr(self.real, how)(unit)
        self.model.state[unit] = {"arrived": HERE, "here": HERE, "failed": FAILED, "refused": ABSENT}[how]
        if how != "arrived":
            self.model.owner.pop(unit, None)

    def came(self, unit: int, size: int) -> None:
        """By demand, whatever the schedule thought."""
        if unit not in self.taken:
            self.real.here(unit, size)
            self.model.state[unit], self.model.size[unit] = HERE, size
            self.model.owner.pop(unit, None)

    def evicted(self, one: int, other: int) -> None:
        units = sorted({one, other})
        self.real.evicted(np.array(units))
        for unit in units:
            if self.model.state[unit] == HERE:
                self.model.state[unit] = ABSENT
                self.model.owner.pop(unit, None)

    def wait(self, spent_s: float, _: None) -> None:
        self.now_s += spent_s

    def check(self) -> None:
        model = self.model
        assert self.real._state.tolist() == model.state
        assert self.real.ahead_bytes == model.ahead(set(model.learners))
        for learner in model.learners:
            standing = self.real.statistics(learner, self.now_s)
            assert standing is not None
            assert standing.ahead_bytes == model.ahead({learner})
            if self.real._learners[learner].uses is not None:
                assert standing.stopped == model.stopped(learner, self.now_s)
        rates = {key: self.real._rates()[found.number] for key, found in self.real._learners.items()}
        expected = [math.inf] * UNITS
        for learner, found in model.learners.items():
            late = 1e7 if model.stopped(learner, self.now_s) else 0.0
            for uses, position in found.orders():
                for use in uses:
                    if not use.over:
                        due = self.now_s + late + max(0, use.at - position) / rates[learner]
                        expected[use.unit] = min(expected[use.unit], due)
        assert self.real.next_use_s(None, self.now_s).tolist() == pytest.approx(expected)
        some = np.array([3, 1, 1])
        assert self.real.next_use_s(some, self.now_s).tolist() == pytest.approx([expected[u] for u in some])


def same(one: tuple[np.ndarray, np.ndarray | None, int], other: tuple[np.ndarray, np.ndarray | None, int]) -> bool:
    plain = [uses_of(u.tolist(), list(range(len(u))) if at is None else at.tolist(), n) for u, at, n in (one, other)]
    kinds = [any(np.diff(u) == 0) or at is not None for u, at, _ in (one, other)]
    return plain[0] == plain[1] and one[2] == other[2] and kinds[0] == kinds[1]


@settings(max_examples=400, deadline=None)
@given(OPS, st.sampled_from([0, 0, 3]))
def test_every_interleaving_gives_what_the_model_gives(ops: list[tuple[str, object, object]], guard: int) -> None:
    pair = Pair(guard)
    for name, one, other in ops:
        getattr(pair, name)(one, other)
        pair.check()


@settings(max_examples=60, deadline=None)
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
        taken = schedule.take(limit, budget, now_s)
        assert not here & set(taken)
        given += taken
        for unit in random.permutation(taken).tolist():
            schedule.arrived(unit, 10)
            here.add(unit)
        assert schedule.ahead_bytes < budget + 10
        moves = [k for k in range(learners) if position[k] < 40 and int(orders[k][position[k]]) in here]
        if not moves:
            break
        k = int(random.choice(moves))
        position[k] += 1
        schedule.advance(k, position[k], now_s)
    assert position == [40] * learners
    assert len(given) == len(set(given)) == len(here) == len(set(np.concatenate(orders).tolist()))
