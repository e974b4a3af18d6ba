"""One read, from handle to bytes: which tier answers, what is fetched, what happens when a tier fails. Virtual time."""

from __future__ import annotations

import errno

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from hfs.mountd.core.errors import SourceError
from hfs.policies.geometry import Extent
from tests.support.fake_source import FakeSource
from tests.support.read_parts import CHUNK, daemon, with_file


async def test_many_readers_of_one_chunk_read_the_source_once() -> None:
    async with daemon(with_file(CHUNK)) as parts:
        number = await parts.open(b"f")
        async with trio.open_nursery() as readers:
            for i in range(20):
                readers.start_soon(parts.read, number, i * 100, 100)
        assert len(parts.source.reads) == 1
        assert parts.metrics["reads_flight"] == 19


async def test_until_it_is_written_a_chunk_is_answered_from_memory() -> None:
    async with daemon(with_file(CHUNK)) as parts:
        parts.staging.at_once = False
        number = await parts.open(b"f")
        await parts.read(number, 0, 10)
        assert await parts.read(number, 500, 10) == parts.source.content(b"f", Extent(500, 510))
        assert len(parts.source.reads) == 1
        parts.staging.write()
        assert parts.buffers.used_bytes == 0  # nobody holds the chunk any more


async def test_a_chunk_that_is_not_admitted_serves_the_next_read_too() -> None:
    async with daemon(with_file(CHUNK)) as parts:
        parts.staging.room_bytes = 0
        number = await parts.open(b"f")
        for offset in (0, 1000, 2000):
            await parts.read(number, offset, 1000)
        assert len(parts.source.reads) == 1


async def test_staged_pages_that_are_not_in_memory_are_read_in_a_thread() -> None:
    async with daemon(with_file(5000)) as parts:
        number = await parts.open(b"f")
        await parts.read(number, 0, 10)
        await trio.testing.wait_all_tasks_blocked()
        parts.staging.would_block = True
        assert await parts.read(number, 20, 10) == parts.source.content(b"f", Extent(20, 30))
        assert len(parts.source.reads) == 1


async def test_the_first_random_touch_of_a_large_file_is_fetched_alone() -> None:
    async with daemon(with_file(1000 * CHUNK)) as parts:
        number = await parts.open(b"f")
        offset = 500 * CHUNK + 12345
        assert await parts.read(number, offset, 19_000) == parts.source.content(b"f", Extent(offset, offset + 19_000))
        ((_, extent),) = parts.source.reads
        assert extent.size <= 28 << 10
        assert parts.metrics["reads_bypass"] == 1


