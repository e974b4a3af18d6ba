"""Worker threads: what trio.to_thread.run_sync promises, kept by our own. Real threads, events instead of times."""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections import deque
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from hfs.mountd.core.errors import MountError
from hfs.mountd.core.workers import Workers
from tests.conftest import Logs

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


async def test_what_was_given_to_a_thread_ends_in_the_event_loop() -> None:
    """A thread may have descriptors of its own, with which a buffer that ends there can wake nobody."""

    class Given:
        pass

    workers, given, may_go, ended = Workers(), [Given()], threading.Event(), list[int]()
    weakref.finalize(given[0], lambda: ended.append(threading.get_ident()))
    wake = workers._wake

    def slowly() -> None:
        wake()
        may_go.wait(30)

    workers._wake = slowly  # type: ignore[method-assign]  # the thread is still on its way when the caller has it
    async with workers.running():
        await workers.run_sync(id, given.pop())
        assert ended == [threading.get_ident()]
        may_go.set()


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
    workers, before = Workers(), workers_alive()
    here = threading.Barrier(101)
    async with workers.running():
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(workers.run_sync, here.wait, 30)
            await trio.to_thread.run_sync(here.wait, 30)
        assert workers_alive() <= before + 100 + 2  # two are kept for when no more can be started
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


async def test_who_wakes_the_loop_as_it_ends_writes_into_no_other_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of the descriptor is given to the next file that is opened."""
    workers, begun, ends, done = Workers(), threading.Event(), threading.Event(), list[str]()
    write, close, lock = os.eventfd_write, os.close, workers._waking

    class Observed:
        def __enter__(self) -> None:
            if threading.current_thread() is threading.main_thread():
                ends.set()
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    def late(fd: int, number: int) -> None:
        begun.set()
        assert ends.wait(30)
        write(fd, number)
        done.append("written")

    workers._waking = Observed()  # type: ignore[assignment]  # to see that the end is reached
    monkeypatch.setattr(os, "eventfd_write", late)
    monkeypatch.setattr(os, "close", lambda fd: (fd == workers.results_fd and done.append("closed"), close(fd)))
    async with workers.running():
        thread = threading.Thread(target=workers.soon, args=(int,))
        thread.start()
        await trio.to_thread.run_sync(begun.wait)
    thread.join()
    assert done == ["written", "closed"]


async def test_threads_apart_hold_nothing_but_what_they_work_on() -> None:
    """A thread that cannot be killed keeps no file open and no lock held."""
    (read_end, write_end), (kept, other) = os.pipe(), os.pipe()
    workers = Workers(apart=kept)
    try:
        async with workers.running():
            held = await workers.run_sync(lambda: set(os.listdir("/proc/thread-self/fd")))
            assert {str(kept), "0", "1", "2"} <= held
            assert not held & {str(read_end), str(write_end), str(other)}
            os.close(write_end)  # only here was it open
            assert await trio.to_thread.run_sync(os.read, read_end, 1) == b""
    finally:
        for descriptor in (read_end, kept, other):
            os.close(descriptor)


async def test_what_a_thread_has_done_soon_is_done_though_its_caller_has_left() -> None:
    workers, go, done = Workers(), threading.Event(), trio.Event()
    async with workers.running():

        def work() -> None:
            assert go.wait(30)
            workers.soon(done.set)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(workers.run_sync, work, abandon_on_cancel=True))
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        go.set()
        await done.wait()


# -- no more threads --------------------------------------------------------------------------------------------------


@pytest.fixture
def no_more(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """[n]: so many threads may still be started; to be raised and lowered."""
    left, start = [1000], threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if thread.name == "hfs-worker":
            if left[0] <= 0:
                raise RuntimeError("can't start new thread")
            left[0] -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    return left


async def test_calls_are_carried_out_though_no_thread_can_be_started(no_more: list[int], logs: Logs) -> None:
    logs.expect("no more threads can be started")
    workers, limiter = Workers(), trio.CapacityLimiter(3)
    async with workers.running():
        no_more[0] = 0
        found: list[int] = []

        async def one(number: int) -> None:
            found.append(await workers.run_sync(abs, -number, limiter=limiter))

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(one, number)
        assert sorted(found) == list(range(50))
        with pytest.raises(FileNotFoundError):
            await workers.run_sync(os.stat, "/no/such/file")
        assert (limiter.borrowed_tokens, len(logs.records)) == (0, 1)
        assert workers.refused > 0


async def test_what_may_hang_waits_for_a_thread_and_never_takes_the_last_ones(no_more: list[int], logs: Logs) -> None:
    logs.expect("no more threads can be started")
    workers, limiter, go = Workers(), trio.CapacityLimiter(10), threading.Event()
    results: list[bool] = []

    async def hangs() -> None:
        results.append(await workers.run_patient(go.wait, 60, limiter=limiter, abandon_on_cancel=True))

    with trio.fail_after(30):
        async with workers.running(), trio.open_nursery() as nursery:
            no_more[0] = 2
            for _ in range(6):
                nursery.start_soon(hangs)
            await trio.testing.wait_all_tasks_blocked()
            for number in range(20):
                assert await workers.run_sync(abs, -number) == number
            with trio.move_on_after(0.01) as scope:
                await workers.run_patient(int, limiter=limiter, abandon_on_cancel=True)
            assert (scope.cancelled_caught, limiter.borrowed_tokens) == (True, 6)
            go.set()
    assert results == [True] * 6
    assert limiter.borrowed_tokens == 0


async def test_a_call_that_waits_goes_on_once_a_thread_can_be_started(no_more: list[int], logs: Logs) -> None:
    logs.expect("no more threads can be started")
    workers = Workers()
    found: list[int] = []

    async def one() -> None:
        found.append(await workers.run_patient(abs, -1, abandon_on_cancel=True))

    with trio.fail_after(30):
        async with workers.running(), trio.open_nursery() as nursery:
            no_more[0] = 0
            nursery.start_soon(one)
            while not workers.refused:
                await trio.lowlevel.checkpoint()
            no_more[0] = 10
    assert found == [1]


async def test_without_any_thread_the_daemon_does_not_start(no_more: list[int], logs: Logs) -> None:
    logs.expect("no more threads can be started")
    no_more[0] = 1
    with pytest.raises(MountError, match="no thread can be started: raise ulimit -u"):
        async with Workers().running():
            raise AssertionError("it has started")


async def test_each_thread_does_something_first_and_makes_no_call_until_that_has_worked() -> None:
    done: list[int] = []
    faults = [OSError(errno.EPERM, "not allowed")]

    def first() -> None:
        if faults:
            raise faults.pop()
        done.append(threading.get_ident())

    workers = Workers(first=first)
    async with workers.running():
        ran: list[int] = []
        with pytest.raises(PermissionError):
            await workers.run_sync(ran.append, 1)
        assert ran == []
        seen = {await workers.run_sync(threading.get_ident) for _ in range(20)}
        assert len(done) == len(set(done))
        assert seen <= set(done)


async def test_a_kept_thread_does_it_first_too(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    workers = Workers(first=lambda: done.append(threading.get_ident()))
    async with workers.running():
        monkeypatch.setattr(workers, "_start", lambda _calls: False)
        assert await workers.run_sync(threading.get_ident) in done
