"""Small files that the data plane does not fetch: each is read once, and none of two versions."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from hfs.mountd.core.errors import SourceError, StagingError, VersionChanged
from hfs.mountd.fetch import Become, Goal
from hfs.policies.geometry import Extent
from tests.support.small_parts import SIZE, become, names, parts_of, tree


async def test_files_are_staged_and_known_afterwards() -> None:
    async with parts_of(tree()) as parts:
        assert become(await parts.stage(*names(4))) == [Become.FETCHED] * 4
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(parts.read()) == names(4)
        assert all(map(parts.is_right, names(4)))
        calls = len(parts.source.calls)
        found = [(await parts.namespace.lookups.resolve(name)).attributes.inode for name in names(4)]
        assert found == [100, 101, 102, 103]
        assert len(parts.source.calls) == calls  # looked up from memory
        parts.rest()


async def test_two_who_want_the_same_files_have_each_read_once() -> None:
    async with parts_of(tree()) as parts, trio.open_nursery() as nursery:
        found: list[list[object]] = []

        async def stage(*paths: bytes) -> None:
            found.append(become(await parts.stage(*paths)))

        nursery.start_soon(stage, *names(4))
        nursery.start_soon(stage, *names(4))
        await trio.sleep(1)
        assert sorted(str(one) for some in found for one in some) == ["Become.FETCHED"] * 4 + ["Become.HERE"] * 4
        assert sorted(parts.read()) == names(4)


# -- what goes wrong with one file -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [b"", b".", b"d/..", b"d/.", b"d/", b"d/a\0b", b"d/0/x", b"none/0", b"../x", b"d"])
async def test_a_path_that_names_no_file_is_an_error_of_its_own(path: bytes) -> None:
    async with parts_of(tree()) as parts:
        fetched, refused = await parts.stage(b"d/0", path)
        assert become([fetched]) == [Become.FETCHED]
        assert isinstance(refused, SourceError)


async def test_a_file_that_changes_while_it_is_read_is_never_two_versions() -> None:
    async with parts_of(tree()) as parts:
        parts.source.read_faults[b"d/1"] = lambda: parts.source.file(b"d/1", 101, SIZE + 7, time_ns=9)
        assert become(await parts.stage(*names(4)))[1] is VersionChanged
        await trio.sleep(61)
        assert become(await parts.stage(b"d/1")) == [Become.FETCHED]
        await trio.testing.wait_all_tasks_blocked()
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
        assert sorted(parts.read()) == names(4)


# -- a cache that does not take it -----------------------------------------------------------------------------------


async def test_a_full_cache_is_not_filled_nor_read_for() -> None:
    async with parts_of(tree(40)) as parts:
        parts.staging.room_bytes = 3 * SIZE
        outcomes = become(await parts.stage(*names(40)))
        assert (
            sorted(map(str, outcomes))
            == ["<class 'hfs.mountd.core.errors.StagingError'>"] * 37 + ["Become.FETCHED"] * 3
        )
        read = len(parts.read())
        assert read <= 16
        assert become(await parts.stage(*names(40))).count(StagingError) == 37
        assert len(parts.read()) == read
        parts.staging.room_bytes = 100 * SIZE
        await trio.testing.wait_all_tasks_blocked()
        assert become(await parts.stage(*names(40))).count(Become.FETCHED) == 37


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


# -- and their readers -------------------------------------------------------------------------------------------------


async def test_a_reader_waits_for_its_file_alone_and_nothing_is_read_twice() -> None:
    async with parts_of(tree(40)) as parts:
        for name in names(40):
            await parts.namespace.lookups.resolve(name)
        parts.source.delay_s = 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.stage, *names(40))
            await trio.sleep(0.5)
            for name in (b"d/2", b"d/39"):  # one that is being read, and one whose turn has not come
                start_s = trio.current_time()
                assert await parts.demand(name) == parts.source.content(name, Extent(0, SIZE))
                assert trio.current_time() - start_s <= 1
        assert sorted(parts.read()) == sorted(names(40))


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


async def test_what_is_only_held_is_answered_from_memory_and_not_staged() -> None:
    async with parts_of(tree(4)) as parts:
        for _ in range(2):
            outcomes = await parts.small_files.stage_paths(names(4), Goal.IN_MEMORY)
        assert become(outcomes) == [Become.HERE] * 4
        assert not parts.staging.queue
        assert not parts.staging.chunks
        assert await parts.demand(b"d/3") == parts.source.content(b"d/3", Extent(0, SIZE))
        assert sorted(parts.read()) == names(4)
