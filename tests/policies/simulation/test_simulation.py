"""The simulator against a plain reference of its rules, and by what must hold whatever the numbers are."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfs.policies.cache.admission import COMMIT_EVERY_S, blocks_bytes, grant_bytes, object_overhead_bytes
from hfs.policies.cache.eviction import NOTED_EVERY_S, ahead_bytes
from hfs.policies.simulation import node as node_module
from hfs.policies.simulation.job import simulate
from hfs.policies.simulation.node import Epoch, Pieces, Rates, SimulatedCache, SimulatedMount

SIZE = 40_000
BEGIN_S = 10 * 24 * 3600.0
ROOM = blocks_bytes(SIZE) + object_overhead_bytes(1)
ALONE: dict[str, Any] = {"readers": 1, "siblings_bytes": 0, "ttl_s": math.inf, "buffer_bytes": 8 << 20}
SLOW = Rates(latency_s=0.04, compute_s=0.01)


def small(count: int, sizes: Sequence[int] | int = SIZE, folders: int = 1) -> Pieces:
    return Pieces(
        np.broadcast_to(np.asarray(sizes, np.int64), count).copy(),
        np.arange(count),
        np.arange(count) % folders,
        [b"%06d" % number for number in range(count)],
        np.random.default_rng(1).integers(0, 1 << 63, count).astype(np.uint64) * np.uint64(2),
    )


def orders(pieces: Pieces, count: int, seed: int = 0) -> list[Epoch]:
    random = np.random.default_rng(seed)
    drawn = [random.permutation(len(pieces)) for _ in range(count)]
    return [Epoch(order, pieces.sizes[order]) for order in drawn]


def fetched(pieces: Pieces, epochs: list[Epoch], cache_bytes: int, way: str, **settings: float) -> list[int]:
    """Fetches from the source in each epoch."""
    mount = SimulatedMount(cache_bytes, way, **{**ALONE, **settings})
    return [outcome.source_reads for outcome in simulate(pieces, epochs, mount, SLOW)]


@pytest.mark.parametrize("part", [0.1, 0.25, 0.5, 0.75, 0.95])
def test_fill_once_keeps_what_there_is_room_for(part: float) -> None:
    """Room is granted in lumps, so that half of one is unused when the cache is full."""
    pieces = small(600)
    size = int(600 * ROOM * part)
    kept = min(600, (size - grant_bytes(size) // 2) // ROOM)
    assert fetched(pieces, orders(pieces, 3), size, "fill-once") == [600, 600 - kept, 600 - kept]


def test_lru_keeps_what_was_used_last() -> None:
    """Against a list of all files in the order of their uses, where so much time goes by that each is noted."""
    count, capacity = 60, 25
    cache = SimulatedCache(capacity * ROOM, "lru", [SIZE] * count)
    most = (cache.free_bytes - ahead_bytes(capacity * ROOM)) // ROOM
    by_use: list[int] = []
    now_s, random = BEGIN_S, np.random.default_rng(2)
    for piece in random.integers(0, count, 1000).tolist():
        now_s += NOTED_EVERY_S + 1
        assert (piece in cache.staged) == (piece in by_use)
        if piece in by_use:
            by_use.remove(piece)
            cache.opened(piece, now_s)
        else:
            assert cache.stage(piece, now_s)
        by_use = [*by_use, piece][-most:]


def test_lru_does_not_hear_of_uses_within_some_minutes() -> None:
    """The data plane notes the first use, and the next ten minutes later: what is staged first goes first."""
    cache = SimulatedCache(12 * ROOM, "lru", [SIZE] * 20)
    most = (cache.free_bytes - ahead_bytes(12 * ROOM)) // ROOM
    for piece in range(most):
        assert cache.stage(piece, BEGIN_S + piece)
    cache.opened(0, BEGIN_S + 100)
    cache.stage(most, BEGIN_S + 200)
    assert 0 not in cache.staged
    cache.opened(1, BEGIN_S + NOTED_EVERY_S + 10)
    cache.stage(most + 1, BEGIN_S + NOTED_EVERY_S + 100)
    assert 1 in cache.staged
    assert 2 not in cache.staged


def test_lru_evicts_nothing_that_is_not_durable() -> None:
    cache = SimulatedCache(10 * ROOM, "lru", [SIZE] * 20)
    most = cache.free_bytes // ROOM
    assert [cache.stage(piece, BEGIN_S) for piece in range(12)] == [True] * most + [False] * (12 - most)
    assert cache.stage(12, BEGIN_S + COMMIT_EVERY_S)
    assert 0 not in cache.staged


@pytest.mark.parametrize("way", ["fill-once", "lru", "hinted"])
@pytest.mark.parametrize("siblings_bytes", [0, 256 << 20])
def test_what_fits_is_read_once(way: str, siblings_bytes: int) -> None:
    pieces = small(400, np.random.default_rng(0).integers(1000, 90_000, 400).tolist(), folders=3)
    mount = SimulatedMount(int(pieces.sizes.sum() * 3), way, readers=4, siblings_bytes=siblings_bytes)
    first, *others = simulate(pieces, orders(pieces, 3), mount, SLOW)
    assert (first.source_reads, first.source_bytes, first.hit_share) == (400, pieces.sizes.sum(), 0.0)
    assert first.staged_bytes == pieces.sizes.sum()
    assert [(other.source_bytes, other.hit_share) for other in others] == [(0, 1.0)] * 2
    assert all(other.seconds < first.seconds for other in others)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["fill-once", "hinted"])
def test_more_cache_never_has_fewer_hits(way: str) -> None:
    pieces = small(200)
    epochs = orders(pieces, 3)
    sizes = [int(200 * ROOM * part) for part in np.linspace(0.05, 1.1, 10)]
    totals = [sum(fetched(pieces, epochs, size, way)) for size in sizes]
    assert totals == sorted(totals, reverse=True)
    assert totals[-1] == 200


@pytest.mark.slow
def test_hints_read_no_more_than_fill_once_and_lru_most() -> None:
    """Where each epoch reads a part, an order is worth something; see scripts/benchmarks/eviction.py."""
    pieces = small(400)
    whole = orders(pieces, 12)
    parts = [Epoch(epoch.pieces[:100], epoch.sizes[:100]) for epoch in whole]
    hinted, fill_once = (sum(fetched(pieces, parts, 100 * ROOM, way)) for way in ("hinted", "fill-once"))
    assert hinted < fill_once
    assert sum(fetched(pieces, whole[:4], 200 * ROOM, "lru")) > sum(fetched(pieces, whole[:4], 200 * ROOM, "fill-once"))


def test_an_epoch_takes_what_its_reads_take() -> None:
    pieces = small(100)
    mount = SimulatedMount(10 * 100 * ROOM, **ALONE)
    first, second = simulate(pieces, orders(pieces, 2), mount, SLOW)
    assert first.seconds == pytest.approx(100 * 0.05, rel=0.01)
    assert second.seconds == pytest.approx(100 * 0.01)
    by_four = SimulatedMount(10 * 100 * ROOM, **{**ALONE, "readers": 4})
    assert simulate(pieces, orders(pieces, 1), by_four, SLOW)[0].seconds == pytest.approx(25 * 0.05, rel=0.02)
    link = Rates(latency_s=0.0, source_rate=SIZE * 10)
    assert simulate(pieces, orders(pieces, 1), by_four, link)[0].seconds == pytest.approx(10.0)


def test_a_look_is_due_when_the_time_to_live_is_over() -> None:
    pieces = small(100)
    rates = Rates(latency_s=0.04, look_s=0.02, compute_s=0.01)
    mount = SimulatedMount(10 * 100 * ROOM, **{**ALONE, "ttl_s": 0.001})
    assert simulate(pieces, orders(pieces, 2), mount, rates)[1].seconds == pytest.approx(100 * 0.03)


def test_siblings_shorten_the_first_epoch() -> None:
    pieces = small(500, folders=2)
    size = 40 * 500 * ROOM  # of a small cache so little is granted at a time that most siblings find no room
    without = simulate(pieces, orders(pieces, 1), SimulatedMount(size, siblings_bytes=0), SLOW)[0]
    ahead = simulate(pieces, orders(pieces, 1), SimulatedMount(size), SLOW)[0]
    assert ahead.source_reads == without.source_reads == 500
    assert ahead.seconds < without.seconds / 2


@pytest.mark.slow
def test_siblings_do_not_drive_each_other_out_before_they_are_read() -> None:
    """Where the least recently used go, of a data set smaller than the budget of what is ahead."""
    pieces = small(4000, folders=10)
    mount = SimulatedMount(4000 * ROOM * 55 // 100, "lru", readers=4, ttl_s=math.inf, buffer_bytes=16 << 20)
    (first,) = simulate(pieces, orders(pieces, 1), mount, Rates(latency_s=0.04, compute_s=0.005))
    assert 4000 < first.source_reads < 1.2 * 4000


@pytest.mark.parametrize(("part", "source_reads"), [(2.0, 1), (0.3, 1)])
def test_nodes_that_share_read_each_file_once(part: float, source_reads: int) -> None:
    """Where all fits each node, each keeps what it got (replicate); else each keeps its share (partition)."""
    pieces = small(400)
    mount = SimulatedMount(int(400 * ROOM * part), nodes=4, **ALONE)
    found = simulate(pieces, orders(pieces, 3), mount, SLOW)
    assert sum(outcome.source_reads for outcome in found) == 400 * source_reads
    assert found[0].peer_bytes / found[0].read_bytes == pytest.approx(0.75, abs=0.08)
    if part > 1:
        assert found[2].peer_bytes < found[1].peer_bytes < found[0].peer_bytes
    else:
        assert found[2].peer_bytes / found[2].read_bytes == pytest.approx(0.75, abs=0.08)


def test_chunks_of_a_large_file_are_fetched_behind_a_sequential_read() -> None:
    count, chunk = 64, 8 << 20
    pieces = Pieces(
        np.full(count, chunk),
        np.zeros(count, np.int64),
        np.full(count, -1),
        [b"x"] * count,
        np.arange(count, dtype=np.uint64),
    )
    epoch = Epoch(np.arange(count), np.full(count, chunk))
    rates = Rates(latency_s=0.5, source_rate=1e9)
    mount = SimulatedMount(2 * count * chunk)
    first, second = simulate(pieces, [epoch, epoch], mount, rates)
    assert (first.source_reads, second.source_reads) == (count, 0)
    assert first.seconds < count * 0.5 / 4


@pytest.mark.slow
def test_a_part_stands_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = small(3000, folders=20)
    epochs = orders(pieces, 2)
    for way, siblings_bytes in (("fill-once", 256 << 20), ("lru", 0)):
        mount = SimulatedMount(3000 * ROOM // 2, way, readers=4, siblings_bytes=siblings_bytes)
        monkeypatch.setattr(node_module, "MANY", 1 << 30)
        whole = simulate(pieces, epochs, mount, SLOW)
        monkeypatch.setattr(node_module, "MANY", 1000)
        part = simulate(pieces, epochs, mount, SLOW)
        for one, other in zip(whole, part, strict=True):
            assert one.reads == other.reads
            assert one.hit_share == pytest.approx(other.hit_share, abs=0.03)
            assert one.seconds == pytest.approx(other.seconds, rel=0.05)


def test_nothing_is_staged_beyond_the_size() -> None:
    cache = SimulatedCache(20 * ROOM, "fill-once", [SIZE] * 50)
    most = cache.free_bytes // ROOM
    staged = [cache.stage(piece, BEGIN_S + piece) for piece in range(50)]
    assert staged == [True] * most + [False] * (50 - most)
    assert len(cache.staged) == most
    free_bytes = cache.free_bytes
    cache.drop([3, 4])
    assert cache.free_bytes == free_bytes + 2 * ROOM
    assert 3 not in cache.staged
    assert cache.stage(40, BEGIN_S + 100)


def test_the_data_plane_notes_uses_as_often_as_is_said() -> None:
    text = (Path(__file__).parents[3] / "mountd/native/plane/contents.c").read_text()
    found = re.search(r"#define NOTED_EVERY_NS \(INT64_C\((\d+)\) \* 1000000000\)", text)
    assert found is not None
    assert int(found[1]) == NOTED_EVERY_S
