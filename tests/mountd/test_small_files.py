"""Small files are staged in batches: each once, none of two versions, and a reader never waits for a batch."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import pytest
import trio
import trio.testing

from mountd.buffers import Buffers
from mountd.errors import HfsError, SourceError, SourceTimeout, StagingError
from mountd.fetcher import Fetcher
from mountd.memory import Memory
from mountd.metrics import Metrics
from mountd.namespace import Namespace
from mountd.node import Node
from mountd.peers import NoPeers
from mountd.recorder import Recorder
from mountd.small_files import BATCH_FILES, Become, Small, SmallFiles
from policies.geometry import Extent
from tests.mountd.fake_source import FakeSource
from tests.mountd.fake_staging import FakeStaging

CHUNK = 64 << 10
SIZE = 3000
"""16 of them fill the buffer of a batch."""


@dataclass
class Parts:
    source: FakeSource
    staging: FakeStaging
    namespace: Namespace
    fetcher: Fetcher
    small: SmallFiles
    buffers: Buffers
    pushed: list[bytes]
    nursery: trio.Nursery

    async def stage(self, *paths: bytes) -> list[Small | HfsError]:
        return await self.small.stage_paths(paths, push=True)

    def is_right(self, path: bytes) -> bool:
        """What is staged of the newest version of the file is the source's."""
        attributes = self.source.tree[path]
        version = attributes.version(self.source.source_id)
        return self.staging.chunks.get((version, 0)) == self.source.content(path, Extent(0, attributes.size))

    async def demand(self, path: bytes) -> bytes:
        """What a reader does: look up, then have the bytes fetched."""
        node = await self.namespace.resolve(path)
        assert node.version is not None
        file = await self.staging.file(node.version, path)
        held = self.fetcher.held_nowait(node.version, 0)
        return bytes(held if held is not None else await self.fetcher.chunk(node, file, 0))

    def by_itself(self) -> list[bytes]:
        """What was read outside of a batch."""
        return [path for what, path in self.source.calls if what in ("read", "read ahead")]

    def rest(self) -> None:
        """Nothing is under way any more, and nothing is kept."""
        assert self.fetcher.in_flight == 0
        assert self.buffers.used_bytes == 0
        assert not self.staging.queue


@asynccontextmanager
async def parts_of(source: FakeSource, *, ttl_s: float = 60.0) -> AsyncIterator[Parts]:
    metrics, staging, buffers = Metrics(), FakeStaging(CHUNK), Buffers(64 * CHUNK, CHUNK)
    staging.in_memory = True
    pushed: list[bytes] = []

    class Pushes:
        @staticmethod
        async def push(node: Node, offset: int, data: memoryview) -> bool:  # noqa: ARG004 - the protocol's
            await trio.lowlevel.checkpoint()
            pushed.append(node.path)
            return True

        @staticmethod
        def push_nowait(node: Node, data: memoryview) -> bool:  # noqa: ARG004 - the protocol's
            raise AssertionError("only an open does that")

    async with trio.open_nursery() as nursery:
        namespace = Namespace(source, metrics, nursery, ttl_s=ttl_s, strict=False)  # type: ignore[arg-type]  # a fake
        await namespace.start()
        fetcher = Fetcher(
            source,
            staging,
            buffers,
            nursery,
            metrics,
            Pushes(),
            Memory(trio.current_time),
            Recorder(),
            NoPeers(""),
            reads_a_file=8,
        )  # type: ignore[arg-type]  # fakes
        small = SmallFiles(namespace, staging, fetcher, source, buffers, metrics, chunk_bytes=CHUNK)  # type: ignore[arg-type]  # fakes
        yield Parts(source, staging, namespace, fetcher, small, buffers, pushed, nursery)
        nursery.cancel_scope.cancel()


def tree(files: int = 4, size: int = SIZE) -> FakeSource:
    source = FakeSource()
    source.directory(b"d", 3)
    for i in range(files):
        source.file(b"d/%d" % i, 100 + i, size)
    return source


def names(files: int) -> list[bytes]:
    return [b"d/%d" % i for i in range(files)]


def become(outcomes: Sequence[Small | HfsError]) -> list[object]:
    return [outcome.become if isinstance(outcome, Small) else type(outcome) for outcome in outcomes]


