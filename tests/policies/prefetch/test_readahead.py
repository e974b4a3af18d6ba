"""policies/readahead: tables of reads and what they are taken for, and what must hold for any reads at all."""

import random
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfs.policies.geometry import Extent
from hfs.policies.prefetch.readahead import Advice, Kind, Limits, Pattern, advise

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
LIMITS = Limits()
U, S, R, T = Kind.UNKNOWN, Kind.SEQUENTIAL, Kind.RANDOM, Kind.STRIDED
BLOCK = 128 * KIB


def run(reads: Iterable[tuple[int, int]], file_size: int = GIB, limits: Limits = LIMITS) -> list[Advice]:
    """What is advised at each of `reads`: (start, size)."""
    pattern = Pattern()
    return [advise(pattern, Extent(start, start + size), file_size, limits) for start, size in reads]


def kinds(reads: Iterable[tuple[int, int]], file_size: int = GIB) -> list[Kind]:
    return [advice.kind for advice in run(reads, file_size)]


def windows(advice: Iterable[Advice]) -> list[tuple[float, float]]:
    """All windows in order, in MiB."""
    return [(w.start / MIB, w.end / MIB) for a in advice for w in a.windows]


def blocks(*numbers: int) -> list[tuple[int, int]]:
    return [(number * BLOCK, BLOCK) for number in numbers]


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        pytest.param(blocks(0), [U], id="header"),
        pytest.param(blocks(500), [U], id="first read anywhere"),
        pytest.param(blocks(0, 1, 2), [U, S, S], id="sequential"),
        pytest.param(blocks(40, 41, 42), [U, S, S], id="sequential from the middle"),
        pytest.param(blocks(0, 3000, 9, 7000, 2000), [U, R, R, R, R], id="random"),
        pytest.param(blocks(9, 8, 7, 6, 5, 4, 3), [U, R, R, R, R, R, R], id="backward"),
        pytest.param(blocks(0, 1, 3, 2, 5, 4, 7, 6), [U, S, S, S, S, S, S, S], id="out of order"),
        pytest.param(blocks(1, 0, 2, 3, 4), [U, R, S, S, S], id="out of order at once"),
        pytest.param(blocks(0, 1, 6, 7, 9), [U, S, S, S, S], id="small seeks"),
        pytest.param(blocks(0, 1, 3, 900, 4, 5), [U, S, S, R, S, S], id="a stray far away"),
        pytest.param(blocks(0, 0, 0, 0), [U, R, R, R], id="the same again"),
        pytest.param(blocks(0, 100, 200, 300, 400), [U, R, R, T, T], id="strided"),
        pytest.param(blocks(400, 300, 200, 100, 0), [U, R, R, R, R], id="strided backward"),
        pytest.param(blocks(0, 1, 900, 901, 2, 902, 3), [U, S, R, S, S, S, S], id="two streams"),
        pytest.param([(0, 0), (GIB, 100), (GIB + 5, 9)], [U, U, U], id="nothing read"),
    ],
)
def test_what_reads_are_taken_for(reads: list[tuple[int, int]], expected: list[Kind]) -> None:
    assert kinds(reads) == expected


def test_the_window_doubles_up_to_the_limit_and_then_moves_by_chunks() -> None:
    found = run((i * MIB, MIB) for i in range(48))
    assert windows(found) == [(2, 8), (8, 16), (16, 40), (40, 80), (80, 88), (88, 96), (96, 104), (104, 112)]


def test_a_stream_that_stops_early_has_cost_its_chunk_only() -> None:
    assert windows(run((i * BLOCK, BLOCK) for i in range(16))) == [(0.25, 8)]


@pytest.mark.parametrize("size", [1, 4096, 8 * MIB, 8 * MIB + 1, 100 * MIB + 3])
def test_the_windows_of_a_whole_read_cover_the_rest_of_the_file_once(size: int) -> None:
    found = run(((start, BLOCK) for start in range(0, size, BLOCK)), size)
    spans = [w for a in found for w in a.windows]
    if size <= 2 * BLOCK:
        assert not spans
    else:
        assert spans[0].start == 2 * BLOCK
        assert spans[-1].end == size
        assert all(before.end == after.start for before, after in pairwise(spans))


def test_shuffled_requests_of_one_stream_stay_one_stream() -> None:
    rng = random.Random(5)
    order = [0, 1]
    for first in range(2, 800, 8):
        part = list(range(first, first + 8))
        rng.shuffle(part)
        order += part
    found = run(blocks(*order))
    assert {a.kind for a in found[1:]} == {S}
    assert windows(found)[-1][1] >= 100


def test_four_readers_on_one_handle_are_four_streams() -> None:
    rng = random.Random(6)
    position = [0, 1000, 3000, 5000]
    reads = []
    for _ in range(2000):
        reader = rng.randrange(4)
        reads += blocks(position[reader])
        position[reader] += 1
    found = Counter(kinds(reads))
    assert found[S] >= 1990


def test_random_reads_between_the_reads_of_a_stream_do_not_end_it() -> None:
    rng = random.Random(7)
    reads = [read for i in range(500) for read in (*blocks(i), (rng.randrange(200 * MIB, GIB), 4096))]
    found = run(reads)
    assert [a.kind for a in found[0::2]] == [U, *[S] * 499]
    assert sum(a.kind is S for a in found[1::2]) <= 10