async def test_a_sequential_reader_finds_its_chunks_fetched_ahead() -> None:
    async with daemon(with_file(12 * CHUNK), workers=4) as parts:
        number = await parts.open(b"f")
        for offset in range(0, 12 * CHUNK, CHUNK // 4):
            assert await parts.read(number, offset, CHUNK // 4) == parts.source.content(
                b"f", Extent(offset, offset + CHUNK // 4)
            )
            await trio.testing.wait_all_tasks_blocked()
        assert parts.metrics["prefetched_chunks"] >= 9
        assert sum(extent.size for _, extent in parts.source.reads) <= 12 * CHUNK + CHUNK // 2


async def test_readahead_is_pushed_but_for_what_shows_the_reader() -> None:
    """All but the beginning of each 4 MiB (here of each chunk): its READ tells how far the reader is."""
    async with daemon(with_file(8 * CHUNK), push=True, workers=2) as parts:
        number = await parts.open(b"f")
        for offset in range(0, 8 * CHUNK, CHUNK // 4):
            await parts.read(number, offset, CHUNK // 4)
            await trio.testing.wait_all_tasks_blocked()
        shown = 256 << 10
        assert parts.pushed
        assert all(offset % CHUNK == shown and size == CHUNK - shown for _, offset, size in parts.pushed)


async def test_dense_random_reads_fill_the_file() -> None:
    async with daemon(with_file(16 * CHUNK), workers=4) as parts:
        number = await parts.open(b"f")
        for i in range(40):
            await parts.read(number, i * 7 % 16 * CHUNK + 5000 * (i % 11), 1000)
            await trio.testing.wait_all_tasks_blocked()
        file = parts.handles.file(number).file
        assert file.complete
        assert sum(extent.size for _, extent in parts.source.reads) <= 18 * CHUNK


async def test_a_file_opened_anew_for_each_sample_is_filled_too() -> None:
    async with daemon(with_file(16 * CHUNK), workers=4) as parts:
        for i in range(40):
            number = await parts.open(b"f")
            await parts.read(number, i * 7 % 16 * CHUNK + 5000 * (i % 11), 1000)
            parts.opening.close(number)
            await trio.testing.wait_all_tasks_blocked()
        number = await parts.open(b"f")
        assert parts.handles.file(number).file.complete


async def test_four_streams_without_room_read_each_chunk_once() -> None:
    source = FakeSource()
    for i in range(4):
        source.file(b"%d" % i, 100 + i, CHUNK)
    async with daemon(source, push=True) as parts:
        parts.staging.room_bytes = 0
        numbers = [await parts.open(b"%d" % i) for i in range(4)]
        for offset in range(0, CHUNK, CHUNK // 4):
            for number in numbers:
                await parts.read(number, offset, CHUNK // 4)
        assert len(source.reads) == 4


async def test_pushes_that_the_kernel_holds_up_never_take_the_memory_that_readers_need() -> None:
    """A push may wait for a page that a READ waits to be given: it must not hold what that READ needs."""
    source = with_file(64 * CHUNK)
    async with daemon(source, push=True) as parts:
        parts.staging.room_bytes = 0  # every chunk is unstaged, so every chunk is pushed
        parts.stuck = True
        number = await parts.open(b"f")
        for index in range(64):
            await parts.read(number, index * CHUNK, CHUNK)
        assert parts.buffers.used_bytes <= parts.buffers.total_bytes // 2


async def test_opening_a_small_file_puts_it_into_the_page_cache() -> None:
    async with daemon(with_file(5000), push=True) as parts:
        number = await parts.open(b"f")
        assert parts.pushed == [(b"f", 0, 5000)]
        await parts.open(b"f")
        assert len(parts.pushed) == 1
        await parts.read(number, 0, 10)  # the kernel asks again: its pages have gone
        await parts.open(b"f")
        assert len(parts.pushed) == 2


async def test_a_hung_source_holds_an_open_for_two_seconds_only() -> None:
    async with daemon(with_file(5000), push=True) as parts:
        await parts.namespace.lookups.resolve(b"f")
        parts.source.hang = True
        start = trio.current_time()
        await parts.open(b"f")
        assert trio.current_time() - start == pytest.approx(2.0)


async def test_siblings_are_staged_after_eight_opens() -> None:
    source = FakeSource()
    for i in range(40):
        source.file(b"%02d" % i, 100 + i, 1000)
    async with daemon(source, workers=4, push=True) as parts:
        for i in range(8):
            parts.opening.close(await parts.open(b"%02d" % i))
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(1)
        assert parts.metrics["sibling_files"] == 32
        for i in range(8, 40):
            parts.opening.close(await parts.open(b"%02d" % i))
        assert sorted(path for path, _ in source.reads) == [b"%02d" % i for i in range(40)]  # each byte once
        assert parts.staging.pins == 0


async def test_a_handle_pins_and_releases() -> None:
    async with daemon(with_file(5 * CHUNK)) as parts:
        number = await parts.open(b"f")
        assert parts.staging.pins == 1
        version = parts.handles.file(number).file.version
        parts.opening.close(number)
        assert parts.staging.pins == 0
        assert parts.source.released == [version]
        with pytest.raises(SourceError) as caught:
            parts.handles.file(number)
        assert caught.value.errno == errno.ESTALE


@pytest.mark.slow
@given(
    size=st.integers(1, 6 * CHUNK),
    reads=st.lists(st.tuples(st.integers(0, 7 * CHUNK), st.integers(1, 2 * CHUNK), st.integers(0, 3)), max_size=8),
    random=st.random_module(),
)
def test_any_reads_in_any_schedule_give_the_sources_bytes(
    size: int, reads: list[tuple[int, int, int]], random: object
) -> None:
    async def main() -> None:
        async with daemon(with_file(size), workers=2, push=True) as parts:
            number = await parts.open(b"f")

            async def one(offset: int, length: int, mood: int) -> None:
                if mood == 1:
                    parts.staging.would_block = not parts.staging.would_block
                elif mood == 2:
                    parts.staging.broken = not parts.staging.broken
                elif mood == 3:
                    parts.staging.room_bytes = 0 if parts.staging.room_bytes else 1 << 60
                got = await parts.read(number, offset, length)
                end = min(offset + length, size)
                assert got == parts.source.content(b"f", Extent(min(offset, end), end))

            async with trio.open_nursery() as readers:
                for row in reads:
                    readers.start_soon(one, *row)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