async def test_files_are_staged_without_a_stat_of_each_and_known_afterwards() -> None:
    async with parts_of(tree()) as parts:
        assert become(await parts.stage(*names(4))) == [Become.FETCHED] * 4
        await trio.testing.wait_all_tasks_blocked()
        assert parts.source.batches == [names(4)]
        assert all(map(parts.is_right, names(4)))
        calls = len(parts.source.calls)
        assert [(await parts.namespace.resolve(name)).attributes.inode for name in names(4)] == [100, 101, 102, 103]
        assert len(parts.source.calls) == calls  # looked up from memory
        parts.rest()


async def test_what_is_known_and_staged_does_not_reach_the_source() -> None:
    async with parts_of(tree()) as parts:
        await parts.stage(*names(4))
        await trio.testing.wait_all_tasks_blocked()
        parts.source.calls.clear()
        assert become(await parts.stage(*names(4))) == [Become.HERE] * 4
        assert parts.source.calls == []


async def test_many_files_go_in_batches_of_bounded_size() -> None:
    async with parts_of(tree(40)) as parts:
        assert become(await parts.stage(*names(40))) == [Become.FETCHED] * 40
        assert [len(batch) for batch in parts.source.batches] == [BATCH_FILES, BATCH_FILES, 8]
    async with parts_of(tree(6, 20_000)) as parts:  # three of them fill the buffer of a batch
        assert become(await parts.stage(*names(6))) == [Become.FETCHED] * 6
        await trio.testing.wait_all_tasks_blocked()
        assert all(map(parts.is_right, names(6)))
        parts.rest()


async def test_one_file_named_twice_is_read_once() -> None:
    async with parts_of(tree(1)) as parts:
        assert become(await parts.stage(b"d/0", b"/d//0", b"d/0")) == [Become.FETCHED] * 3
        assert parts.source.calls.count(("read small", b"d/0")) == 1


async def test_hard_links_of_one_file_are_staged_once() -> None:
    source = tree(1)
    source.file(b"d/link", 100, SIZE)
    async with parts_of(source) as parts:
        assert become(await parts.stage(b"d/0", b"d/link")) == [Become.FETCHED, Become.HERE]
        assert len(parts.staging.queue) <= 1


async def test_two_batches_with_the_same_file_read_it_once() -> None:
    async with parts_of(tree()) as parts, trio.open_nursery() as nursery:
        found: list[list[object]] = []

        async def stage(*paths: bytes) -> None:
            found.append(become(await parts.stage(*paths)))

        nursery.start_soon(stage, *names(4))
        nursery.start_soon(stage, *names(4))
        await trio.sleep(1)
        assert sorted(found, key=str) == sorted([[Become.FETCHED] * 4, [Become.HERE] * 4], key=str)
        assert [call for call in parts.source.calls if "read" in call[0]] == [("read small", name) for name in names(4)]


# -- what goes wrong with one file -----------------------------------------------------------------------------------


async def test_a_missing_file_is_an_error_of_its_own() -> None:
    source = tree()
    del source.tree[b"d/1"]
    async with parts_of(source) as parts:
        outcomes = await parts.stage(*names(4))
        assert become(outcomes) == [Become.FETCHED, SourceError, Become.FETCHED, Become.FETCHED]
        assert isinstance(outcomes[1], SourceError)
        assert outcomes[1].errno == errno.ENOENT


@pytest.mark.parametrize("path", [b"", b".", b"d/..", b"d/.", b"d/", b"d/a\0b", b"d/0/x", b"none/0", b"../x", b"d"])
async def test_a_path_that_names_no_file_is_an_error_of_its_own(path: bytes) -> None:
    async with parts_of(tree()) as parts:
        assert become(await parts.stage(b"d/0", path)) == [Become.FETCHED, SourceError]


async def test_a_fault_that_passes_is_tried_again_by_itself() -> None:
    async with parts_of(tree()) as parts:
        parts.source.small_faults[b"d/2"] = errno.EIO
        assert become(await parts.stage(*names(4))) == [Become.FETCHED] * 4
        assert parts.by_itself() == [b"d/2"]
        await trio.testing.wait_all_tasks_blocked()
        assert all(map(parts.is_right, names(4)))


async def test_a_file_that_changes_while_it_is_read_is_read_again() -> None:
    async with parts_of(tree()) as parts:
        parts.source.small_faults[b"d/1"] = lambda: parts.source.file(b"d/1", 101, SIZE + 7, time_ns=9)
        assert become(await parts.stage(*names(4))) == [Become.FETCHED] * 4
        await trio.testing.wait_all_tasks_blocked()
        assert all(map(parts.is_right, names(4)))