def test_random_samples_of_two_requests_each_soon_bring_no_windows() -> None:
    rng = random.Random(8)
    reads = []
    for _ in range(1000):
        start = rng.randrange(15 * GIB // 4096) * 4096
        reads += [(start, BLOCK), (start + BLOCK, BLOCK)]
    asked = [w for a in run(reads, 16 * GIB) for w in a.windows]
    assert len(asked) <= 8
    assert sum(w.size for w in asked) <= 64 * MIB


def test_samples_that_hide_a_stream_do_not_hide_it_for_long() -> None:
    reads = [read for i in range(200) for read in blocks((i * 7919) % 8000, (i * 7919) % 8000 + 1)]
    found = run([*reads, *((start, BLOCK) for start in range(0, 64 * MIB, BLOCK))])
    assert windows(found)[-1][1] >= 100


def test_a_sparse_run_is_no_stream() -> None:
    reads = blocks(0, 1, *range(10, 2000, 27))
    reads = [(start + i % 3 * 300 * KIB, size) for i, (start, size) in enumerate(reads)]
    assert Counter(kinds(reads)[10:])[S] < 20


def test_dense_strides_are_sequential_and_wide_ones_are_records() -> None:
    dense = run((i * 64 * KIB, 4 * KIB) for i in range(400))
    assert {a.kind for a in dense[4:]} == {S}
    wide = run((i * 20 * MIB, BLOCK) for i in range(6))
    assert windows(wide[3:4]) == [(20.0 * i, 20.0 * i + 0.125) for i in range(4, 12)]
    assert windows(wide[4:]) == [(240, 240.125), (260, 260.125)]


def test_a_strided_record_of_several_requests_is_wanted_whole() -> None:
    reads = [read for i in range(12) for read in ((i * 30 * MIB, BLOCK), (i * 30 * MIB + BLOCK, BLOCK))]
    found = run(reads)
    assert found[-2].kind is T
    assert [w.size for w in found[-2].windows] == [2 * BLOCK]


def test_strides_may_jitter_by_a_page() -> None:
    starts = [i * 1_505_280 // 4096 * 4096 for i in range(30)]
    found = run((start, 40 * KIB) for start in starts)
    assert {a.kind for a in found[4:]} == {T}
    wanted = {w.start for a in found[20:21] for w in a.windows}
    assert all(min(abs(start - want) for start in starts) <= 4096 for want in wanted)
    assert wanted


def test_a_seek_inside_the_window_keeps_what_the_stream_has_earned() -> None:
    reads = [(i * MIB, MIB) for i in range(40)]
    found = run([*reads, (60 * MIB, MIB), (61 * MIB, MIB), (62 * MIB, MIB)])
    assert windows(found[41:]) == [(104, 120)]


def test_a_window_smaller_than_a_chunk_is_refused() -> None:
    with pytest.raises(ValueError, match="holds no chunk"):
        Limits(chunk_bytes=8 * MIB, max_window_bytes=MIB)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[int, Limits, list[tuple[int, int]]]:
    """A file, limits, and reads that mix streams, strides and leaps, all in small numbers of pages."""
    page = 4096
    chunk_bytes = draw(st.sampled_from([4, 16, 64])) * page
    limits = Limits(chunk_bytes, chunk_bytes * draw(st.integers(1, 8)))
    pages = draw(st.integers(1, 2000))
    file_size = pages * page - draw(st.integers(0, page - 1))
    reads: list[tuple[int, int]] = []
    for _ in range(draw(st.integers(1, 8))):
        start, step = draw(st.integers(0, pages - 1)), draw(st.integers(-20, 40))
        size = draw(st.integers(1, 16))
        reads += [((start + i * step) * page, size * page) for i in range(draw(st.integers(1, 20)))]
    if draw(st.booleans()):
        reads = draw(st.permutations(reads))
    return file_size, limits, [(start, size) for start, size in reads if start >= 0]


@given(jobs())
def test_windows_lie_in_the_file_within_reach_and_are_asked_once(
    job: tuple[int, Limits, list[tuple[int, int]]],
) -> None:
    file_size, limits, reads = job
    pattern = Pattern()
    for start, size in reads:
        end = min(start + size, file_size)
        before = [(s.asked_from, s.asked_to, s) for s in pattern.streams]
        advice = advise(pattern, Extent(start, start + size), file_size, limits)
        assert (advice.kind in {S, T}) or not advice.windows
        assert all(0 <= w.start < w.end <= file_size for w in advice.windows)
        assert sum(w.size for w in advice.windows) <= limits.max_window_bytes
        assert all(a.end <= b.start for a, b in pairwise(advice.windows))
        if advice.kind is S:
            for window in advice.windows:
                assert window.end % limits.chunk_bytes == 0 or window.end in {file_size, *(b[0] for b in before)}
                assert any(window.end - s.front <= limits.max_window_bytes for s in pattern.streams)
                assert any(window.start >= s.front and window.end == s.asked_to for s in pattern.streams)
                alive = [asked for asked in before if asked[2] in pattern.streams]
                assert all(window.end <= asked_from or asked_to <= window.start for asked_from, asked_to, _ in alive)
        assert all(w.start >= end for w in advice.windows if advice.kind is T)
        assert len(pattern.streams) <= 4
        assert len(pattern.chains) <= 16


@given(st.integers(1, 40), st.integers(2, 8), st.integers(0, 100), st.integers(1, 3000))
def test_one_stream_asks_for_everything_once(size: int, window_chunks: int, first: int, pages: int) -> None:
    limits = Limits(16 * 4096, 16 * 4096 * window_chunks)
    file_size = pages * 4096
    reads = [(start, size * 4096) for start in range(first * 4096, file_size, size * 4096)]
    spans = [w for a in run(reads, file_size, limits) for w in a.windows]
    assert all(before.end <= after.start for before, after in pairwise(spans))
    if size <= 4:  # reads well below the window: nothing is skipped
        assert all(before.end == after.start for before, after in pairwise(spans))
        assert len(reads) < 3 or spans[-1].end == file_size
