"""The number of fetches at a time against simulated sources: where it settles, and that it always stays in range."""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfs.policies.prefetch.concurrency import Concurrency

SIZE = 8 << 20


def settled(stream_bps: float, shared_bps: float, *, most: int = 16, fetches: int = 400) -> list[int]:
    """The limits during a run: each fetch has its stream, all together have the link."""
    concurrency, now_s, limits = Concurrency(most), 0.0, []
    ends: list[float] = []
    link_free_s = 0.0
    for _ in range(fetches):
        while len(ends) < concurrency.limit:
            link_free_s = max(link_free_s, now_s) + SIZE / shared_bps
            heapq.heappush(ends, max(now_s + SIZE / stream_bps, link_free_s))
        now_s = max(now_s, heapq.heappop(ends))
        concurrency.arrived(SIZE, now_s)
        limits.append(concurrency.limit)
    return limits


@pytest.mark.parametrize(
    ("stream_mbps", "shared_mbps", "low", "high"),
    [(200, 500, 2, 4), (20, 50, 2, 4), (500, 500, 1, 4), (100, 800, 7, 9), (100, 100_000, 12, 16)],
)
def test_as_many_as_fill_the_source_and_hardly_more(
    stream_mbps: float, shared_mbps: float, low: int, high: int
) -> None:
    limits = settled(stream_mbps * 1e6, shared_mbps * 1e6)
    late = limits[200:]
    assert low <= min(late)
    assert sum(limit <= high for limit in late) > 0.9 * len(late)


@given(st.integers(1, 8), st.lists(st.tuples(st.integers(0, 100), st.floats(0, 10))))
def test_it_stays_in_range(most: int, arrivals: list[tuple[int, float]]) -> None:
    concurrency, now_s = Concurrency(most), 0.0
    for size, later_s in arrivals:
        now_s += later_s
        concurrency.arrived(size, now_s)
        assert 1 <= concurrency.limit <= most


def test_a_pause_is_no_rate() -> None:
    concurrency = Concurrency(16)
    now_s = 0.0
    for _ in range(20):
        concurrency.begin(now_s)
        for _ in range(concurrency.limit):
            now_s += 1.0
            concurrency.arrived(SIZE, now_s)
        now_s += 1000.0
    assert concurrency.limit <= 4
