"""Hints from the joined learner to the bytes: what is fetched when, what makes room, what is refused. Virtual time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import trio
import trio.testing

from hfs.mountd.hints import hint_session, plan_registry
from hfs.mountd.hints import hints as hints_file
from hfs.mountd.hints.hint_session import HintSession
from hfs.mountd.namespace import pages_lost
from hfs.mountd.wire.hints import At, LayoutFrame, LayoutPart, Order, Over, Waited, encode_layout
from hfs.mountd.wire.protocol import Failure, Join
from hfs.policies.geometry import Extent
from tests.conftest import Logs
from tests.support.fake_source import FakeSource
from tests.support.hinted_orders import SIZE, joined, list_of, order, samples_of, shown, source_of, told
from tests.support.read_parts import CHUNK, Parts, daemon


async def test_attributes_are_asked_for_file_by_file_in_the_window_and_not_all_at_once() -> None:
    source = source_of(200)
    async with daemon(source, workers=1) as parts:
        parts.staging.room_bytes = 20 * SIZE
        parts.staging.capacity_bytes = 20 * SIZE
        learner = await joined(parts, list_of(200))
        await told(learner, order(list(range(200))))
        await trio.sleep(10)
        assert sum(name == "stat" for name, _ in source.calls) < 80


async def use(parts: Parts, learner: HintSession, indices: Sequence[int]) -> None:
    """Open and close files in this order, as an epoch."""
    for position, i in enumerate(indices):
        await told(learner, At(position + 1))
        handle = await parts.open(b"d/%d" % i)
        assert len(await parts.read(handle, 0, 1 << 20)) > 0
        parts.opening.close(handle)
        await trio.sleep(1)


def staged(parts: Parts) -> set[int]:
    return {int(file.path[2:]) for file in parts.staging.known.values() if file.complete}


async def test_a_missing_file_is_counted_and_the_rest_is_fetched(logs: Logs) -> None:
    logs.expect("names what cannot be had")
    source = source_of(4)
    del source.tree[b"d/2"]
    async with daemon(source, workers=1) as parts:
        learner = await joined(parts, list_of(4))
        await told(learner, order([2, 3, 0, 1]))
        await trio.sleep(10)
        assert [path for path, _ in source.reads] == [b"d/3", b"d/0", b"d/1"]
        assert parts.metrics["hints_missing"] == 1


@pytest.mark.parametrize("push", [False, True])
async def test_what_finds_no_room_is_read_once_all_the_same(push: bool) -> None:
    async with daemon(source_of(8, 110_000), workers=1, push=push) as parts:
        parts.staging.room_bytes = parts.staging.capacity_bytes = 5 * 120_000
        learner = await joined(parts, list_of(8))
        await told(learner, order([0, 1, 2, 3, 4, 5, 6, 7]))
        await told(learner, order([1, 0, 7, 6, 5, 4, 3, 2], 1, following=True))
        await trio.sleep(1)
        await use(parts, learner, range(8))
        assert len(staged(parts)) == 5
        read = [path for path, _ in parts.source.reads]
        assert len(set(read[:8])) == 8
        assert len(read) <= 8 + 1  # the first one of the next epoch that is not here


async def test_what_is_needed_last_makes_room() -> None:
    async with daemon(source_of(20, 110_000), workers=1) as parts:
        parts.staging.room_bytes = parts.staging.capacity_bytes = 5 * 120_000
        learner = await joined(parts, list_of(20))
        await told(learner, order(list(range(20))))
        await trio.sleep(1)
        assert staged(parts) == {0, 1, 2, 3, 4}
        following = [4, 19, 18, 17, 16, 3, 2, 1, 0, *range(5, 16)]
        await told(learner, order(following, 1, following=True))
        await use(parts, learner, range(20))
        assert len(parts.source.reads) <= 20 + 1
        assert staged(parts) == set(following[:5])
        assert parts.metrics["hinted_evictions"] == 4
        await told(learner, order(following, 1))
        await use(parts, learner, following)
        assert len(parts.source.reads) <= 20 + 15  # less by what is still held in memory


async def test_where_the_next_order_is_not_known_nothing_moves() -> None:
    async with daemon(source_of(20, 110_000), workers=1) as parts:
        parts.staging.room_bytes = parts.staging.capacity_bytes = 5 * 120_000
        learner = await joined(parts, list_of(20))
        for epoch in range(3):
            indices = np.random.default_rng(epoch).permutation(20).tolist()
            await told(learner, order(indices, epoch))
            await use(parts, learner, indices)
            await told(learner, Over(epoch))
        assert parts.metrics["hinted_evictions"] == 0
        assert len(parts.source.reads) <= 20 + 2 * 15


@pytest.mark.parametrize("path", [b"../x", b"/etc/passwd", b"d/../../x", b"", b"d", b"x" * 300])
async def test_names_that_lead_nowhere_harm_nobody(path: bytes, logs: Logs) -> None:
    logs.expect("names what cannot be had")
    async with daemon(source_of(1), workers=1) as parts:
        learner = await joined(parts, LayoutFrame(files=b"\0".join([path, b"d/0"])))
        await told(learner, order([0, 1]))
        await trio.sleep(10)
        assert [read for read, _ in parts.source.reads] == [b"d/0"]
        assert parts.metrics["unexpected_errors"] == 0


async def test_chunks_are_fetched_in_the_order_of_their_first_use() -> None:
    source = FakeSource()
    source.file(b"f", 11, 5 * CHUNK)
    sample = CHUNK // 4
    async with daemon(source, workers=1) as parts:
        learner = await joined(parts, samples_of(b"f", 5 * CHUNK, sample))
        await told(learner, order([13, 12, 0, 1, 19, 4, 8]))
        await trio.sleep(10)
        assert [extent.start // CHUNK for _, extent in source.reads] == [3, 0, 4, 1, 2]


async def test_a_large_file_that_is_one_sample_is_staged_whole() -> None:
    source = source_of(2, 3 * CHUNK + 5)
    async with daemon(source, workers=1) as parts:
        learner = await joined(parts, list_of(2))
        await told(learner, order([1, 0]))
        await trio.sleep(10)
        assert staged(parts) == {0, 1}
        assert [path for path, _ in source.reads] == [b"d/1"] * 4 + [b"d/0"] * 4
        assert parts.metrics["hinted_bytes"] == learner.shown()["ahead_bytes"] == 2 * (3 * CHUNK + 5)


async def test_a_sample_that_is_due_before_its_chunk_is_fetched_alone() -> None:
    source = FakeSource()
    source.file(b"f", 11, 40 * CHUNK)
    source.delay_s = 5.0
    async with daemon(source, workers=1) as parts:
        learner = await joined(parts, samples_of(b"f", 40 * CHUNK, CHUNK // 16))
        await told(learner, order(list(range(640))))
        await trio.sleep(7)
        handle = await parts.open(b"f")
        offset = 20 * CHUNK
        assert await parts.read(handle, offset, 5000) == source.content(b"f", Extent(offset, offset + 5000))
        alone = [extent for _, extent in source.reads if extent.end - extent.start < CHUNK]
        assert len(alone) == 1
        assert parts.metrics["reads_bypass"] == 1


async def test_an_order_that_names_a_directorys_files_replaces_the_guess_about_its_siblings() -> None:
    async with daemon(source_of(100), workers=2) as parts:
        learner = await joined(parts, list_of(10))
        await told(learner, order(list(range(10))))
        await trio.sleep(1)
        for i in range(10):
            parts.opening.close(await parts.open(b"d/%d" % i))
        await trio.sleep(10)
        assert len(parts.source.reads) == 10


async def test_files_that_the_kernel_knows_are_pushed_before_they_are_opened() -> None:
    async with daemon(source_of(3), workers=1, push=True) as parts:
        node = await parts.namespace.lookups.resolve(b"d/1")
        parts.namespace.holds.referenced(node)
        learner = await joined(parts, list_of(3))
        await told(learner, order([1, 2, 0]))
        await trio.sleep(5)
        parts.pushed.clear()
        pages_lost(node)
        await told(learner, order([1, 2, 0], 1))
        await trio.sleep(5)
        assert parts.pushed == [(b"d/1", 0, SIZE)]


async def test_what_a_plan_has_found_is_forgotten_with_its_node() -> None:
    async with daemon(source_of(3), workers=1, ttl_s=100) as parts:
        learner = await joined(parts, list_of(3))
        await told(learner, order([1, 2, 0]))
        await trio.sleep(5)
        (plan,) = parts.learners.plans
        nodes = [await parts.namespace.lookups.resolve(b"d/%d" % i) for i in range(3)]
        assert [plan.units_of.get(node) for node in nodes] == [0, 1, 2]
        learner.leave()
        await trio.sleep(100)
        await parts.namespace.names.sweep()
        assert [plan.units_of.get(node) for node in nodes] == [None, None, None]


async def test_staged_files_that_the_kernel_does_not_know_are_read_ahead_from_the_disk() -> None:
    async with daemon(source_of(3), workers=1, push=True) as parts:
        learner = await joined(parts, list_of(3))
        await told(learner, order([1, 2, 0]))
        await trio.sleep(5)
        parts.staging.would_block = True
        parts.staging.ahead.clear()
        await told(learner, order([1, 2, 0], 1))
        await trio.sleep(5)
        assert parts.staging.ahead == [(b"d/%d" % i, Extent(0, SIZE)) for i in (1, 2, 0)]
        assert parts.pushed == []


async def test_chunks_are_pushed_once_and_again_when_the_kernel_has_let_them_go() -> None:
    source = FakeSource()
    source.file(b"f", 11, 3 * CHUNK)
    async with daemon(source, workers=1, push=True) as parts:
        number = await parts.open(b"f")
        learner = await joined(parts, samples_of(b"f", 3 * CHUNK, CHUNK // 4))
        await told(learner, order(list(range(12))))
        await trio.sleep(5)
        assert sorted(parts.pushed) == [(b"f", i * CHUNK, CHUNK) for i in range(3)]
        parts.pushed.clear()
        for position in range(12):
            await told(learner, At(position))
            await trio.sleep(1)
        assert parts.pushed == []
        await parts.read(number, CHUNK + 5, 100)  # some pages
        await told(learner, order([4, 5, 0], 1))
        await trio.sleep(5)
        assert parts.pushed == [(b"f", CHUNK, 128 << 10)]
        parts.pushed.clear()
        await parts.read(number, CHUNK, CHUNK // 4)  # a sample
        await told(learner, order([4, 5, 0], 2))
        await trio.sleep(5)
        assert parts.pushed == [(b"f", CHUNK, CHUNK)]


async def test_chunks_of_a_file_that_is_passed_through_are_read_ahead_from_the_disk() -> None:
    source = FakeSource()
    source.file(b"f", 11, 3 * CHUNK)
    async with daemon(source, workers=1, push=True) as parts:
        learner = await joined(parts, samples_of(b"f", 3 * CHUNK, CHUNK // 4))
        await told(learner, order([0, 4, 8]))
        await trio.sleep(5)
        node = await parts.namespace.lookups.resolve(b"f")
        parts.namespace.holds.opened(node, passed=True)
        await told(learner, order([8, 0, 9, 1], 1))
        await trio.sleep(5)
        assert parts.staging.ahead == [(b"f", Extent(2 * CHUNK, 3 * CHUNK)), (b"f", Extent(0, CHUNK))]
        await told(learner, order([8, 0], 2))
        await trio.sleep(5)
        assert len(parts.staging.ahead) == 2
        parts.namespace.holds.closed(node, passed=True)


async def test_a_learner_that_leaves_takes_its_orders_with_it() -> None:
    async with daemon(source_of(50), workers=1) as parts:
        parts.source.delay_s = 1.0
        learner = await joined(parts, list_of(50))
        await told(learner, order(list(range(50))))
        await trio.sleep(10)
        learner.leave()
        had = len(parts.source.reads)
        await trio.sleep(100)
        assert len(parts.source.reads) <= had + 16
        assert (await shown(parts.learners))["learners"] == []


async def test_the_figures_of_epochs_are_kept_when_the_learner_has_gone() -> None:
    async with daemon(source_of(2)) as parts:
        learner = await joined(parts, list_of(2))
        await told(learner, order([0, 1], 3))
        await told(learner, Waited(3, 0.5, 10.0, 0.25, 7, 2, 16))
        await told(learner, Waited(3, 0.5, 10.0, 0.25, 7))  # an older client says nothing of its workers
        await told(learner, Waited(3, 0.5, 10.0, 0.25, 7, -1, 16))
        await told(learner, Waited(3, 0.5, 10.0, 0.25, 7, 2, 1 << 70))
        await told(learner, Over(3))
        learner.leave()
        (past,) = (await shown(parts.learners))["past"]
        (epoch,) = past["epochs"]
        assert (epoch["epoch"], epoch["exposed_s"], epoch["compute_s"], epoch["batches"]) == (3, 0.5, 10.0, 7)
        assert (epoch["workers"], epoch["cores"]) == (2, 16)


async def test_counters_of_learners_only_grow() -> None:
    """What each report adds to the one before, of all epochs and learners; a report that takes back changes nothing."""
    async with daemon(source_of(2)) as parts:
        names = ("learner_exposed_ns", "learner_compute_ns", "learner_other_ns", "learner_batches")
        for _ in range(2):
            learner = await joined(parts, list_of(2))
            await told(learner, order([0, 1], 3))
            for report in (Waited(3, 0.5, 10.0, 0.25, 7), Waited(3, 1.5, 20.0, 0.25, 9), Waited(4, 1.0, 1.0, 1.0, 1)):
                await told(learner, report)
            learner.leave()
        assert [parts.metrics[name] for name in names] == [5 * 10**9, 42 * 10**9, 2_500_000_000, 20]
        learner = await joined(parts, list_of(2))
        await told(learner, order([0, 1], 3))
        for report in (Waited(3, 0.5, 0.5, 0.5, 2), Waited(3, 0.0, 0.0, 0.0, 0), Waited(3, float("nan"), 0.0, 0.0)):
            await told(learner, report)
        assert [parts.metrics[name] for name in names] == [5_500_000_000, 42_500_000_000, 3 * 10**9, 22]


REFUSED = [
    (order([0, 9]), "names sample 9 of 2"),
    (order([-1]), "names sample -1 of 2"),
    (Order(0, b"\0" * 7), "middle of a number"),
    (Order(0, np.array([0], "<i8").tobytes(), start=5), "begins at 5; 0 was expected"),
    (Order(0, np.zeros(200, "<i8").tobytes()), "too long"),
]


@pytest.mark.parametrize(("message", "why"), REFUSED)
async def test_orders_that_cannot_be(message: Order, why: str, logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.expect("is not followed")
    monkeypatch.setattr(hint_session, "_SHORT", 0)
    async with daemon(source_of(2), workers=1) as parts:
        learner = await joined(parts, list_of(2))
        answer = await learner.receive(message)
        assert isinstance(answer, Failure)
        assert why in answer.message
        await told(learner, order([1, 0]))
        await trio.sleep(5)
        assert len(parts.source.reads) == 2


async def test_nonsense_about_progress_is_harmless() -> None:
    async with daemon(source_of(2), workers=1) as parts:
        learner = await joined(parts, list_of(2))
        for message in (At(5), Over(9), Waited(1, float("nan"), -1.0, float("inf")), At(-(1 << 60)), At(1 << 60)):
            await told(learner, message)
        await told(learner, order([0, 1], 5))
        await told(learner, order([1, 0], 3))
        for message in (At(1 << 60), At(-5), Over(99), At(1), Over(3), At(2)):
            await told(learner, message)
        await trio.sleep(5)
        assert learner.shown()["epoch"] == 3


async def test_an_order_before_its_layout_and_a_layout_that_is_another(logs: Logs) -> None:
    logs.expect("is not followed")
    async with daemon(source_of(2)) as parts:
        learner, _ = parts.learners.join(Join(layout="0" * 32), 7)
        assert learner is not None
        answer = await learner.receive(order([0]))
        assert isinstance(answer, Failure)
        assert "before its layout" in answer.message
        answer = await learner.receive(LayoutPart(encode_layout(list_of(2)), True))
        assert isinstance(answer, Failure)
        assert "not the one that was announced" in answer.message


async def test_layouts_are_bounded(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.expect("is not followed")
    async with daemon(source_of(2)) as parts:
        learner, _ = parts.learners.join(Join(layout="0" * 32), 7)
        assert learner is not None
        monkeypatch.setattr(hint_session, "MAX_LAYOUT_BYTES", 10)
        answer = await learner.receive(LayoutPart(b"12345678901", False))
        assert isinstance(answer, Failure)
        monkeypatch.setattr(plan_registry, "_MAX_MEMORY_BYTES", 10)
        answer = await learner.receive(LayoutPart(b"123456", True))
        assert isinstance(answer, Failure)
        assert "more than the 10 that are kept" in answer.message


async def test_two_learners_of_one_rank() -> None:
    async with daemon(source_of(2)) as parts:
        first = await joined(parts, list_of(2), process="one", rank=1, world=2)
        again = await joined(parts, list_of(2), process="one", rank=1, world=2)
        other, answer = parts.learners.join(
            Join(layout=first.join.layout, name="train", rank=1, world=2, process="two"), 8
        )
        assert other is None
        assert isinstance(answer, Failure)
        assert "rank 1 of 2 has joined already, as process 7" in answer.message
        first.leave()
        again.leave()
        assert await joined(parts, list_of(2), process="two", rank=1, world=2)


@pytest.mark.parametrize(("rank", "world"), [(-1, 2), (2, 2), (0, 0)])
async def test_ranks_that_cannot_be(rank: int, world: int) -> None:
    async with daemon(source_of(2)) as parts:
        learner, answer = parts.learners.join(Join(layout="0" * 32, rank=rank, world=world), 7)
        assert learner is None
        assert isinstance(answer, Failure)


async def test_only_so_many_learners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints_file, "MAX_LEARNERS", 1)
    async with daemon(source_of(2)) as parts:
        await joined(parts, list_of(2))
        learner, answer = parts.learners.join(Join(layout="0" * 32), 7)
        assert learner is None
        assert isinstance(answer, Failure)


async def test_layouts_that_nobody_follows_are_forgotten_in_the_end() -> None:
    async with daemon(source_of(20)) as parts:
        for count in range(1, 12):
            (await joined(parts, list_of(count))).leave()
        assert len(parts.learners.plans) == 4


async def test_an_order_may_be_told_by_parts_of_the_epoch() -> None:
    async with daemon(source_of(40), workers=1) as parts:
        learner = await joined(parts, list_of(40))
        await told(learner, order(list(range(20))))
        await told(learner, At(15))
        await trio.sleep(10)
        assert (learner.shown()["position"], learner.shown()["total"]) == (15, 20)
        part = np.arange(10, 30, dtype="<i8").tobytes()
        await told(learner, Order(0, part, first=10))
        await told(learner, At(25))
        await trio.sleep(10)
        assert (learner.shown()["position"], learner.shown()["total"]) == (25, 30)
        assert [path for path, _ in parts.source.reads] == [b"d/%d" % i for i in range(30)]
        assert not learner.shown()["only_given"]
        await told(learner, Order(0, part, first=-(1 << 62), only_given=True))
        assert learner.shown()["only_given"]
        await told(learner, At(-(1 << 62)))  # nonsense is harmless
        await told(learner, Over(0))
        assert learner.shown()["total"] == 0


async def test_what_is_here_is_looked_for_again_when_an_epoch_begins_and_not_with_each_part_of_it() -> None:
    async with daemon(source_of(40), workers=1) as parts:
        learner = await joined(parts, list_of(40))
        await told(learner, order([0]))
        assert learner.plan is not None
        schedule = learner.plan.schedule
        schedule.here(30, SIZE)  # the data plane has it, and no object is known
        for first in range(1, 10):
            await told(learner, Order(0, np.arange(first, dtype="<i8").tobytes(), only_given=True))
            assert not schedule.units.is_absent(30)
        await told(learner, Over(0))
        await told(learner, order([1]))
        assert schedule.units.is_absent(30)
        schedule.here(30, SIZE)
        await told(learner, Order(1, np.arange(2, dtype="<i8").tobytes()))
        assert schedule.units.is_absent(30)


async def test_who_tells_what_was_given_out_alone_leaves_the_guess_about_siblings_as_it_is() -> None:
    async with daemon(source_of(40), workers=1) as parts:
        learner = await joined(parts, list_of(40))
        await told(learner, Order(0, np.arange(4, dtype="<i8").tobytes(), only_given=True))
        assert learner.plan is not None
        assert not learner.plan.is_foreseen
        await told(learner, order(list(range(40))))
        assert learner.plan.is_foreseen
