"""Looking for what to fetch: a slice of each turn, however many plans there are, and none is passed over.
And what plans are asked of a file that is opened."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from hfs.mountd.core.metrics import Metrics
from hfs.mountd.hints import hints
from hfs.mountd.hints.followed_plans import PlanChanges
from hfs.mountd.hints.hints import HintFollower

PLANS = 100
A_TURN = 5
"""So many plans can be looked at in one."""


class Plans:
    """Stands for the registry: plans with what there is to fetch for each. To look at one takes a fifth of a slice."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spent_s = 0.0
        monkeypatch.setattr(hints.time, "thread_time", lambda: self.spent_s)
        self.looked_at: list[int] = []
        self.there_is: dict[int, list[int]] = {}
        self._plans = OrderedDict((number, self._plan(number)) for number in range(PLANS))

    def _plan(self, number: int) -> Any:
        def take(_limit: int, _budget_bytes: int, _now_s: float) -> list[int]:
            self.looked_at.append(number)
            self.spent_s += hints.SLICE_S / A_TURN
            return self.there_is.pop(number, [])

        return SimpleNamespace(
            key=number,
            layout=SimpleNamespace(whole=True),
            is_fetched_apart=True,
            schedule=SimpleNamespace(fetch_order=SimpleNamespace(take=take, searching=False)),
        )

    def followed(self) -> Iterator[Any]:
        return iter(list(self._plans.values()))

    def move_to_end(self, key: int) -> None:
        self._plans.move_to_end(key)


def follower_of(plans: Plans) -> tuple[HintFollower, PlanChanges]:
    anything: Any = SimpleNamespace(budget_bytes=lambda: 1 << 62, is_tight=False)
    changes = PlanChanges(lambda: None)
    those: Any = plans
    return HintFollower(those, anything, anything, anything, anything, anything, changes, Metrics()), changes


async def test_a_turn_has_a_slice_and_every_plan_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = Plans(monkeypatch)
    follower, _ = follower_of(plans)
    turns = 0
    while (work := follower.next_work()) is not None:
        turns += 1
        assert work.units == ()
        assert len(plans.looked_at) <= turns * (A_TURN + 1)
        await follower.carry_out(work)
    assert sorted(plans.looked_at) == list(range(PLANS))
    assert turns >= PLANS // (A_TURN + 1) - 1


async def test_what_changes_behind_its_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = Plans(monkeypatch)
    follower, changes = follower_of(plans)
    work = follower.next_work()
    assert work is not None
    plans.there_is[plans.looked_at[0]] = [7]
    changes.changed()
    while work is not None and not work.units:
        await follower.carry_out(work)
        work = follower.next_work()
    assert work is not None
    assert work.units == (7,)


async def test_work_is_found_wherever_it_is_while_all_else_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn begins with those that have not been looked at for the longest time."""
    plans = Plans(monkeypatch)
    plans.there_is[PLANS - 1] = [7]
    follower, changes = follower_of(plans)
    turns = 0
    while (work := follower.next_work()) is not None and not work.units:
        turns += 1
        assert turns <= PLANS // A_TURN
        await follower.carry_out(work)
        changes.changed()
    assert work is not None
    assert work.units == (7,)
