"""Worker threads: what trio.to_thread.run_sync promises, kept by our own. Real threads, events instead of times."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Any

import pytest
import trio
import trio.testing

from mountd.workers import Workers

pytestmark = pytest.mark.usefixtures("real_clock")


def workers_alive() -> int:
    return sum(thread.name == "hfs-worker" for thread in threading.enumerate())


async def test_results_and_errors_come_back() -> None:
    workers = Workers()
    async with workers.running():
        assert await workers.run_sync(divmod, 17, 5) == (3, 2)
        with pytest.raises(FileNotFoundError):
            await workers.run_sync(os.stat, "/no/such/file")
        assert await workers.run_sync(threading.get_ident) != threading.get_ident()


async def test_a_thread_is_used_again_and_ends_with_the_block() -> None:
    workers = Workers()
    async with workers.running():
        seen = {await workers.run_sync(threading.current_thread) for _ in range(50)}
        assert len(seen) == 1
    (thread,) = seen
    await trio.to_thread.run_sync(thread.join)


async def test_results_that_come_in_the_same_moment_are_collected() -> None:
    workers, both = Workers(), threading.Barrier(2)

    class Together(deque[Any]):
        """Both threads have brought their results before either looks at what is there."""

        def append(self, call: object) -> None:
            super().append(call)
            both.wait(30)

    workers._done = Together()
    with trio.fail_after(20):
        async with workers.running(), trio.open_nursery() as nursery:
            nursery.start_soon(workers.run_sync, int)
            nursery.start_soon(workers.run_sync, int)


async def test_as_many_run_together_as_the_limiter_allows() -> None:
    workers, limiter = Workers(), trio.CapacityLimiter(3)
    together = threading.Barrier(3)
    running: list[int] = []

    def work() -> None:
        running.append(int(limiter.borrowed_tokens))
        together.wait(30)  # ends only if three are here

    async with workers.running(), trio.open_nursery() as nursery:
        for _ in range(9):
            nursery.start_soon(lambda: workers.run_sync(work, limiter=limiter))
    assert len(running) == 9
    assert max(running) <= 3
    assert limiter.borrowed_tokens == 0


async def test_a_burst_needs_no_more_threads_than_calls_and_leaves_few() -> None:
    workers = Workers()
    here = threading.Barrier(101)
    async with workers.running():
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(workers.run_sync, here.wait, 30)
            await trio.to_thread.run_sync(here.wait, 30)
        assert workers_alive() <= 100
        assert await workers.run_sync(int) == 0
        assert workers._idle <= 32


async def test_a_cancelled_caller_still_gets_what_the_thread_brings() -> None:
    workers, go, started = Workers(), threading.Event(), threading.Event()
    brought: list[int] = []

    def work() -> int:
        started.set()
        assert go.wait(30)
        return 42

    async with workers.running():
        with trio.CancelScope() as scope:

            async def cancel() -> None:
                await trio.to_thread.run_sync(started.wait, 30)
                scope.cancel()
                go.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(cancel)
                brought.append(await workers.run_sync(work))
        assert scope.cancel_called
        assert brought == [42]


async def test_an_abandoned_call_keeps_its_place_until_its_thread_is_back() -> None:
    workers, limiter, go = Workers(), trio.CapacityLimiter(1), threading.Event()
    started = threading.Event()

    def hang() -> None:
        started.set()
        assert go.wait(30)

    async with workers.running():
        with trio.CancelScope() as scope:

            async def cancel() -> None:
                await trio.to_thread.run_sync(started.wait, 30)
                scope.cancel()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(cancel)
                await workers.run_sync(hang, limiter=limiter, abandon_on_cancel=True)
        assert scope.cancelled_caught
        assert limiter.borrowed_tokens == 1
        assert await workers.run_sync(int) == 0  # others go on
        go.set()
        assert await workers.run_sync(int, limiter=limiter) == 0  # waits for the place
    assert limiter.borrowed_tokens == 0


async def test_a_call_that_is_cancelled_before_it_begins_does_not_run() -> None:
    workers = Workers()
    ran: list[int] = []
    async with workers.running():
        with trio.CancelScope() as scope:
            scope.cancel()
            await workers.run_sync(ran.append, 1)
        assert scope.cancelled_caught
        assert ran == []


async def test_a_thread_that_hangs_holds_nobody_up_at_the_end() -> None:
    workers, go = Workers(), threading.Event()
    async with workers.running():
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: workers.run_sync(go.wait, 30, abandon_on_cancel=True))
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
    go.set()
    os.close(workers._eventfd)  # left open for the thread that may still come back to it
