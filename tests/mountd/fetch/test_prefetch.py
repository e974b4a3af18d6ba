"""What is fetched ahead, in which order, by how many workers; nothing here ever waits for a reader or stops one."""

from __future__ import annotations

import errno
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from hfs.mountd.cache.objects.file import StagedFile
from hfs.mountd.core.attributes import Version
from hfs.mountd.core.errors import SourceError
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.fetch import prefetch as prefetch_file
from hfs.mountd.fetch.prefetch import Foresight, Prefetch, PrefetchQueue
from hfs.mountd.namespace.nodes.node import Node
from tests.conftest import Logs
from tests.support.fake_source import attributes


class FakeFetches:
    """Each chunk takes a second of virtual time; what was fetched is noted in order."""

    def __init__(self) -> None:
        self.order: list[object] = []
        self.siblings: list[tuple[Node, bytes]] = []
        self.waits = False
        self.room = True
        self.error: Exception | None = None
        self.running = self.most = 0
        self.memory: trio.Event | None = None

    async def _work(self, what: object) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        self.order.append(what)
        await trio.sleep(1)
        self.running -= 1
        if self.error is not None:
            raise self.error

    async def prefetch_chunk(
        self, node: Node, file: StagedFile, index: int, began: Callable[[], None], *, soon: bool
    ) -> None:
        if self.memory is not None:
            await self.memory.wait()
        began()
        await self._work((node.name, index))
        file.present.add(index)

    async def prefetch_siblings(self, places: Sequence[tuple[Node, bytes]]) -> int:
        for _, name in places:
            await self._work(name)
        return len(places)

    def next_siblings(self, limit: int) -> list[tuple[Node, bytes]]:
        taken, self.siblings = self.siblings[:limit], self.siblings[limit:]
        return taken

    def demand_waits(self) -> bool:
        return self.waits

    def worth_filling(self, file: StagedFile) -> bool:
        return self.room


class FakeForesight:
    """Work is a number; each takes a second."""

    def __init__(self, work: list[int] | None = None, fetches: FakeFetches | None = None) -> None:
        self.work = work or []
        self.fetches = fetches

    def next_work(self) -> int | None:
        return self.work.pop(0) if self.work else None

    async def carry_out(self, work: int) -> None:
        assert self.fetches is not None
        await self.fetches._work(work)


def large(name: bytes, chunks: int = 4) -> tuple[Node, StagedFile]:
    node = Node(attributes(5, chunks), Version("f" * 16, 5, chunks, 1, 1), None, name)
    assert node.version is not None
    return node, StagedFile(node.version, 1, name)


@asynccontextmanager
async def running(
    fetches: FakeFetches, workers: int, foresight: Foresight | None = None
) -> AsyncIterator[tuple[PrefetchQueue, Metrics]]:
    metrics = Metrics()
    queue = PrefetchQueue(metrics)
    prefetch = Prefetch(queue, fetches, foresight or FakeForesight(), metrics, workers=workers)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(prefetch.run)
        await trio.testing.wait_all_tasks_blocked()
        yield queue, metrics
        nursery.cancel_scope.cancel()


async def test_windows_before_hints_before_fills_before_siblings() -> None:
    fetches = FakeFetches()
    node, file = large(b"f", 2)
    other, window = large(b"w", 9)
    fetches.siblings = [(node, b"sibling")]
    async with running(fetches, 1, FakeForesight([1, 2], fetches)) as (prefetch, _):
        prefetch.siblings_nowait()
        prefetch.fill_nowait(node, file)
        prefetch.hints_nowait()
        prefetch.window_nowait(other, window, [7, 8])
        await trio.sleep(10)
    assert fetches.order == [(b"w", 7), (b"w", 8), 1, 2, (b"f", 0), (b"f", 1), b"sibling"]


async def test_workers_bound_what_runs_at_once() -> None:
    fetches = FakeFetches()
    node, file = large(b"f", 20)
    async with running(fetches, 3) as (prefetch, _):
        prefetch.fill_nowait(node, file)
        await trio.sleep(30)
    assert fetches.most == 3
    assert sorted(fetches.order) == [(b"f", i) for i in range(20)]
    assert file.complete


async def test_two_fills_take_turns() -> None:
    fetches = FakeFetches()
    async with running(fetches, 1) as (prefetch, _):
        for name in (b"a", b"b"):
            prefetch.fill_nowait(*large(name, 2))
        await trio.sleep(10)
    assert fetches.order == [(b"a", 0), (b"b", 0), (b"a", 1), (b"b", 1)]