@pytest.mark.parametrize("size", [CHUNK + 1, 10 * CHUNK])
async def test_a_large_file_is_left_to_whoever_reads_chunks(size: int) -> None:
    source = tree()
    source.file(b"d/3", 103, size)
    async with parts_of(source) as parts:
        assert become(await parts.stage(*names(4))) == [Become.FETCHED] * 3 + [Become.LARGE]
        assert become(await parts.stage(b"d/3")) == [Become.LARGE]
        assert len(parts.source.batches) == 1  # it was known the second time


async def test_an_empty_file_has_nothing_to_fetch() -> None:
    source = tree()
    source.file(b"d/0", 100, 0)
    async with parts_of(source) as parts:
        assert become(await parts.stage(*names(2))) == [Become.HERE, Become.FETCHED]


async def test_what_is_newer_than_a_batch_is_not_put_back() -> None:
    async with parts_of(tree()) as parts:
        parts.source.delay_s = 1

        def changed() -> None:
            parts.source.file(b"d/0", 100, SIZE + 1, time_ns=5)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.stage, *names(4))
            await trio.sleep(3.5)  # the directory was looked up, d/0 was read
            changed()
            node = await parts.namespace.resolve(b"d/0")
            assert node.attributes.size == SIZE + 1
        await trio.testing.wait_all_tasks_blocked()
        assert (await parts.namespace.resolve(b"d/0")) is node
        assert not node.stale
        assert parts.is_right(b"d/0")


async def test_what_somebody_looks_up_while_it_is_read_is_not_read_again() -> None:
    """The look-up is under way when the batch comes back, and the name was not known: its answer is waited for."""
    async with parts_of(tree()) as parts:
        await parts.namespace.resolve(b"d")
        parts.source.delay_s = 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.stage, *names(4))
            await trio.sleep(3.5)  # the last one is being read
            assert (await parts.namespace.resolve(b"d/1")).attributes.size == SIZE
        await trio.testing.wait_all_tasks_blocked()
        assert parts.by_itself() == []
        assert all(map(parts.is_right, names(4)))


async def test_what_a_reader_fetches_already_is_not_read_again() -> None:
    async with parts_of(tree()) as parts:
        for name in names(4):
            await parts.namespace.resolve(name)
        parts.source.delay_s = 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.demand, b"d/1")
            await trio.sleep(0.5)
            assert become(await parts.stage(*names(4)))[1] is Become.HERE
        assert parts.by_itself() == [b"d/1"]
        small = [path for what, path in parts.source.calls if what == "read small"]
        assert sorted(small) == sorted(set(names(4)) - {b"d/1"})


async def test_a_source_that_does_not_answer_is_an_error_of_each() -> None:
    async with parts_of(tree()) as parts:
        await parts.namespace.resolve(b"d")
        parts.source.hang = True
        assert become(await parts.stage(*names(4))) == [SourceTimeout] * 4
        parts.rest()


# -- a cache that does not take it -----------------------------------------------------------------------------------


async def test_a_full_cache_is_not_filled_and_soon_not_read_for() -> None:
    async with parts_of(tree(40)) as parts:
        parts.staging.room_bytes = 3 * SIZE
        outcomes = become(await parts.stage(*names(40)))
        assert outcomes == [Become.FETCHED] * 3 + [StagingError] * 37
        assert len(parts.source.batches) == 1
        parts.staging.room_bytes = 100 * SIZE
        await trio.testing.wait_all_tasks_blocked()
        assert become(await parts.stage(*names(40))) == [Become.HERE] * 3 + [Become.FETCHED] * 37


async def test_buffers_are_given_back_when_all_is_written() -> None:
    async with parts_of(tree(40)) as parts:
        parts.staging.at_once = False
        await parts.stage(*names(40))
        assert 0 < parts.buffers.used_bytes <= parts.buffers.total_bytes // 2
        assert parts.fetcher.held_nowait(parts.source.tree[b"d/7"].version(parts.source.source_id), 0) is not None
        parts.staging.write()
        parts.rest()


