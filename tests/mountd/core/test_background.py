"""Background tasks: a fault costs its task, is logged once a kind and counted, and leaves nobody waiting."""

from __future__ import annotations

import contextlib
import logging
from itertools import pairwise
from pathlib import Path

import pytest
import trio

from hfs.mountd.core.background import call_guarded, faults, guarded, note_fault, start_for_life, start_guarded
from hfs.mountd.core.errors import SourceError, StagingError
from hfs.mountd.core.flight import SingleFlight
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.fetch.sibling_watch import SiblingWatch
from hfs.mountd.namespace.namespace import open_namespace
from hfs.mountd.namespace.nodes.node import Node
from hfs.policies.prefetch.siblings import Siblings
from tests.conftest import Logs
from tests.support.fake_source import FakeSource
from tests.support.faults import (
    SIZE,
    Operations,
    contents,
    healthy_staging,
    page_aligned,
    run,
    stage,
    verify,
    version_of,
)

FAULT = "unforeseen error in the background"


async def fails(times: list[float]) -> None:
    times.append(trio.current_time())
    raise ValueError("a defect")


async def fails_while_cancelled() -> bytes:
    """Its cancellation and its fault leave it together."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("on the way out")


async def test_a_fault_costs_its_task_only(logs: Logs) -> None:
    logs.expect(FAULT)
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            start_guarded(nursery, "this", fails, [])
        start_guarded(nursery, "that", fails, [])
    assert faults() == {"this": 5, "that": 1}
    assert len(logs.records) == 2, "once a kind"
    assert logs.records[0].exc_info is not None
    assert "a defect" in logging.Formatter().format(logs.records[0])


async def test_faults_are_those_of_this_run() -> None:
    assert faults() == {}


async def test_a_task_for_life_is_started_again_later_and_later(logs: Logs) -> None:
    logs.expect(FAULT)
    times: list[float] = []
    start = trio.current_time()
    with trio.move_on_after(300):
        async with trio.open_nursery() as nursery:
            start_for_life(nursery, "this", fails, times)
    pauses = [round(after - before, 3) for before, after in pairwise(times)]
    assert pauses[:4] == [0.1, 0.2, 0.4, 0.8]
    assert set(pauses[10:]) == {60.0}
    assert times[0] == start


async def test_a_task_that_ran_for_long_is_started_again_at_once(logs: Logs) -> None:
    logs.expect(FAULT)
    began: list[float] = []

    async def runs_for_an_hour() -> None:
        began.append(trio.current_time())
        await trio.sleep(3600)
        raise ValueError("a defect")

    with trio.move_on_after(20_000):
        async with trio.open_nursery() as nursery:
            start_for_life(nursery, "this", runs_for_an_hour)
    assert [round(after - before, 3) for before, after in pairwise(began)] == [3600.1] * 5


async def test_a_task_for_life_that_returns_is_over() -> None:
    async def returns() -> None:
        await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        start_for_life(nursery, "this", returns)
    assert faults() == {}


async def test_cancellation_passes_alone_and_beside_a_fault(logs: Logs) -> None:
    logs.expect(FAULT)

    with trio.move_on_after(1) as scope:
        await guarded("alone", trio.sleep_forever)
    assert scope.cancelled_caught
    with trio.move_on_after(1) as scope:
        async with trio.open_nursery() as nursery:
            start_guarded(nursery, "both", fails_while_cancelled)
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert faults() == {"both": 1}


async def test_a_call_from_a_thread_does_not_end_the_loop(logs: Logs) -> None:
    logs.expect(FAULT)

    def broken() -> None:
        raise KeyError("a node that has gone")

    trio.lowlevel.current_trio_token().run_sync_soon(call_guarded, "call", broken)
    await trio.sleep(1)
    assert faults() == {"call": 1}


async def test_kinds_in_the_log_are_bounded(logs: Logs) -> None:
    logs.expect(FAULT)
    for number in range(1000):
        note_fault(f"task {number}", ValueError())
    assert len(logs.records) <= 256
    assert len(faults()) == 1000


# -- what a task held is given back -----------------------------------------------------------------------------------


async def test_waiters_of_a_dead_fetch_get_an_error() -> None:
    """Whatever ended it: nobody waits on, and nobody takes nothing for bytes."""

    async def fetch() -> bytes:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fails, [])
            await trio.sleep_forever()
        raise AssertionError

    heard: list[BaseException] = []
    async with trio.open_nursery() as nursery:
        flights: SingleFlight[str, bytes] = SingleFlight(nursery)

        async def wait() -> None:
            try:
                await flights.run("chunk", fetch)
            except (ExceptionGroup, SourceError) as error:
                heard.append(error)

        for _ in range(3):
            nursery.start_soon(wait)
    assert len(heard) == 3
    assert len(flights) == 0


async def test_a_fetch_that_fails_while_it_is_cancelled_gives_its_waiters_an_error(logs: Logs) -> None:
    logs.expect(FAULT)

    heard: list[BaseException] = []
    async with trio.open_nursery() as waiting, trio.open_nursery() as fetching:
        flights: SingleFlight[str, bytes] = SingleFlight(fetching)

        async def wait() -> None:
            try:
                await flights.run("chunk", fails_while_cancelled)
            except SourceError as error:
                heard.append(error)

        waiting.start_soon(wait)
        await trio.sleep(1)
        fetching.cancel_scope.cancel()
    assert len(heard) == 1


async def test_who_waits_for_names_asked_for_ahead_asks_for_itself(logs: Logs) -> None:
    logs.expect(FAULT)
    source = FakeSource()
    source.file(b"f", 11, 5)

    async def broken(*_: object) -> None:
        await trio.sleep(1)
        raise ValueError("a defect")

    source.stats = broken  # type: ignore[method-assign, assignment]  # a fault that no rule foresees
    async with trio.open_nursery() as nursery:
        namespace = await open_namespace(source, Metrics(), nursery, ttl_s=60, strict=False)  # type: ignore[arg-type]  # a fake
        root, asking = namespace.root, namespace.asking
        asking.ahead_nowait(root, [b"f"])
        flight = asking.flight(root, b"f")
        assert flight is not None
        await flight.wait(10)
        assert flight.failed
        assert asking.flight(root, b"f") is None
    assert faults() == {"stat-ahead": 1}


async def test_a_sibling_list_that_fails_is_asked_for_again(logs: Logs) -> None:
    logs.expect(FAULT)
    source = FakeSource()
    asked = []

    async def broken(node: Node) -> object:
        asked.append(node)
        raise ValueError("a defect")

    directory = Node(source.tree[b""], None, None, b"")
    async with trio.open_nursery() as nursery:
        watch = SiblingWatch(Siblings(small_file_bytes=1000, budget_bytes=10_000), nursery, broken, lambda: None)  # type: ignore[arg-type]  # as above
        for number in range(200):
            source.file(b"%d" % number, 100 + number, 10)
            attributes = source.tree[b"%d" % number]
            watch.opened(Node(attributes, attributes.version("f"), directory, b"%d" % number), staged=False)
            await trio.sleep(1)
    assert len(asked) > 1


def _raise(_name: str) -> None:
    raise RuntimeError("a defect")  # no error that anybody expects of a row


@pytest.mark.slow
@pytest.mark.parametrize(
    ("for_ever", "step"),
    [
        (False, 11),
        (True, 23),
        pytest.param(False, 1, marks=pytest.mark.long),
        pytest.param(True, 3, marks=pytest.mark.long),
    ],
)
def test_whatever_fails_unforeseen_below_the_cache_nobody_waits_for_ever(
    tmp_path: Path, logs: Logs, for_ever: bool, step: int
) -> None:
    """Each operation of disk and index in turn raises what no rule foresees, once, or from then on."""
    logs.expect(FAULT)
    logs.expect("the writer has failed; serving from the source")
    number, reached = 0, True
    while reached:
        number += step
        reached = run(_stage_with_a_fault, tmp_path / str(number), number, for_ever)
        run(verify, str(tmp_path / str(number)))
    assert number > 20


async def _stage_with_a_fault(cache: Path, number: int, for_ever: bool) -> bool:
    """Put, read, give up, evict. True if the fault has come."""
    operations = Operations(10**9, _raise)
    done = 0

    def finished() -> None:
        nonlocal done
        done += 1

    async with healthy_staging(cache, operations=operations) as staging:
        await staging.ready.wait()
        operations.act_after(number, for_ever=for_ever)
        taken, files = 0, []
        with trio.fail_after(1000):
            for seed in (1, 2):
                file = await staging.files.get(version_of(seed, SIZE), b"f%d" % seed)
                files.append(file)
                for index in range(file.present.count):
                    extent = file.chunk(index)
                    data = page_aligned(contents(seed, extent.start, extent.size))
                    taken += staging.writer.put_nowait(file, index, data, finished)
                await staging.committer.wait_committed()
                with contextlib.suppress(StagingError, RuntimeError):
                    await staging.reader.read_chunk(file, 0)
                staging.reclaim_queue.give_up(file, [1])
                await staging.files.supersede(version_of(seed, SIZE))
                await staging.reclaimer.wait_idle()
            with contextlib.suppress(RuntimeError):
                await staging.evictions.evict_paths()
            await trio.sleep(100)
        assert done == taken
        assert for_ever or not any(file.unsettled for file in files), "a chunk is barred for ever"
        assert staging.statistics().queued_bytes == 0
        assert staging.statistics().uncommitted_bytes == 0
        reached = operations.reached
        operations.act_no_more()
    return reached


def test_a_look_up_that_fails_unforeseen_finds_nothing(tmp_path: Path, logs: Logs) -> None:
    logs.expect(FAULT)

    async def staged_once() -> None:
        async with healthy_staging(tmp_path) as staging:
            await staging.ready.wait()
            await stage(staging, 1)

    async def looked_up(number: int) -> bool:
        operations = Operations(10**9, _raise)
        async with healthy_staging(tmp_path, operations=operations) as staging:
            await staging.ready.wait()
            operations.act_after(number)
            with trio.fail_after(100):
                file = await staging.files.get(version_of(1, SIZE))
            assert operations.reached or file.complete
            return operations.reached

    run(staged_once)
    number = 1
    while run(looked_up, number):
        number += 1
    assert number > 1