async def test_a_closed_file_is_not_filled_further() -> None:
    fetches = FakeFetches()
    node, file = large(b"f", 9)
    async with running(fetches, 1) as (prefetch, _):
        prefetch.fill_nowait(node, file)
        await trio.sleep(1.5)
        prefetch.forget(node)
        await trio.sleep(10)
    assert len(fetches.order) == 2


async def test_the_chunks_of_a_fill_begin_in_file_order_although_they_wait_for_memory() -> None:
    fetches = FakeFetches()
    fetches.memory = trio.Event()
    node, file = large(b"f", 32)
    async with running(fetches, 16) as (prefetch, _):
        prefetch.fill_nowait(node, file)
        await trio.sleep(1)
        fetches.memory.set()
        await trio.sleep(10)
    assert fetches.order == [(b"f", index) for index in range(32)]
    assert fetches.most == 16


async def test_when_a_fill_will_have_brought_a_chunk() -> None:
    fetches = FakeFetches()
    node, file = large(b"f", 8)
    async with running(fetches, 1) as (prefetch, _):
        assert prefetch.filled_in_s(node, 2) == math.inf
        prefetch.fill_nowait(node, file)
        assert prefetch.filled_in_s(node, 2) == 0  # no pace yet
        await trio.sleep(2.5)
        assert prefetch.filled_in_s(node, 0) == math.inf  # handed out already
        assert prefetch.filled_in_s(node, 7) == pytest.approx(2.5 / 2 * 5)
        prefetch.forget(node)
        assert prefetch.filled_in_s(node, 7) == math.inf


async def test_what_is_not_urgent_pauses_while_a_reader_waits_and_goes_on_after() -> None:
    fetches = FakeFetches()
    fetches.waits = True
    node, file = large(b"f", 2)
    fetches.siblings = [(node, b"s")]
    async with running(fetches, 2, FakeForesight([1], fetches)) as (prefetch, _):
        prefetch.fill_nowait(node, file)
        prefetch.siblings_nowait()
        prefetch.hints_nowait()
        await trio.sleep(10)
        assert fetches.order == []
        fetches.waits = False
        prefetch.demand_served_nowait()
        await trio.sleep(10)
    assert sorted(map(str, fetches.order)) == sorted(map(str, [(b"f", 0), (b"f", 1), b"s", 1]))


async def test_a_fill_ends_when_the_cache_has_no_room() -> None:
    fetches = FakeFetches()
    fetches.room = False
    async with running(fetches, 2) as (prefetch, _):
        prefetch.fill_nowait(*large(b"f", 5))
        await trio.sleep(10)
        assert prefetch.statistics()["fills"] == 0
    assert fetches.order == []


async def test_an_error_ends_the_fill_and_no_worker() -> None:
    fetches = FakeFetches()
    fetches.error = SourceError(errno.EIO, "read")
    node, file = large(b"f", 5)
    async with running(fetches, 1) as (prefetch, _):
        prefetch.fill_nowait(node, file)
        await trio.sleep(10)
        assert fetches.order == [(b"f", 0)]
        fetches.error = None
        prefetch.window_nowait(node, file, [3])
        await trio.sleep(10)
    assert fetches.order == [(b"f", 0), (b"f", 3)]


async def test_a_full_queue_drops_the_oldest_wishes() -> None:
    node, file = large(b"f", 5000)
    most = prefetch_file._MAX_WINDOW_CHUNKS
    prefetch = PrefetchQueue(metrics := Metrics())
    prefetch.window_nowait(node, file, list(range(most + 5)))
    assert prefetch.statistics()["windows"] == most
    assert metrics["prefetch_dropped"] == 5


async def test_an_unforeseen_error_does_not_end_the_mount(logs: Logs) -> None:
    logs.expect("unforeseen error of a prefetch")
    fetches = FakeFetches()
    node, file = large(b"f")
    fetches.error = RuntimeError("can't start new thread")
    fetches.siblings = [(node, b"s")]
    async with running(fetches, 1) as (prefetch, metrics):
        prefetch.window_nowait(node, file, [0])
        prefetch.siblings_nowait()
        await trio.sleep(3)
        fetches.error = None
        prefetch.window_nowait(node, file, [1])
        await trio.sleep(2)
    assert 1 in file.present
    assert metrics["unexpected_errors"] == 2
