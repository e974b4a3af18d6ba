"""Hints of records much smaller than a chunk: fetched in the order of the file, and waited for. Virtual time."""

from __future__ import annotations

import numpy as np
import pytest
import trio

from hfs.mountd.wire.hints import LayoutFrame
from hfs.policies.geometry import Extent
from hfs.policies.prefetch.miss_policy import BLOCK_BYTES
from tests.support.fake_source import FakeSource
from tests.support.hinted_orders import joined, order, samples_of, told
from tests.support.read_parts import CHUNK, daemon


def records_of(count: int) -> tuple[FakeSource, LayoutFrame, list[int]]:
    """A file of `count` chunks of tiny records, and all of these in no order."""
    source = FakeSource()
    source.file(b"f", 11, count * CHUNK)
    source.delay_s = 1.0
    frame = samples_of(b"f", count * CHUNK, CHUNK // 256)
    return source, frame, np.random.default_rng(1).permutation(256 * count).tolist()


async def test_tiny_records_at_random_are_swept_and_who_misses_one_waits_for_its_turn() -> None:
    source, frame, indices = records_of(40)
    async with daemon(source, workers=1, coalesce_bytes=100 * CHUNK) as parts:
        learner = await joined(parts, frame)
        await told(learner, order(indices))
        handle = await parts.open(b"f")
        await trio.sleep(2.5)
        async with trio.open_nursery() as nursery:
            # More than are fetched alone.
            for chunk in (39, 7, 20, 35, 12, 28, 17, 33, 9, 24, 37, 14, 30, 6, 22, 38, 11, 26, 34, 16, 29, 19):

                async def read(offset: int) -> None:
                    assert await parts.read(handle, offset, 4096) == source.content(b"f", Extent(offset, offset + 4096))

                nursery.start_soon(read, chunk * CHUNK)
        chunks = [extent.start // CHUNK for _, extent in source.reads if extent.size == CHUNK]
        assert chunks == list(range(len(chunks)))
        assert 0 < len(source.reads) - len(chunks) <= 16


@pytest.mark.parametrize("reason", ["the learner has gone", "nothing is fetched ahead"])
async def test_who_waits_for_a_turn_that_does_not_come_fetches_it(reason: str) -> None:
    source, frame, indices = records_of(400)
    async with daemon(source, workers=2, coalesce_bytes=1000 * CHUNK) as parts:
        learner = await joined(parts, frame)
        await told(learner, order(indices))
        handle = await parts.open(b"f")
        await trio.sleep(2.5)
        for block in range(16):
            await parts.read(handle, 399 * CHUNK + block * 7 % 16 * BLOCK_BYTES, 4096)
        assert len([extent for _, extent in source.reads if extent.size < CHUNK]) == 16
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.read, handle, 398 * CHUNK, 4096)
            await trio.sleep(3)
            assert 398 not in {extent.start // CHUNK for _, extent in source.reads}
            if reason == "the learner has gone":
                learner.leave()
            source.threads.demand_waits = True
            with trio.fail_after(6):
                await parts.read(handle, 398 * CHUNK, 4096)
