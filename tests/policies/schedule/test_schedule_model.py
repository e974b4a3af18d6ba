"""The schedule against a slow, obvious model of it: every word goes to both, and after each they must agree."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest

from hfs.policies.schedule.epoch_progress import learner_rates
from hfs.policies.schedule.schedule import Schedule
from hfs.policies.schedule.uses import ABSENT, FAILED, HERE, TAKEN

MUCH = 1 << 60
UNITS = 12


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
    following: list[Use] | None = None
    begun: bool = True
    passed: int = 0
    """Uses that ended up to there are over."""

    def orders(self) -> list[tuple[list[Use], int]]:
        orders = [(self.uses, self.position)] if self.begun else []
        return orders if self.following is None else [*orders, (self.following, self.position - self.samples)]


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


Drawn = tuple[list[int], list[int], bool]
"""Units, steps from use to use, and whether there are no positions given."""


def drawn_order(random: Random) -> Drawn:
    kind = random.randrange(3)
    if kind == 0:
        units = random.sample(range(UNITS), UNITS)
    else:
        units = [random.randrange(UNITS if kind == 1 else 4) for _ in range(random.randrange(24))]
    return units, [random.choice([0, 0, 1, 1, 2, 5]) for _ in range(24)], random.random() < 0.5


def drawn_word(random: Random) -> tuple[str, object, object]:
    """A word and its two arguments. Most of them let an epoch go on; hypothesis would draw too many that end it."""
    learner, unit = random.randrange(3), random.randrange(UNITS)
    words: list[tuple[int, tuple[str, object, object]]] = [
        (20, ("take", random.randint(1, 8), random.choice([0, 15, 40, 100, MUCH, MUCH]))),
        (40, ("settle", random.choice(["arrived"] * 5 + ["here", "failed", "refused"]), random.randint(1, 30))),
        (20, ("advance", learner, random.choice([0, 1, 2, 3, 5, 9]))),
        (8, ("seen", unit, None)),
        (5, ("came", unit, random.randint(1, 30))),
        (5, ("evicted", unit, random.randrange(UNITS))),
        (6, ("wait", random.choice([0.2, 1.0, 6.0]), None)),
        (2, ("follow", learner, drawn_order(random))),
        (4, ("next", learner, drawn_order(random))),
        (3, ("promote", learner, None)),
        (1, ("over", learner, None)),
        (1, ("leave", learner, None)),
    ]
    return random.choices([word for _, word in words], [weight for weight, _ in words])[0]


class Pair:
    """A schedule and the model, given the same words."""

    def __init__(self, guard: int, *, seen: bool) -> None:
        self.real = Schedule(UNITS, 10, guard_samples=guard, uses_are_seen=seen)
        self.uses_are_seen = seen
        self.model = Model(guard)
        self.now_s = 0.0
        self.taken: list[int] = []
        self.announced: dict[int, tuple[np.ndarray, np.ndarray | None, int]] = {}

    def arrays(self, drawn: Drawn) -> tuple[np.ndarray, np.ndarray | None, int, list[Use]]:
        units, steps, dense = drawn
        at = list(range(len(units))) if dense else np.cumsum(steps[: len(units)]).tolist()
        samples = (at[-1] + 1 if at else 0) + steps[-1]
        given = None if dense else np.array(at, np.int64)
        return np.array(units, np.int32), given, samples, uses_of(units, at, samples)

    def follow(self, learner: int, drawn: Drawn) -> None:
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
        return self.real.units.ahead.owner(unit)

    def next(self, learner: int, drawn: Drawn) -> None:
        units, at, samples, uses = self.arrays(drawn)
        self.real.follow_next(learner, 1, units, at, samples)
        self.announced[learner] = units, at, samples
        self.model.learners.setdefault(learner, Follower(begun=False)).following = uses
        self._adopt()

    def advance(self, learner: int, by: int) -> None:
        found = self.model.learners.get(learner)
        position = by if found is None else found.position + by
        self.real.advance(learner, position, self.now_s)
        if found is None or not by or not found.begun:
            return
        resumed = found.position == 0 and position > self.model.guard
        found.position, found.moved_s = position, self.now_s
        for use in found.uses:
            if not self.uses_are_seen and found.passed < use.end <= position:
                self.model.ended(learner, use.unit)
        found.passed = max(found.passed, position - (0 if resumed else self.model.guard))
        for use in found.uses:
            if not use.over and use.end <= found.passed:
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
            found.uses, found.samples, found.position, found.begun = [], 0, 0, False
            self._adopt()

    def leave(self, learner: int, _: None) -> None:
        self.real.leave(learner)
        self.announced.pop(learner, None)
        self.model.learners.pop(learner, None)
        self.model.owner = {unit: owner for unit, owner in self.model.owner.items() if owner != learner}

    def take(self, limit: int, budget: int) -> None:
        model = self.model
        rates = learner_rates(self.real._learners)
        going = {learner for learner in model.learners if not model.stopped(learner, self.now_s)}
        due = [model.due_s(unit, rates) for unit in range(UNITS)]
        absent = sorted(due[unit] for unit in range(UNITS) if model.state[unit] == ABSENT and due[unit] < math.inf)
        before = model.ahead(going)
        before_each = {learner: model.ahead({learner}) for learner in model.learners}
        taken = self.real.fetch_order.take(limit, budget, self.now_s)
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
        largest = max((model.size[unit] for unit in taken), default=0)
        for learner in model.learners:
            assert model.ahead({learner}) <= max(before_each[learner], budget, largest)
        # In all: the budget, a unit for each learner, and what somebody had when there were fewer to share with.
        assert model.ahead(going) <= before + budget + len(going) * largest
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
        assert self.real.units.state.tolist() == model.state
        assert self.real.units.ahead_bytes == model.ahead(set(model.learners))
        for learner in model.learners:
            standing = self.real.statistics(learner, self.now_s)
            assert standing is not None
            assert standing.ahead_bytes == model.ahead({learner})
            if model.learners[learner].begun:
                assert standing.stopped == model.stopped(learner, self.now_s)
        rates = learner_rates(self.real._learners)
        expected = [math.inf] * UNITS
        for learner, found in model.learners.items():
            late = 1e7 if model.stopped(learner, self.now_s) else 0.0
            for uses, position in found.orders():
                for use in uses:
                    if not use.over:
                        due = self.now_s + late + max(0, use.at - position) / rates[learner]
                        expected[use.unit] = min(expected[use.unit], due)
        assert np.allclose(self.real.expected.next_use_s(None, self.now_s), expected)
        some = np.array([3, 1, 1])
        assert np.allclose(self.real.expected.next_use_s(some, self.now_s), [expected[unit] for unit in some])

    def end(self) -> None:
        """Whatever came before: a fresh order is given completely, and counts for nothing once it is over."""
        here = {unit for unit in range(UNITS) if self.model.state[unit] == HERE}
        assert {unit for learner in range(3) for unit in self.real.near(learner, 5)} <= here
        self.real.follow(0, 9, np.arange(UNITS, dtype=np.int32), None, UNITS, self.now_s)
        given: list[int] = []
        while more := self.real.fetch_order.take(16, MUCH, self.now_s):
            given += more
        assert sorted([*given, *self.taken, *here]) == list(range(UNITS))
        for unit in (*given, *self.taken):
            self.real.arrived(unit, 11)
        for learner in range(3):
            self.real.over(learner)
            self.real.leave(learner)
        assert self.real.units.ahead_bytes == 0
        assert self.real.fetch_order.take(16, MUCH, self.now_s) == []
        assert np.isinf(self.real.expected.next_use_s(None, self.now_s)).all()


def same(one: tuple[np.ndarray, np.ndarray | None, int], other: tuple[np.ndarray, np.ndarray | None, int]) -> bool:
    plain = [uses_of(u.tolist(), list(range(len(u))) if at is None else at.tolist(), n) for u, at, n in (one, other)]
    kinds = [any(np.diff(u) == 0) or at is not None for u, at, _ in (one, other)]
    return plain[0] == plain[1] and one[2] == other[2] and kinds[0] == kinds[1]


@pytest.mark.parametrize(
    "window", [pytest.param(2, marks=pytest.mark.slow), 5, pytest.param(4096, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(("guard", "seen"), [(0, True), (3, True), (3, False)])
def test_every_interleaving_gives_what_the_model_gives(
    guard: int, seen: bool, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hfs.policies.schedule.uses._WINDOW", window)
    for seed in range(15):
        random = Random(seed)
        pair = Pair(guard, seen=seen)
        for learner in range(random.randint(1, 3)):
            pair.follow(learner, drawn_order(random))
        for _ in range(80):
            name, one, other = drawn_word(random)
            getattr(pair, name)(one, other)
            pair.check()
        pair.end()
