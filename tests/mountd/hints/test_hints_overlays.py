"""Hints where overlays open what is staged: it is read ahead there, not pushed, and the sampler says what was used."""

from __future__ import annotations

import pytest
import trio

from hfs.mountd.namespace import pages_given
from hfs.mountd.wire.hints import At
from hfs.policies.geometry import Extent
from tests.support.fake_source import FakeSource
from tests.support.hinted_orders import SIZE, joined, list_of, order, samples_of, source_of, told
from tests.support.read_parts import CHUNK, daemon


async def test_where_overlays_read_them_staged_files_are_read_ahead_from_the_disk_and_nothing_is_pushed() -> None:
    async with daemon(source_of(3), workers=1, push=True) as parts:
        nodes = [await parts.namespace.lookups.resolve(b"d/%d" % i) for i in range(3)]
        for node in nodes:
            parts.namespace.holds.referenced(node)
        learner = await joined(parts, list_of(3))
        await told(learner, order([1, 2, 0]))
        await trio.sleep(5)
        pages_given(nodes[2])  # before there were overlays
        parts.built.has_overlays = parts.staging.would_block = True
        parts.staging.ahead.clear()
        parts.pushed.clear()
        await told(learner, order([1, 2, 0], 1))
        await trio.sleep(5)
        assert parts.staging.ahead == [(b"d/%d" % i, Extent(0, SIZE)) for i in (1, 2, 0)]
        assert parts.pushed == []


async def test_where_overlays_read_them_objects_of_files_without_a_node_are_read_ahead_too() -> None:
    async with daemon(source_of(3), workers=1, push=True) as parts:
        parts.built.has_overlays = True
        learner = await joined(parts, list_of(3))
        await told(learner, order([1, 2, 0]))
        await trio.sleep(5)
        assert learner.plan is not None
        learner.plan.ready.update({0, 2})  # as if the data plane had fetched these
        parts.staging.ahead.clear()
        await told(learner, order([0, 2], 1))
        await trio.sleep(5)
        assert parts.staging.ahead == [(b"d/0", Extent(0, SIZE)), (b"d/2", Extent(0, SIZE))]
        assert parts.metrics["hinted_readahead_bytes"] >= 2 * SIZE


@pytest.mark.parametrize("is_open", [False, True])
async def test_chunks_of_a_file_that_overlays_read_are_read_ahead_unless_somebody_reads_it_through_us(
    is_open: bool,
) -> None:
    source = FakeSource()
    source.file(b"f", 11, 3 * CHUNK)
    async with daemon(source, workers=1, push=True) as parts:
        learner = await joined(parts, samples_of(b"f", 3 * CHUNK, CHUNK // 4))
        await told(learner, order([0, 4, 8]))
        await trio.sleep(5)
        if is_open:
            await parts.open(b"f")
        parts.built.has_overlays = True
        await told(learner, order([0, 4], 1))
        await trio.sleep(5)
        assert parts.staging.ahead == [], "it is not durable: nobody is told of it"
        assert bool(parts.pushed) == is_open
        parts.pushed.clear()
        (file,) = parts.staging.known.values()
        for index in range(3):
            file.committed.add(index)
        await told(learner, order([8, 0, 4], 2))
        await trio.sleep(5)
        pushed = [(b"f", 2 * CHUNK, CHUNK)]
        assert parts.pushed == (pushed if is_open else [])
        chunks = [(b"f", Extent(i * CHUNK, (i + 1) * CHUNK)) for i in (2, 0, 1)]
        assert parts.staging.ahead == ([] if is_open else chunks)


@pytest.mark.parametrize("has_overlays", [False, True])
async def test_where_nobody_tells_of_opens_the_sampler_says_what_was_used(has_overlays: bool) -> None:
    async with daemon(source_of(20, 110_000), workers=1) as parts:
        parts.built.has_overlays = has_overlays
        learner = await joined(parts, list_of(20))
        await told(learner, order(list(range(20))))
        await trio.sleep(1)
        assert learner.shown()["ahead_bytes"] == 20 * 110_000
        await told(learner, At(15))
        await trio.sleep(1)
        assert learner.shown()["ahead_bytes"] == (5 if has_overlays else 20) * 110_000