async def test_pages_are_pushed_only_where_the_kernel_knows_the_file() -> None:
    async with parts_of(tree()) as parts:
        parts.namespace.referenced(await parts.namespace.resolve(b"d/1"))
        await parts.stage(*names(4))
        await trio.testing.wait_all_tasks_blocked()
        assert parts.pushed == [b"d/1"]


# -- readers -----------------------------------------------------------------------------------------------------------


async def test_a_reader_has_what_is_being_read_as_soon_as_it_is_here() -> None:
    async with parts_of(tree(16)) as parts:
        for name in names(16):
            await parts.namespace.resolve(name)
        parts.source.delay_s = 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.stage, *names(16))
            await trio.sleep(2.5)  # the third is being read
            start_s = trio.current_time()
            assert await parts.demand(b"d/2") == parts.source.content(b"d/2", Extent(0, SIZE))
            assert trio.current_time() - start_s == pytest.approx(0.5)
        assert parts.by_itself() == []  # nothing by itself, nothing twice
        assert sorted(path for what, path in parts.source.calls if what == "read small") == sorted(names(16))


async def test_a_reader_has_what_was_read_before_the_batch_ends() -> None:
    async with parts_of(tree(16)) as parts:
        for name in names(16):
            await parts.namespace.resolve(name)
        parts.source.delay_s = 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.stage, *names(16))
            await trio.sleep(5.5)
            start_s = trio.current_time()
            assert await parts.demand(b"d/0") == parts.source.content(b"d/0", Extent(0, SIZE))
            assert trio.current_time() - start_s == pytest.approx(0.5)
        assert parts.by_itself() == []


async def test_a_reader_does_not_wait_for_what_has_not_begun() -> None:
    async with parts_of(tree(16)) as parts:
        for name in names(16):
            await parts.namespace.resolve(name)
        parts.source.delay_s = 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.stage, *names(16))
            await trio.sleep(0.5)
            start_s = trio.current_time()
            assert await parts.demand(b"d/9") == parts.source.content(b"d/9", Extent(0, SIZE))
            assert trio.current_time() - start_s == pytest.approx(1)
        assert parts.by_itself() == [b"d/9"]
        small = [path for what, path in parts.source.calls if what == "read small"]
        assert sorted(small) == sorted(set(names(16)) - {b"d/9"})  # each once
        await trio.testing.wait_all_tasks_blocked()
        assert all(map(parts.is_right, names(16)))


async def test_what_a_hurried_batch_left_out_is_read_once() -> None:
    """The thread has ended for one reader, and its answer is on its way; another wants the very next file."""
    async with parts_of(tree(16)) as parts:
        for name in names(16):
            await parts.namespace.resolve(name)
        order = sorted(names(16))
        parts.source.delay_s = parts.source.way_back_s = 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.stage, *order)
            await trio.sleep(2.5)
            nursery.start_soon(parts.demand, order[2])
            await trio.sleep(1)
            start_s = trio.current_time()
            await parts.demand(order[3])
            assert trio.current_time() - start_s == pytest.approx(1)  # it did not wait for the answer
        assert parts.by_itself() == [order[3]]
        assert sorted(path for path, _ in parts.source.reads) == order


async def test_a_file_that_its_thread_had_named_but_not_begun_is_read_once() -> None:
    async with parts_of(tree(16)) as parts:
        for name in names(16):
            await parts.namespace.resolve(name)
        order = sorted(names(16))
        parts.source.delay_s = parts.source.named_s = 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.stage, *order)
            await trio.sleep(4.5)  # the third is named
            await parts.demand(order[2])
        assert sorted(path for path, _ in parts.source.reads) == order


async def test_a_batch_that_begins_while_a_chunk_waits_for_memory_reads_the_file_once() -> None:
    source = tree(2)
    async with parts_of(source) as parts:
        node = await parts.namespace.resolve(b"d/1")
        assert node.version is not None
        file = await parts.staging.file(node.version, b"d/1")
        held = [await parts.buffers.take(CHUNK, urgent=True) for _ in range(40)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(parts.small.stage_paths, names(2), push=False))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(parts.fetcher.ahead, node, file, 0)
            await trio.testing.wait_all_tasks_blocked()
            held.clear()
        assert sorted(path for path, _ in source.reads) == names(2)


