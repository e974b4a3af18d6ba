"""Room for what hints name: who goes, how seldom all that is staged is looked at, and never on the event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import trio

from hfs.mountd.core.metrics import Metrics
from hfs.mountd.hints import space_reservation as hints_room
from hfs.mountd.hints.epoch_plan import EpochPlan
from hfs.mountd.hints.hints import Learners
from hfs.mountd.hints.space_reservation import SpaceReservation
from hfs.mountd.wire.hints import At, LayoutFrame, LayoutPart, Order, encode_layout, layout_digest
from hfs.mountd.wire.protocol import Join, Result
from hfs.policies.cache.admission import blocks_bytes

FILES = 400
STAGED = 200
FILE_BYTES = 110_000


class FullStaging:
    """Has room for what was evicted, and nothing else."""

    def __init__(self) -> None:
        self.room_bytes = 0
        self.evicted: list[int] = []
        self.encoded = 1
        """How many times smaller everything is kept."""
        self.evictor = self.evictions = self.room = self
        self.hinted: object = None
        self.pinned: dict[int, object] = {}

    def refused(self, wanted_bytes: int, idle_s: int) -> None:
        pass

    def shortfall_bytes(self, wanted_bytes: int) -> int:
        return max(0, wanted_bytes - self.room_bytes)

    def limit_bytes(self) -> int:
        return STAGED * FILE_BYTES

    async def evict_objects(self, numbers: Sequence[int]) -> dict[int, int]:
        await trio.lowlevel.checkpoint()
        self.evicted += [number - 1 for number in numbers]
        return dict.fromkeys(numbers, blocks_bytes(FILE_BYTES + 4096) // self.encoded)


class Threads:
    def __init__(self) -> None:
        self.calls = 0

    async def run(self, call: Callable[..., Any], *arguments: Any) -> Any:
        self.calls += 1
        return await trio.to_thread.run_sync(call, *arguments)


async def full(
    following: Sequence[int], threads: Threads | None = None
) -> tuple[SpaceReservation, FullStaging, EpochPlan, Any]:
    """A learner in an epoch of all files in their order; the first of them are staged, and fill the cache."""
    run_in_thread = (threads or Threads()).run
    learners = Learners(8 << 20, Metrics(), run_in_thread)
    blob = encode_layout(LayoutFrame(files=b"\0".join(b"%d" % i for i in range(FILES))))
    learner, _ = learners.join(Join(layout=layout_digest(blob)), 1)
    assert learner is not None
    for message in (
        LayoutPart(blob, True),
        Order(0, np.arange(FILES, dtype="<i8").tobytes()),
        Order(1, np.array(following, "<i8").tobytes(), following=True),
        At(STAGED),
    ):
        answer = await learner.receive(message)
        assert answer is None or isinstance(answer, Result)
    plan = learner.plan
    assert plan is not None
    assert plan.objects is not None
    plan.objects[:STAGED] = np.arange(STAGED) + 1
    for unit in range(STAGED):
        plan.schedule.here(unit, FILE_BYTES)
        plan.schedule.seen(unit, trio.current_time())
    staging = FullStaging()
    run = run_in_thread, lambda *_: True
    space = SpaceReservation(learners.plans, staging, Metrics(), 1 << 20, *run)  # type: ignore[arg-type]  # a fake
    return space, staging, plan, learner


async def asked(room: SpaceReservation, plan: EpochPlan, units: Sequence[int]) -> list[bool]:
    stays = await room.stays(plan, units)
    room.settled(stays)
    return stays.each


async def test_an_order_that_is_followed_names_its_objects() -> None:
    _, _, plan, learner = await full(list(range(FILES)))
    plans = learner._plans
    assert await plans.planned([1, STAGED, STAGED + 7]) == {1, STAGED}
    plan.learners.clear()
    assert await plans.planned([1, STAGED]) == set()


@pytest.mark.parametrize("in_thread", [False, True])
async def test_what_is_needed_last_goes_for_what_is_needed_sooner(
    in_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints_room, "_LOOK_AT_ONCE_USES", 0 if in_thread else 1 << 30)
    threads = Threads()
    room, staging, plan, _ = await full(list(range(FILES))[::-1], threads)
    before = threads.calls
    assert await asked(room, plan, [STAGED + 1]) == [True]
    assert threads.calls - before == in_thread
    assert staging.evicted[:2] == [0, 1]  # what comes last in the epoch after
    assert not plan.objects[:2].any()  # type: ignore[index]  # it has whole files
    assert await asked(room, plan, [0]) == [False]  # it is needed later than all that is here


async def test_what_is_kept_encoded_gives_back_less_so_more_of_it_goes() -> None:
    room, staging, plan, _ = await full(list(range(FILES))[::-1])
    staging.encoded = 4
    assert await asked(room, plan, [STAGED + 1]) == [True]
    assert len(staging.evicted) * blocks_bytes(FILE_BYTES + 4096) // 4 >= FILE_BYTES
    assert staging.evicted == list(range(len(staging.evicted)))


async def test_what_is_needed_last_is_looked_for_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often room is asked for: for what finds none, and for what is given it."""
    looks = []
    look = hints_room._last
    monkeypatch.setattr(hints_room, "_last", lambda *arguments: looks.append(1) or look(*arguments))
    monkeypatch.setattr(hints_room, "_LOOK_S_A_USE", 1.0)
    room, staging, plan, _ = await full(list(range(FILES)))
    for _ in range(50):
        assert await asked(room, plan, [FILES - 1]) == [False]
    assert looks == [1]
    assert staging.evicted == []
    room, staging, plan, _ = await full(list(range(FILES))[::-1])
    looks.clear()
    for unit in range(STAGED, STAGED + 20):
        assert await asked(room, plan, [unit]) == [True]
    assert staging.evicted == list(range(len(staging.evicted)))
    assert len(staging.evicted) >= 20
    assert len(looks) <= 1 + len(staging.evicted) // 4


async def test_what_has_become_needed_sooner_since_the_look_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints_room, "_LOOK_S_A_USE", 1.0)
    monkeypatch.setattr(hints_room, "_CANDIDATE_SHARE", 1)
    room, staging, plan, learner = await full(list(range(FILES))[::-1])
    assert await asked(room, plan, [STAGED]) == [True]
    first = list(staging.evicted)
    # A new order: those that were the last are the first now.
    await learner.receive(Order(1, np.arange(FILES, dtype="<i8").tobytes()))
    await learner.receive(Order(2, np.arange(FILES, dtype="<i8").tobytes(), following=True))
    staging.evicted.clear()
    assert await asked(room, plan, [first[0]]) == [False]
    assert staging.evicted == []
