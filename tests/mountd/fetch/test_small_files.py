"""Small files are staged in batches: each once, and none of two versions."""

from __future__ import annotations

import errno

import pytest
import trio
import trio.testing

from hfs.mountd.base.errors import SourceError, SourceTimeout, StagingError
from hfs.mountd.fetch import BATCH_FILES, Become
from tests.support.small_parts import CHUNK, SIZE, become, names, parts_of, tree


async def test_files_are_staged_without_a_stat_of_each_and_known_afterwards() -> None:
    async with parts_of(tree()) as parts:
        assert become(await parts.stage(*names(4))) == [Become.FETCHED] * 4
        await trio.testing.wait_all_tasks_blocked()
        assert parts.source.batches == [names(4)]
        assert all(map(parts.is_right, names(4)))
        calls = len(parts.source.calls)
        assert [(await parts.namespace.lookups.resolve(name)).attributes.inode for name in names(4)] == [
            100,
            101,
            102,
            103,
        ]
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
        fetched, refused = await parts.stage(b"d/0", path)
        assert become([fetched]) == [Become.FETCHED]
        assert isinstance(refused, SourceError)


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
            node = await parts.namespace.lookups.resolve(b"d/0")
            assert node.attributes.size == SIZE + 1
        await trio.testing.wait_all_tasks_blocked()
        assert (await parts.namespace.lookups.resolve(b"d/0")) is node
        assert not node.stale
        assert parts.is_right(b"d/0")


async def test_what_somebody_looks_up_while_it_is_read_is_not_read_again() -> None:
    """The look-up is under way when the batch comes back, and the name was not known: its answer is waited for."""
    async with parts_of(tree()) as parts:
        await parts.namespace.lookups.resolve(b"d")
        parts.source.delay_s = 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.stage, *names(4))
            await trio.sleep(3.5)  # the last one is being read
            assert (await parts.namespace.lookups.resolve(b"d/1")).attributes.size == SIZE
        await trio.testing.wait_all_tasks_blocked()
        assert parts.by_itself() == []
        assert all(map(parts.is_right, names(4)))


async def test_what_a_reader_fetches_already_is_not_read_again() -> None:
    async with parts_of(tree()) as parts:
        for name in names(4):
            await parts.namespace.lookups.resolve(name)
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
        await parts.namespace.lookups.resolve(b"d")
        parts.source.hang = True
        assert become(await parts.stage(*names(4))) == [SourceTimeout] * 4
        await trio.lowlevel.checkpoint()  # from Python 3.12 on, until then a task holds what was cancelled last
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
        assert 0 < parts.fetch.buffers.used_bytes <= parts.fetch.buffers.total_bytes // 2
        assert parts.held(parts.source.tree[b"d/7"].version(parts.source.source_id)) is not None
        parts.staging.write()
        await trio.lowlevel.checkpoint()
        parts.rest()


async def test_pages_are_pushed_only_where_the_kernel_knows_the_file() -> None:
    async with parts_of(tree()) as parts:
        parts.namespace.holds.referenced(await parts.namespace.lookups.resolve(b"d/1"))
        await parts.stage(*names(4))
        await trio.testing.wait_all_tasks_blocked()
        assert parts.pushed == [b"d/1"]