async def test_a_reader_does_not_wait_for_a_batch_that_hangs_before_its_file() -> None:
    async with parts_of(tree(16)) as parts:
        for name in names(16):
            await parts.namespace.resolve(name)
        async with trio.open_nursery() as nursery:
            parts.source.hang = True
            nursery.start_soon(parts.stage, *names(16))
            await trio.testing.wait_all_tasks_blocked()
            parts.source.hang = False
            start_s = trio.current_time()
            await parts.demand(b"d/9")
            assert trio.current_time() - start_s < 1
            nursery.cancel_scope.cancel()


async def test_a_cancelled_batch_leaves_its_files_to_their_readers() -> None:
    async with parts_of(tree(16)) as parts:
        for name in names(16):
            await parts.namespace.resolve(name)
        parts.source.delay_s = 1
        got: list[bytes] = []

        async def read() -> None:
            got.append(await parts.demand(b"d/0"))

        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as staging:
                    staging.start_soon(parts.stage, *names(16))
                    await trio.sleep(0.5)
                    nursery.start_soon(read)  # waits for the batch
                    await trio.testing.wait_all_tasks_blocked()
                    scope.cancel()
            assert len(parts.fetcher.batches) == 0
        assert got == [parts.source.content(b"d/0", Extent(0, SIZE))]
        await trio.testing.wait_all_tasks_blocked()
        parts.rest()


async def test_what_a_reader_waits_for_is_kept_for_him_when_the_cache_is_full() -> None:
    async with parts_of(tree(2)) as parts:
        for name in names(2):
            await parts.namespace.resolve(name)
        parts.source.delay_s = 1

        def full() -> None:
            parts.staging.room_bytes = 0

        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.stage, *names(2))
            await trio.sleep(0.5)
            full()
            assert await parts.demand(b"d/0") == parts.source.content(b"d/0", Extent(0, SIZE))
            assert await parts.demand(b"d/0") == parts.source.content(b"d/0", Extent(0, SIZE))
        assert parts.by_itself() == []


async def test_what_is_only_held_is_answered_from_memory_and_not_staged() -> None:
    async with parts_of(tree(4)) as parts:
        for _ in range(2):
            outcomes = await parts.small.stage_paths(names(4), push=False, stage=False)
        assert become(outcomes) == [Become.HERE] * 4
        assert not parts.staging.queue
        assert not parts.staging.chunks
        assert await parts.demand(b"d/3") == parts.source.content(b"d/3", Extent(0, SIZE))
        assert parts.by_itself() == []
        assert parts.buffers.used_bytes == 0  # of what is held there are copies, which do not keep a whole batch


async def test_without_a_time_to_live_each_batch_asks_anew() -> None:
    async with parts_of(tree(2), ttl_s=0) as parts:
        assert become(await parts.stage(*names(2))) == [Become.FETCHED] * 2
        await trio.testing.wait_all_tasks_blocked()
        parts.source.file(b"d/0", 100, SIZE, time_ns=7)
        assert become(await parts.stage(*names(2))) == [Become.FETCHED, Become.HERE]
        await trio.testing.wait_all_tasks_blocked()
        assert all(map(parts.is_right, names(2)))


async def test_what_an_earlier_run_has_staged_is_not_read_again() -> None:
    source = tree(200)
    async with parts_of(source) as parts:
        parts.staging.may_have_more = True
        for i in range(100, 200):
            version = source.tree[b"d/%d" % i].version(source.source_id)
            (await parts.staging.file(version, b"d/%d" % i)).present.add_all()
        for start in range(0, 200, 10):
            await parts.small.stage_paths([b"d/%d" % i for i in range(start, start + 10)], push=False)
        # Of the first hundred nothing was staged, so the looking stops; one vain batch later it goes on.
        read = [path for batch in source.batches for path in batch]
        assert set(range(100)) <= {int(path[2:]) for path in read}
        assert len(read) <= 110


async def test_what_a_reader_fetches_while_the_batch_waits_for_memory_is_not_read_twice() -> None:
    source = tree(4)
    async with parts_of(source) as parts:
        held = [await parts.buffers.take(CHUNK, urgent=True) for _ in range(40)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(parts.small.stage_paths, names(4), push=False))
            await trio.testing.wait_all_tasks_blocked()
            node = await parts.namespace.resolve(b"d/1")
            assert node.version is not None
            await parts.fetcher.chunk(node, await parts.staging.file(node.version, b"d/1"), 0)
            held.clear()
        read = [path for batch in source.batches for path in batch] + parts.by_itself()
        assert sorted(read) == names(4)
