"""Patience with the source: retries, time limits, abandoned threads, in virtual time."""

from __future__ import annotations

import errno

import pytest
import trio

from hfs.mountd.core.errors import SourceError, SourceTimeout
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.source import threads as source_threads
from hfs.mountd.source.threads import SourceThreads
from tests.support.thread_script import Script


def threads(script: Script, metrics: Metrics, time_limit_s: float = 10.0) -> SourceThreads:
    return SourceThreads(metrics, demand=2, prefetch=1, time_limit_s=time_limit_s, run_in_thread=script)


async def test_a_transient_error_is_tried_again_with_growing_pauses() -> None:
    metrics, script = Metrics(), Script((0.01, OSError(errno.EIO, "")), (0.01, OSError(errno.ESTALE, "")), (0.01, 7))
    start = trio.current_time()
    assert await threads(script, metrics).call("demand", "read", lambda: None) == 7
    assert trio.current_time() - start == pytest.approx(0.03 + 0.05 + 0.1)
    assert (metrics["source_retries"], metrics["source_errors"]) == (2, 0)


async def test_a_lasting_error_reaches_the_caller_after_six_tries() -> None:
    metrics, script = Metrics(), Script((0, OSError(errno.EIO, "")))
    with pytest.raises(SourceError) as caught:
        await threads(script, metrics).call("demand", "read", lambda: None)
    assert (caught.value.errno, script.calls, metrics["source_errors"]) == (errno.EIO, 6, 1)


async def test_a_source_fails_until_it_has_given_something_again() -> None:
    metrics, script = Metrics(), Script(*[(0, OSError(errno.ENOTCONN, ""))] * 12, (0, 7))
    calls = threads(script, metrics)
    assert calls.failure is None
    for _ in range(2):
        with pytest.raises(SourceError):
            await calls.call("demand", "read", lambda: None)
        assert calls.failure == "Transport endpoint is not connected"
        metrics.add("source_read_bytes", 100)  # by the data plane
        assert calls.failure is None
    calls._failed("no answer")
    assert calls.failure == "no answer"
    assert await calls.call("demand", "read", lambda: None) == 7
    assert (calls.failure, metrics["source_errors"]) == (None, 3)


async def test_an_answer_is_not_tried_again() -> None:
    metrics, script = Metrics(), Script((0, OSError(errno.ENOENT, "")))
    with pytest.raises(SourceError) as caught:
        await threads(script, metrics).call("metadata", "stat", lambda: None)
    assert (caught.value.errno, script.calls, metrics["source_errors"]) == (errno.ENOENT, 1, 0)


async def test_a_hang_ends_at_the_time_limit_and_its_thread_is_counted() -> None:
    metrics, script = Metrics(), Script((1e9, None), (0, 5))
    calls = threads(script, metrics)
    start = trio.current_time()
    with pytest.raises(SourceTimeout):
        await calls.call("demand", "read", lambda: None, limit_s=2.0)
    assert trio.current_time() - start == pytest.approx(2.0)
    assert (calls.stuck, metrics["source_abandoned"]) == (1, 1)
    assert await calls.call("demand", "read", lambda: None) == 5  # the pool got another place


async def test_zero_waits_for_ever() -> None:
    script = Script((1e7, 3))
    assert await threads(script, Metrics(), time_limit_s=0).call("demand", "read", lambda: None) == 3


async def test_too_many_stuck_threads_fail_new_calls_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_threads, "_MAX_ABANDONED", 3)
    metrics, script = Metrics(), Script((1e9, None))
    calls = threads(script, metrics)
    for _ in range(3):
        with pytest.raises(SourceTimeout, match="no answer"):
            await calls.call("demand", "read", lambda: None, limit_s=1.0)
    start = trio.current_time()
    with pytest.raises(SourceTimeout, match="stuck"):
        await calls.call("demand", "read", lambda: None)
    assert trio.current_time() == start
    assert script.calls == 3


async def test_waiting_for_a_place_is_not_a_stuck_thread() -> None:
    metrics, script = Metrics(), Script((1e9, None))
    calls = threads(script, metrics)
    async with trio.open_nursery() as nursery:

        async def hang() -> None:
            with trio.move_on_after(100):
                await calls.call("prefetch", "read", lambda: None, limit_s=1e8)

        nursery.start_soon(hang)
        await trio.sleep(1)
        with pytest.raises(SourceTimeout):
            await calls.call("prefetch", "read", lambda: None, limit_s=5.0)
        assert calls.stuck == 0
        assert script.calls == 1
        nursery.cancel_scope.cancel()


async def test_an_abandoned_thread_that_returns_gives_its_place_back(real_clock: None) -> None:
    import threading

    metrics, go = Metrics(), threading.Event()
    calls = SourceThreads(metrics, demand=1, prefetch=1, time_limit_s=10)
    for limit_s in (0.1, 1.0, 5.0):
        with pytest.raises(SourceTimeout):
            await calls.call("demand", "read", go.wait, limit_s=limit_s)
        if calls.stuck:
            break  # it has begun by then, which may take longer on a busy machine
    assert calls.stuck == 1
    go.set()
    while calls.stuck:
        await trio.lowlevel.checkpoint()
    assert calls.statistics()["stuck"] == 0


@pytest.mark.parametrize("before", [True, False], ids=["before it begins", "after it has ended"])
def test_a_call_given_up_at_its_edge_is_never_stuck(before: bool) -> None:
    """The thread and the loop agree whether it runs: counted as stuck it would never be taken back."""
    done: list[int] = []
    calls = threads(Script(), Metrics())
    call = source_threads._Call(calls, done.append, (1,), None)  # type: ignore[arg-type]  # needs no loop here
    if not before:
        call.run()
    calls._abandon(call, lambda: None)
    if before:
        call.run()
    assert (calls.stuck, done) == (0, [] if before else [1])
