"""Long work in slices: each turn of the event loop has one of them, whoever has work. A clock that the steps move."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio

from hfs.mountd.core import background
from hfs.mountd.core.background import SLICE_S, Slices

STEP_S = SLICE_S / 4


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Which task has made each step; a step takes a quarter of a slice."""
    made: list[int] = []
    monkeypatch.setattr(background.time, "thread_time", lambda: len(made) * STEP_S)
    return made


def work(made: list[int], who: int, count: int) -> Iterator[None]:
    for _ in range(count):
        made.append(who)
        yield


class Turns(trio.abc.Instrument):
    """How many steps each turn of the event loop had."""

    def __init__(self, steps: list[int]) -> None:
        self._steps = steps
        self._before = 0
        self.each: list[int] = []

    def before_io_wait(self, timeout: float) -> None:
        self.each.append(len(self._steps) - self._before)
        self._before = len(self._steps)


def test_only_one_of_many_has_a_slice_in_a_turn(steps: list[int]) -> None:
    turns = Turns(steps)

    async def test() -> None:
        shared = Slices()
        async with trio.open_nursery() as nursery:
            for who in range(20):
                nursery.start_soon(shared.carry_out, work(steps, who, 10))

    trio.run(test, instruments=[turns])
    assert sorted(steps) == sorted(list(range(20)) * 10), "all of it was done"
    assert max(turns.each) <= 5
    assert set(steps[:80]) == set(range(20)), "they take turns"


def test_what_fails_or_is_cancelled_leaves_the_turn_to_others(steps: list[int]) -> None:
    def fails() -> Iterator[None]:
        yield
        raise ValueError

    async def test() -> None:
        shared = Slices()
        with pytest.raises(ValueError):
            await shared.carry_out(fails())
        with trio.move_on_after(0):
            await shared.carry_out(work(steps, 0, 1000))
        await shared.carry_out(work(steps, 1, 10))

    trio.run(test)
    assert steps[-10:] == [1] * 10
