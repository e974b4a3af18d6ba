"""Random readers of large files who say nothing: what their reads cost the source. Virtual time."""

from __future__ import annotations

import itertools
import random

import pytest
import trio
import trio.testing

from hfs.policies.geometry import Extent
from tests.support.read_parts import CHUNK, Parts, daemon, with_file


async def test_page_faults_of_one_block_and_of_hot_blocks_cost_one_source_read() -> None:
    """The kernel may let any page go: what it asks for again must not cost the source again and again."""
    async with daemon(with_file(10_000 * CHUNK)) as parts:
        number = await parts.open(b"f")
        for offset in (0, 4096, 61_440):
            assert await parts.read(number, offset, 4096) == parts.source.content(b"f", Extent(offset, offset + 4096))
        assert bytes(parts.read_path.read_nowait(parts.handles.file(number), 8192, 4096) or b"") == (
            parts.source.content(b"f", Extent(8192, 12_288))
        )
        assert len(parts.source.reads) == 1
        for i in range(1, 300):
            await parts.read(number, 4096 * (i % 2), 4096)
            await parts.read(number, i * 7 * CHUNK, 4096)
        roots = [extent for _, extent in parts.source.reads if extent.start == 0]
        assert len(roots) == 2  # the second time it is known to be hot


async def test_a_dense_reader_waits_for_the_fill_and_the_source_sees_file_order() -> None:
    source = with_file(64 * CHUNK)
    source.delay_s = 0.1
    async with daemon(source, workers=4) as parts:
        async with trio.open_nursery() as readers:

            async def read(seed: int) -> None:
                rng, number = random.Random(seed), await parts.open(b"f")
                for _ in range(400):
                    offset = rng.randrange(64 * CHUNK - 4096)
                    assert await parts.read(number, offset, 4096) == parts.source.content(
                        b"f", Extent(offset, offset + 4096)
                    )

            for seed in range(8):
                readers.start_soon(read, seed)
        chunks = [extent.start for _, extent in parts.source.reads if extent.size == CHUNK]
        assert sorted(chunks) == [index * CHUNK for index in range(64)]
        assert sum(a < b for a, b in itertools.pairwise(chunks)) >= 0.9 * 63
        assert parts.metrics["source_wait_ns"] > 1e9


async def test_with_a_chunk_of_a_group_come_those_around_it_before_the_rest() -> None:
    source = with_file(40 * CHUNK)
    source.delay_s = 0.1
    async with daemon(source, workers=1) as parts:
        number = await parts.open(b"f")
        for group, i in itertools.product((30, 10, 22, 38, 34), range(12)):
            offset = group * CHUNK + i * 7 % 12 * 50_000
            assert await parts.read(number, offset, 20_000) == source.content(b"f", Extent(offset, offset + 20_000))
        await trio.sleep(1)
        chunks = [extent.start // CHUNK for _, extent in source.reads if extent.size == CHUNK]
        last = chunks.index(34)
        assert {33, 35} <= set(chunks[last : last + 6])


async def test_pages_that_the_kernel_has_let_go_are_pushed_again_with_their_row_then_with_their_chunk() -> None:
    async with daemon(with_file(2 * CHUNK), push=True) as parts:
        number = await parts.open(b"f")
        await parts.read(number, 0, CHUNK)
        await trio.testing.wait_all_tasks_blocked()
        parts.pushed.clear()
        await parts.read(number, 4096, 20_000)  # no page fault
        assert not parts.pushed
        row = 128 << 10
        for i in range(15):
            await parts.read(number, 61_440 * i, 4096)
            await trio.testing.wait_all_tasks_blocked()
        assert parts.pushed == [(b"f", 61_440 * i // row * row, row) for i in range(15)]
        parts.pushed.clear()
        await parts.read(number, 4096, 4096)
        await trio.testing.wait_all_tasks_blocked()
        assert parts.pushed == [(b"f", 0, CHUNK)]
        parts.staging.broken = True
        for _ in range(32):
            parts.faults.put_back_nowait(parts.handles.file(number), Extent(0, 4096))
        await trio.testing.wait_all_tasks_blocked()
        assert len(parts.pushed) == 1


async def _epochs(parts: Parts, order: list[list[int]]) -> list[int]:
    """Reads chunks in the order of each epoch, all their samples of 20 KiB at random; READs that went alone in each."""
    rng, number, alone = random.Random(5), await parts.open(b"f"), []
    for chunks in order:
        before = parts.metrics["reads_bypass"]
        for chunk in chunks:
            for sample in rng.sample(range(51), 51):
                offset = chunk * CHUNK + sample * 20_480
                assert await parts.read(number, offset, 20_480) == parts.source.content(
                    b"f", Extent(offset, offset + 20_480)
                )
            await trio.testing.wait_all_tasks_blocked()
        alone.append(parts.metrics["reads_bypass"] - before)
    return alone


@pytest.mark.slow
async def test_an_order_of_chunks_that_repeats_is_fetched_ahead_although_the_cache_is_full() -> None:
    async with daemon(with_file(20 * CHUNK), workers=4, push=True) as parts:
        parts.staging.room_bytes = 0
        alone = await _epochs(parts, [random.Random(1).sample(range(20), 20)] * 5)
        assert alone[0] >= 800
        assert alone[-1] <= 0.2 * alone[0]
        # Else nobody would see whether the guess was right.
        assert parts.metrics["guessed_chunks"] > 10 + sum(size == CHUNK for _, _, size in parts.pushed)
        bytes_read = sum(extent.size for _, extent in parts.source.reads)
        assert bytes_read <= 1.05 * 5 * alone[0] * 24_576


@pytest.mark.slow
async def test_orders_that_never_repeat_cost_next_to_nothing() -> None:
    async with daemon(with_file(20 * CHUNK), workers=4) as parts:
        parts.staging.room_bytes = 0
        await _epochs(parts, [random.Random(epoch).sample(range(20), 20) for epoch in range(3)])
        assert parts.metrics["guessed_chunks"] <= 2
