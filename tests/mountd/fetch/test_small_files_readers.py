"""A reader of a small file that comes with a batch never waits for the batch, and nothing is read twice."""

from __future__ import annotations

from functools import partial

import pytest
import trio
import trio.testing

from hfs.mountd.fetch import Goal
from hfs.mountd.fetch.small_files import Become
from hfs.policies.geometry import Extent
from tests.support.small_parts import CHUNK, SIZE, become, names, parts_of, tree


async def test_a_reader_has_what_is_being_read_as_soon_as_it_is_here() -> None:
    async with parts_of(tree(16)) as parts:
        for name in names(16):
            await parts.namespace.lookups.resolve(name)
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
            await parts.namespace.lookups.resolve(name)
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
            await parts.namespace.lookups.resolve(name)
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
            await parts.namespace.lookups.resolve(name)
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
            await parts.namespace.lookups.resolve(name)
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
        node = await parts.namespace.lookups.resolve(b"d/1")
        assert node.version is not None
        file = await parts.staging.files.get(node.version, b"d/1")
        held = [await parts.fetch.buffers.take(CHUNK, urgent=True) for _ in range(40)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(parts.fetch.small_files.stage_paths, names(2), Goal.STAGED, push=False))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(parts.fetch.fetcher.ahead, node, file, 0)
            await trio.testing.wait_all_tasks_blocked()
            held.clear()
        assert sorted(path for path, _ in source.reads) == names(2)


async def test_a_reader_does_not_wait_for_a_batch_that_hangs_before_its_file() -> None:
    async with parts_of(tree(16)) as parts:
        for name in names(16):
            await parts.namespace.lookups.resolve(name)
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
            await parts.namespace.lookups.resolve(name)
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
            assert len(parts.fetch.fetcher.batches) == 0
        assert got == [parts.source.content(b"d/0", Extent(0, SIZE))]
        await trio.testing.wait_all_tasks_blocked()
        parts.rest()


async def test_what_a_reader_waits_for_is_kept_for_him_when_the_cache_is_full() -> None:
    async with parts_of(tree(2)) as parts:
        for name in names(2):
            await parts.namespace.lookups.resolve(name)
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
            outcomes = await parts.fetch.small_files.stage_paths(names(4), Goal.IN_MEMORY, push=False)
        assert become(outcomes) == [Become.HERE] * 4
        assert not parts.staging.queue
        assert not parts.staging.chunks
        assert await parts.demand(b"d/3") == parts.source.content(b"d/3", Extent(0, SIZE))
        assert parts.by_itself() == []
        assert parts.fetch.buffers.used_bytes == 0  # of what is held there are copies, which do not keep a whole batch


async def test_without_a_time_to_live_each_batch_asks_anew() -> None:
    async with parts_of(tree(2), ttl_s=0) as parts:
        assert become(await parts.stage(*names(2))) == [Become.FETCHED] * 2
        await trio.testing.wait_all_tasks_blocked()
        parts.source.file(b"d/0", 100, SIZE, time_ns=7)
        assert become(await parts.stage(*names(2))) == [Become.FETCHED, Become.HERE]
        await trio.testing.wait_all_tasks_blocked()
        assert all(map(parts.is_right, names(2)))


@pytest.mark.parametrize("swept", [False, True])
async def test_what_was_staged_under_a_name_that_is_forgotten_is_not_read_again(swept: bool) -> None:
    """Epochs are longer than names are believed."""
    source = tree(40)
    async with parts_of(source) as parts:
        await parts.stage(*names(40))
        await trio.sleep(61)
        if swept:
            assert await parts.namespace.names.sweep() == 40
        assert become(await parts.stage(*names(40))) == [Become.HERE] * 40
        assert sorted(path for path, _ in source.reads) == sorted(names(40))
        source.file(b"d/7", 107, SIZE, time_ns=2)
        await trio.sleep(61)
        await parts.stage(*names(40))
        assert len(source.reads) == 41
        await trio.testing.wait_all_tasks_blocked()
        assert parts.is_right(b"d/7")


async def test_what_an_earlier_run_has_staged_is_not_read_again() -> None:
    source = tree(200)
    async with parts_of(source) as parts:
        parts.staging.all_in_memory = False
        for i in range(100, 200):
            version = source.tree[b"d/%d" % i].version(source.source_id)
            (await parts.staging.files.get(version, b"d/%d" % i)).present.add(0)
        for start in range(0, 200, 10):
            await parts.fetch.small_files.stage_paths(
                [b"d/%d" % i for i in range(start, start + 10)], Goal.STAGED, push=False
            )
        # Of the first hundred nothing was staged, so the looking stops; one vain batch later it goes on.
        read = [path for batch in source.batches for path in batch]
        assert set(range(100)) <= {int(path[2:]) for path in read}
        assert len(read) <= 110


async def test_what_a_reader_fetches_while_the_batch_waits_for_memory_is_not_read_twice() -> None:
    source = tree(4)
    async with parts_of(source) as parts:
        held = [await parts.fetch.buffers.take(CHUNK, urgent=True) for _ in range(40)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(parts.fetch.small_files.stage_paths, names(4), Goal.STAGED, push=False))
            await trio.testing.wait_all_tasks_blocked()
            node = await parts.namespace.lookups.resolve(b"d/1")
            assert node.version is not None
            await parts.fetch.fetcher.chunk(node, await parts.staging.files.get(node.version, b"d/1"), 0)
            held.clear()
        read = [path for batch in source.batches for path in batch] + parts.by_itself()
        assert sorted(read) == names(4)
