"""What hints keep and what they throw away: plans go with their layout and cost nothing each time, a defect is no end,
and nothing is read from the source that nobody can keep."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from hfs.mountd.hints.page_cache_warmer import PageCacheWarmer, ReadWays
from hfs.mountd.namespace import pages_lost
from hfs.mountd.wire.hints import At
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
        parts.warmer._ways = ReadWays(pushes_small, lambda: False)
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
