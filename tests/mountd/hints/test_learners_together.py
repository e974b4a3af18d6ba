"""The learners of a job begin together: one layout is read once, and a broken copy harms only who brought it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from hfs.mountd.core.metrics import Metrics
from hfs.mountd.hints import hints as hints_file
from hfs.mountd.hints.hint_session import HintSession
from hfs.mountd.hints.hints import Learners
from hfs.mountd.wire.hints import LayoutFrame, LayoutPart, Waited, encode_layout, layout_digest
from hfs.mountd.wire.protocol import Failure, Join, Result, packed
from tests.conftest import Logs

BLOB = encode_layout(LayoutFrame(files=b"a\0b\0c"))


class HeldThreads:
    """Calls run when `let_go` is set, in no thread."""

    def __init__(self) -> None:
        self.calls = 0
        self.let_go = trio.Event()

    async def run(self, call: Callable[..., Any], *arguments: Any) -> Any:
        self.calls += 1
        await self.let_go.wait()
        return call(*arguments)


async def brought(blobs: list[bytes]) -> tuple[HeldThreads, list[HintSession], list[Result | Failure | None]]:
    """What learners of one layout are told who bring these bytes at the same time."""
    threads = HeldThreads()
    owner = Learners(8 << 20, Metrics(), threads.run)
    learners = [owner.join(Join(layout=layout_digest(BLOB), rank=i, world=len(blobs)), 1)[0] for i in range(len(blobs))]
    answers: list[Result | Failure | None] = [None] * len(blobs)

    async def bring(number: int) -> None:
        learner = learners[number]
        assert learner is not None
        answers[number] = await learner.receive(LayoutPart(blobs[number], True))

    async with trio.open_nursery() as nursery:
        for number in range(len(blobs)):
            nursery.start_soon(bring, number)
            await trio.testing.wait_all_tasks_blocked()
        threads.let_go.set()
    return threads, [learner for learner in learners if learner is not None], answers


async def test_a_layout_that_several_bring_is_read_once() -> None:
    threads, learners, answers = await brought([BLOB, BLOB, BLOB])
    assert threads.calls == 3, "it is read, divided and planned"
    assert all(isinstance(answer, Result) for answer in answers)
    assert len({id(learner.plan) for learner in learners}) == 1


async def test_a_broken_copy_does_not_harm_who_brings_a_good_one(logs: Logs) -> None:
    logs.expect("the layout that came is not the one that was announced")
    threads, learners, answers = await brought([BLOB[:-1], BLOB])
    assert threads.calls == 4
    assert isinstance(answers[0], Failure)
    assert isinstance(answers[1], Result)
    assert learners[0].plan is None
    assert learners[1].plan is not None


async def test_a_status_of_many_learners_has_a_step_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that have gone too: of all of them together it would keep the event loop."""
    owner = Learners(8 << 20, Metrics(), HeldThreads().run)
    for number in range(40):
        learner, _ = owner.join(Join(layout=layout_digest(BLOB), rank=number, world=40), 1)
        assert learner is not None
        await learner.receive(Waited(7, 1.0, 1.0, 1.0, 5))
        if number >= 20:
            learner.leave()
    made, since = list[int](), [0]
    carry_out = owner.plans.slices.carry_out

    def counted(value: object) -> msgspec.Raw:
        since[0] += 1
        return packed(value)

    async def steps_of(steps: Iterable[object]) -> None:
        def each() -> Iterator[object]:
            for step in steps:
                made.append(since[0])
                since[0] = 0
                yield step

        await carry_out(each())

    monkeypatch.setattr(hints_file, "packed", counted)
    monkeypatch.setattr(owner.plans.slices, "carry_out", steps_of)
    status = await owner.status(None)
    assert made == [1] * 40
    assert since == [0], "nothing is left to be packed at the end"
    assert [len(status[which]) for which in ("learners", "past")] == [20, 20]
    assert all(isinstance(one, msgspec.Raw) for which in ("learners", "past") for one in status[which])
