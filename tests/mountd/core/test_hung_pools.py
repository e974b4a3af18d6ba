"""Every pool of threads after all of it has hung: it has its full width again, and every count is what it was.

Real threads; who hangs is let go by an event, and a barrier sees that so many calls run at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest
import trio
import trio.testing

from hfs.mountd.cache.objects.context import Threads
from hfs.mountd.core import workers as core_workers
from hfs.mountd.core.caller import Credentials
from hfs.mountd.core.errors import SourceTimeout
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.core.workers import Workers
from hfs.mountd.fuse import fuse
from hfs.mountd.fuse.fuse import KernelPageCache
from hfs.mountd.namespace import Namespace, Node
from hfs.mountd.source import as_user
from hfs.mountd.source import threads as source_threads
from hfs.mountd.source.as_user import open_as_user
from hfs.mountd.source.threads import SourceThreads
from tests.conftest import Logs

pytestmark = pytest.mark.usefixtures("real_clock")

_WIDE = 6
_MOST = 3 * _WIDE
"""Threads that may be abandoned in the source."""

Function = Callable[[], object]


@dataclass
class Pool:
    """`call` runs a function in it, `figures` are its counts; may `refuses` when so many threads were abandoned."""

    call: Callable[[Function], Awaitable[object]]
    figures: Callable[[], object]
    width: int = _WIDE
    rounds: int = 3
    refuses: bool = False


@asynccontextmanager
async def _bare(method: str) -> AsyncIterator[Pool]:
    workers = Workers()
    async with workers.running():
        call = partial(getattr(workers, method), abandon_on_cancel=True)
        yield Pool(call, partial(_counts, workers))


@asynccontextmanager
async def _source(kind: source_threads.Pool, first: Function | None = None) -> AsyncIterator[Pool]:
    workers = Workers(first=first)
    threads = SourceThreads(
        Metrics(),
        metadata=_WIDE,
        demand=_WIDE,
        prefetch=_WIDE,
        time_limit_s=0,
        run_in_thread=workers.run_patient,
    )
    async with workers.running():
        figures = partial(_source_counts, threads, workers)
        yield Pool(lambda function: threads.call(kind, "a test", function), figures, refuses=True)


@asynccontextmanager
async def _as_user() -> AsyncIterator[Pool]:
    async with open_as_user(-1, Metrics(), time_limit_s=0) as asker:

        async def call(function: Function) -> object:
            return await asker.readable(Credentials(61001, 61000, ()), [(b"", cast(bytes, function), True)])

        yield Pool(call, asker._threads.statistics, refuses=True)


@asynccontextmanager
async def _pushes() -> AsyncIterator[Pool]:
    workers, held, functions = Workers(), list[object](), list[Function]()
    node = SimpleNamespace(lookups=1, id=7, attributes=SimpleNamespace(size=1))
    namespace = SimpleNamespace(holds=SimpleNamespace(hold=held.append, release=held.remove))
    pages = KernelPageCache(cast(Namespace, namespace), Metrics(), workers.run_sync, workers.soon)

    async def call(function: Function) -> object:
        functions.append(function)
        return await pages.push(cast(Node, node), 0, memoryview(bytes([len(functions) - 1])))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fuse, "_store", lambda number, offset, data: functions[data[0]]())
        async with workers.running():
            yield Pool(call, lambda: (_counts(workers), len(held), pages._limiter.borrowed_tokens), width=2, rounds=1)


@asynccontextmanager
async def _cache(method: str, width: int) -> AsyncIterator[Pool]:
    workers = Workers()
    threads = Threads(workers.run_sync, _WIDE)
    async with workers.running():
        yield Pool(getattr(threads, method), partial(_counts, workers), width=width, rounds=1)


def _counts(workers: Workers) -> object:
    alive = sum(getattr(thread, "_target", None) == workers._work for thread in threading.enumerate())
    return workers._under_way, len(workers._patient), len(workers._done), alive - workers._idle


def _source_counts(threads: SourceThreads, workers: Workers) -> object:
    return threads.statistics(), _counts(workers)


POOLS: dict[str, Callable[[], AbstractAsyncContextManager[Pool]]] = {
    "run_sync": partial(_bare, "run_sync"),
    "run_patient": partial(_bare, "run_patient"),
    "metadata": partial(_source, "metadata"),
    "demand": partial(_source, "demand"),
    "prefetch": partial(_source, "prefetch"),
    "source read as a user": partial(_source, "demand", int),
    "asked as a user": _as_user,
    "pushes": _pushes,
    "cache reads": partial(_cache, "read", 16),
    "cache writes": partial(_cache, "write", _WIDE),
    "verification": partial(_cache, "look", 2),
    "cache sync": partial(_cache, "sync", 1),
    "cache index": partial(_cache, "change_index", 1),
}


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """What the next threads come to instead of being started."""
    faults: list[Exception] = []
    start = threading.Thread.start

    def faulty(thread: threading.Thread) -> None:
        if thread.name == "hfs-worker" and faults:
            raise faults.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", faulty)
    monkeypatch.setattr(source_threads, "_MAX_ABANDONED", _MOST)
    monkeypatch.setattr(as_user, "_THREADS", _WIDE)
    monkeypatch.setattr(as_user.SourceAsUser, "_become", lambda self, who: None)
    monkeypatch.setattr(as_user.SourceAsUser, "_is_readable", lambda self, at, function, by_opening: function())
    return faults


@pytest.mark.parametrize("fails", ["never", "as it hangs", "as it comes back"])
@pytest.mark.parametrize("pool", POOLS)
async def test_a_pool_that_hung_is_whole_again(
    pool: str, fails: str, faults: list[Exception], logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fails != "never":
        logs.expect("no more threads can be started")
        monkeypatch.setattr(core_workers, "_MAX_IDLE", 0)  # each call needs a new one
    go = threading.Event()
    late: list[int] = []
    with trio.fail_after(60):
        async with POOLS[pool]() as tried, trio.open_nursery() as nursery:
            before = tried.figures()
            if fails == "as it hangs":
                faults.append(RuntimeError("can't start new thread"))
            for _ in range(tried.rounds):
                await _hang_all(tried, go, nursery)
            if tried.refuses:
                with pytest.raises(SourceTimeout, match=f"{_MOST} threads are stuck"):
                    await tried.call(int)
            else:
                for number in range(tried.width):
                    nursery.start_soon(tried.call, partial(late.append, number))
                await trio.testing.wait_all_tasks_blocked()
            go.set()
            while tried.figures() != before:
                await trio.lowlevel.checkpoint()
            if fails == "as it comes back":
                faults.append(RuntimeError("can't start new thread"))
            together = threading.Barrier(tried.width)
            async with trio.open_nursery() as all_of_it:
                for _ in range(tried.width):
                    all_of_it.start_soon(tried.call, partial(together.wait, 30))
            while tried.figures() != before:
                await trio.lowlevel.checkpoint()
    assert faults == []
    assert sorted(late) == ([] if tried.refuses else list(range(tried.width)))


async def _hang_all(tried: Pool, go: threading.Event, nursery: trio.Nursery) -> None:
    """Until `go`; their callers have left, where the pool lets them."""
    here, left = threading.Barrier(tried.width + 1), trio.CancelScope()

    def hang() -> None:
        here.wait(30)
        assert go.wait(60)

    async def call_all() -> None:
        with left:
            async with trio.open_nursery() as callers:
                for _ in range(tried.width):
                    callers.start_soon(tried.call, hang)

    nursery.start_soon(call_all)
    await trio.to_thread.run_sync(here.wait, 30)
    left.cancel()
    await trio.testing.wait_all_tasks_blocked()
