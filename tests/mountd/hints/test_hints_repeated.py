"""What hints keep and what they throw away: plans go with their layout and cost nothing each time, a defect is no end,
and nothing is read from the source that nobody can keep. Samples without bytes are passed over; records much smaller
than a chunk are fetched in the order of the file, and waited for. Virtual time."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import trio

from hfs.mountd.hints.page_cache_warmer import PageCacheWarmer, ReadWays
from hfs.mountd.namespace import pages_lost
from hfs.mountd.wire.hints import At, LayoutFrame
from hfs.policies.geometry import Extent
from hfs.policies.prefetch.miss_policy import BLOCK_BYTES
from tests.conftest import Logs
from tests.support.fake_source import FakeSource
from tests.support.hinted_orders import SIZE, joined, list_of, order, samples_of, source_of, told
from tests.support.read_parts import CHUNK, daemon


def large(size: int) -> FakeSource:
    source = FakeSource()
    source.file(b"f", 11, size)
    return source


async def test_what_was_planned_goes_with_its_layout() -> None:
    async with daemon(large(4 * CHUNK), workers=1, push=True) as parts:
        learner = await joined(parts, samples_of(b"f", 4 * CHUNK, CHUNK // 4))
        await parts.open(b"f")
        await told(learner, order(list(range(16))))
        await trio.sleep(10)
        plan = learner.plan
        assert plan is not None
        version = plan.staged[0].version
        assert parts.learners.plans.unit(version, 0) == (plan, 0)
        assert plan.pushed
        learner.leave()
        for count in range(1, 6):
            (await joined(parts, list_of(count))).leave()
        await trio.sleep(10)
        assert parts.learners.plans.unit(version, 0) is None
        assert plan not in list(parts.learners.plans)


async def test_progress_does_not_look_at_all_that_is_planned() -> None:
    class Planned(dict[Any, Any]):
        def items(self) -> Any:
            raise AssertionError

        __iter__ = items

    async with daemon(large(4 * CHUNK), workers=1) as parts:
        learner = await joined(parts, samples_of(b"f", 4 * CHUNK, CHUNK // 4))
        await told(learner, order(list(range(16))))
        await trio.sleep(10)
        parts.learners.plans._of_version = Planned(parts.learners.plans._of_version)
        for position in range(16):
            await told(learner, At(position))
        other = await joined(parts, list_of(3), process="other")
        other.leave()
        parts.learners.plans._of_version = {}


async def test_a_defect_while_something_is_made_ready_is_no_end(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.expect("unforeseen error while warming the page cache")
    async with daemon(source_of(8), workers=1) as parts:
        learner = await joined(parts, list_of(8))
        with monkeypatch.context() as broken:
            broken.setattr(PageCacheWarmer, "files", lambda *_: 1 // 0)
            await told(learner, order(list(range(8))))
            await trio.sleep(10)
        assert parts.metrics["unexpected_errors"] > 0
        assert len(parts.source.reads) == 8
        handle = await parts.open(b"d/3")
        assert len(await parts.read(handle, 0, SIZE)) == SIZE


async def test_nothing_is_pushed_once_the_kernel_opens_without_asking() -> None:
    """Nobody knows then whether a reader has the file open, and waits for a page that the push waits for too."""
    asked: list[int] = []

    def pushes_small() -> bool:
        asked.append(1)
        return len(asked) % 2 == 1  # it changes while the bytes are read

    async with daemon(source_of(3), workers=1, push=True) as parts:
        node = await parts.namespace.lookups.resolve(b"d/1")
        parts.namespace.holds.referenced(node)
        learner = await joined(parts, list_of(3))
        await told(learner, order([1, 2, 0]))
        await trio.sleep(5)
        parts.pushed.clear()
        pages_lost(node)
        parts.warmer.ways = ReadWays(pushes_small, lambda: False)
        await told(learner, order([1, 2, 0], 1))
        await trio.sleep(5)
        assert len(asked) == 2
        assert parts.pushed == []


async def test_a_file_that_is_larger_than_the_cache_is_not_read_to_be_thrown_away() -> None:
    async with daemon(source_of(1, 20 * CHUNK), workers=4) as parts:
        parts.staging.room_bytes = parts.staging.capacity_bytes = 5 * CHUNK
        learner = await joined(parts, list_of(1))
        await told(learner, order([0]))
        await trio.sleep(100)
        assert len(parts.source.reads) <= 5 + 4
        handle = await parts.open(b"d/0")
        for chunk in range(20):
            assert len(await parts.read(handle, chunk * CHUNK, 1000)) == 1000


async def test_while_the_cache_disk_rests_no_chunk_is_read_to_be_thrown_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async with daemon(large(8 * CHUNK), workers=4) as parts:
        learner = await joined(parts, samples_of(b"f", 8 * CHUNK, CHUNK // 4))
        with monkeypatch.context() as resting:
            resting.setattr(parts.staging, "admits_nowait", lambda *_: False)
            resting.setattr(parts.staging, "put_nowait", lambda *_, **__: False)
            await told(learner, order(list(range(32))))
            await trio.sleep(100)
            assert parts.source.reads == []
        await trio.sleep(10)
        assert len(parts.source.reads) == 8  # and then it goes on
        assert learner.shown()["staged_share"] == 1.0


async def test_samples_without_bytes_are_passed_over() -> None:
    source = FakeSource()
    source.file(b"f", 11, 5 * CHUNK)
    # Every second sample, and the first and the last, is empty; the others are a chunk each.
    starts = np.array([0, *np.repeat(np.arange(6), 2)[:-1]], "<i8")
    frame = msgspec.structs.replace(samples_of(b"f", 5 * CHUNK, CHUNK), starts=starts.tobytes())
    async with daemon(source, workers=1) as parts:
        learner = await joined(parts, frame)
        await told(learner, order([0, 5, 2, 1, 10, 9, 4, 3, 6, 7, 8]))
        await trio.sleep(10)
        await told(learner, At(11))
        assert sorted(extent.start // CHUNK for _, extent in source.reads) == [0, 1, 2, 3, 4]
        await told(learner, order([0, 10, 2], epoch=1))
        await trio.sleep(10)
        assert len(source.reads) == 5


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
