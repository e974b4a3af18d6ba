"""policies/density: stages one by one, and the simulated jobs that its constants come from."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfs.policies.geometry import Extent
from hfs.policies.prefetch.miss_policy import Decision, Fetch, Follow, MissPolicy, ScheduledChunk, bypass_extent
from tests.policies.cache.simulation import CHUNK_BYTES, Outcome, Speed, simulate

KIB, MIB, GB = 1 << 10, 1 << 20, 10**9
SAMPLE = 19_000
BUSY = Speed(latency_s=0.01, stream=20e6, shared=50e6)

BYPASS = Decision(Fetch.BYPASS, Follow.NOTHING)
CHUNK = Decision(Fetch.CHUNK, Follow.NOTHING)
CLUSTER = Decision(Fetch.BYPASS, Follow.CHUNK)
FILL = Decision(Fetch.BYPASS, Follow.FILL)
WAIT_FOR_FILL = Decision(Fetch.WAIT_FOR_FILL, Follow.FILL)
FULL = Decision(Fetch.CHUNK, Follow.FILL)


def touch(
    density: MissPolicy, start: int, missing: int, size: int = SAMPLE, *, sequential: bool = False, room: bool = True
) -> Decision:
    return density.missed(Extent(start, start + size), sequential=sequential, missing_chunks=missing, can_stage=room)


def scattered(count: int, size: int, read_bytes: int = SAMPLE) -> list[tuple[int, int]]:
    rng = random.Random(1)
    return [(0, rng.randrange(size - read_bytes)) for _ in range(count)]


def every_sample(size: int, read_bytes: int = SAMPLE) -> list[tuple[int, int]]:
    reads = [(0, start) for start in range(0, size - read_bytes, read_bytes)]
    random.Random(1).shuffle(reads)
    return reads


def test_the_stages_follow_each_other() -> None:
    density = MissPolicy(40 * CHUNK_BYTES, CHUNK_BYTES)
    seen = [touch(density, (i * 7 % 40) * CHUNK_BYTES, 40) for i in range(90)]
    assert seen == [BYPASS] * 19 + [FILL] * 61 + [FULL] * 10


def test_a_cluster_of_touches_brings_its_chunk() -> None:
    density = MissPolicy(1000 * CHUNK_BYTES, CHUNK_BYTES)
    assert [touch(density, 5 * CHUNK_BYTES + i * 100_000, 1000) for i in range(6)] == [BYPASS] * 3 + [CLUSTER] * 3
    assert touch(density, 6 * CHUNK_BYTES, 1000) == BYPASS


def test_bytes_count_as_touches_do() -> None:
    density = MissPolicy(200 * CHUNK_BYTES, CHUNK_BYTES)
    seen = [touch(density, i * 9 * CHUNK_BYTES, 200, MIB) for i in range(13)]
    assert seen == [BYPASS] * 11 + [FULL] * 2  # 10.7 MiB are a 150th of 1600 MiB


def test_a_dense_miss_waits_for_a_fill_that_is_near_and_one_chunk_in_16_does_not() -> None:
    def dense(missing: int, filled_in_s: float, *, coming: bool = False) -> Decision:
        return density.missed(
            Extent(0, 4096),
            sequential=False,
            missing_chunks=missing,
            can_stage=True,
            coming=coming,
            filled_in_s=filled_in_s,
        )

    density = MissPolicy(64 * CHUNK_BYTES, CHUNK_BYTES)
    everywhere = (touch(density, index * CHUNK_BYTES, 64, 4096) for index in itertools.cycle(range(64)))
    assert FULL in everywhere
    assert dense(64, 29.0) == WAIT_FOR_FILL
    assert dense(64, 31.0) == FULL  # too far away
    assert dense(64, 29.0, coming=True) == FULL  # it is being fetched: joined
    assert [dense(32, 1.0) for _ in range(4)] == [FULL, FULL, WAIT_FOR_FILL, WAIT_FOR_FILL]  # 2 of the 32 that are here


def test_groups_of_neighbours_are_fetched_with_what_lies_around_them() -> None:
    density = MissPolicy(20 * CHUNK_BYTES, CHUNK_BYTES)
    found = [touch(density, 5 * CHUNK_BYTES + i * SAMPLE, 20) for i in range(12)]
    assert found[:3] == [BYPASS] * 3, "somebody looks at the file"
    assert found[9:] == [Decision(Fetch.CHUNK, Follow.FILL_AROUND)] * 3
    others = [touch(density, index * CHUNK_BYTES, 20).follow for index in (8, 1, 15, 12, 18, 3, 10, 6, 13, 17, 0)]
    assert set(others) == {Follow.FILL_AROUND}, "of each further group the first miss is the only one"
    uniform = MissPolicy(20 * CHUNK_BYTES, CHUNK_BYTES)
    follows = {touch(uniform, i * 7 % 20 * CHUNK_BYTES, 20).follow for i in range(50)}
    assert Follow.FILL_AROUND not in follows
    huge = MissPolicy(20_000 * CHUNK_BYTES, CHUNK_BYTES)
    follows = {touch(huge, i * 7 % 20_000 * CHUNK_BYTES, 20_000, 4096).follow for i in range(10_000)}
    assert follows == {Follow.NOTHING, Follow.FILL}, "where the counts start again too"


def test_page_faults_read_alone_leave_the_mean_request_above_4_mib() -> None:
    count = 40
    density = MissPolicy(count * CHUNK_BYTES, CHUNK_BYTES)
    faults = [touch(density, (i * 7 % count) * CHUNK_BYTES, count, 4096) for i in range(200)]
    alone = sum(decision.fetch is Fetch.BYPASS for decision in faults)
    assert count * CHUNK_BYTES / (count + alone) > 4 * MIB


def test_what_is_missing_counts_not_the_size_of_the_file() -> None:
    density = MissPolicy(1000 * CHUNK_BYTES, CHUNK_BYTES)
    assert [touch(density, i * CHUNK_BYTES, 4) for i in range(3)] == [BYPASS, FILL, FILL]


@pytest.mark.parametrize(
    ("size", "chunk_bytes", "read_bytes", "sequential", "room", "expected"),
    [
        pytest.param(CHUNK_BYTES, CHUNK_BYTES, SAMPLE, False, True, CHUNK, id="a file of one chunk"),
        pytest.param(CHUNK_BYTES + 1, CHUNK_BYTES, SAMPLE, False, True, BYPASS, id="a file of two"),
        pytest.param(20 * GB, CHUNK_BYTES, SAMPLE, True, True, CHUNK, id="sequential"),
        pytest.param(20 * GB, CHUNK_BYTES, SAMPLE, True, False, CHUNK, id="sequential, no room"),
        pytest.param(20 * GB, CHUNK_BYTES, SAMPLE, False, False, BYPASS, id="random, no room"),
        pytest.param(20 * GB, CHUNK_BYTES, CHUNK_BYTES // 2, False, True, CHUNK, id="half a chunk"),
        pytest.param(20 * GB, 256 * KIB, 4 * KIB, False, True, CHUNK, id="chunks as cheap as alone"),
    ],
)
def test_the_first_touch(
    size: int, chunk_bytes: int, read_bytes: int, sequential: bool, room: bool, expected: Decision
) -> None:
    density = MissPolicy(size, chunk_bytes)
    assert touch(density, 0, -(-size // chunk_bytes), read_bytes, sequential=sequential, room=room) == expected


def test_without_room_no_number_of_touches_brings_chunks() -> None:
    density = MissPolicy(10 * CHUNK_BYTES, CHUNK_BYTES)
    assert {touch(density, 0, 10, room=False) for _ in range(100)} == {BYPASS}
    assert touch(density, 0, 10) == BYPASS  # they were no touches either


def test_sequential_reads_are_no_touches() -> None:
    density = MissPolicy(10 * CHUNK_BYTES, CHUNK_BYTES)
    for i in range(100):
        touch(density, i * SAMPLE, 10, sequential=True)
    assert touch(density, 0, 10) == BYPASS


def test_memory_is_bounded() -> None:
    density = MissPolicy(1 << 50, CHUNK_BYTES)
    for i in range(10_000):
        touch(density, i * CHUNK_BYTES, 1 << 27)
    assert len(density._by_chunk) <= 4096


@given(st.lists(st.tuples(st.integers(0, 49), st.integers(1, 3 * MIB)), max_size=300), st.integers(2, 50))
def test_stages_are_never_left_and_the_bytes_read_alone_are_bounded(
    touches: list[tuple[int, int]], chunks: int
) -> None:
    density = MissPolicy(chunks * CHUNK_BYTES, CHUNK_BYTES)
    rank = {BYPASS: 0, CLUSTER: 0, FILL: 1, FULL: 2}
    highest = bypass_bytes = 0
    for index, size in touches:
        decision = touch(density, index % chunks * CHUNK_BYTES, chunks, size)
        assert rank[decision] >= highest
        highest = rank[decision]
        bypass_bytes += size if decision.fetch is Fetch.BYPASS else 0
    # The last read before the bound may go over it, and the first is free.
    assert bypass_bytes <= chunks * CHUNK_BYTES // 150 + 2 * 3 * MIB


@given(st.integers(0, 10 * MIB), st.integers(1, MIB), st.integers(1, 10 * MIB))
def test_bypass_extents_hold_the_read_and_little_more(start: int, size: int, file_size: int) -> None:
    start = min(start, file_size - 1)
    read = Extent(start, min(start + size, file_size))
    alone = bypass_extent(read, file_size)
    assert alone.start <= read.start
    assert read.end <= alone.end <= file_size
    assert alone.start % 4096 == 0
    assert alone.end % 4096 == 0 or alone.end == file_size
    assert alone.size <= (128 * KIB if read.size < 16 * KIB else read.size + 2 * 4095)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (70_000, 74_096, (65_536, 131_072)),  # tiny: its block
        (130_000, 132_000, (65_536, 196_608)),  # tiny, over an edge: two blocks
        (70_000, 89_000, (69_632, 90_112)),  # a sample: its pages
        (999_000, 1_000_000, (983_040, 1_000_000)),  # never past the end
        (0, 16_384, (0, 16_384)),
    ],
)
def test_bypass_extent_by_example(start: int, end: int, expected: tuple[int, int]) -> None:
    assert bypass_extent(Extent(start, end), 1_000_000) == Extent(*expected)


def test_100_samples_of_20_gb_cost_what_they_cost_direct() -> None:
    found = simulate([20 * GB], scattered(100, 20 * GB), SAMPLE)
    assert found.seconds <= 1.2 * found.direct_s
    assert found.source_bytes <= 10e6


@pytest.mark.parametrize(("speed", "gain"), [(Speed(), 5), (BUSY, 10)])
def test_all_samples_of_a_file_come_as_chunks(speed: Speed, gain: float) -> None:
    reads = every_sample(1_500_000_000)
    found = simulate([1_500_000_000], reads, SAMPLE, readers=2, speed=speed)
    assert found.seconds <= found.direct_s / gain
    assert found.source_bytes <= 1.02 * 1_500_000_000
    assert found.requests <= len(reads) / 40
    bound_s = 1_500_000_000 / speed.shared
    assert found.seconds - len(reads) / 2 * 0.0001 <= 1.05 * bound_s


@pytest.mark.parametrize(("reads", "worst"), [(250, 1.25), (1000, 1.25), (1700, 6.5)])
def test_middling_jobs_are_not_ruined(reads: int, worst: float) -> None:
    found = simulate([5 * GB], scattered(reads, 5 * GB), SAMPLE)
    assert found.seconds <= worst * found.direct_s


def test_many_files_touched_once_or_at_random_stay_cheap() -> None:
    rng = random.Random(3)

    def check(found: Outcome, bytes_per_read: float) -> None:
        assert found.seconds <= 1.3 * found.direct_s
        assert found.source_bytes <= bytes_per_read * found.alone

    once = [(i, rng.randrange(100_000_000 - SAMPLE)) for i in range(200)]
    check(simulate([100_000_000] * 200, once, SAMPLE, readers=4), 30_000)
    few_chunks = [(i, 0) for i in range(200)]
    check(simulate([30_000_000] * 200, few_chunks, SAMPLE, readers=4), 30_000)
    large = [(rng.randrange(64), rng.randrange(6 * GB - SAMPLE)) for _ in range(3000)]
    check(simulate([6 * GB] * 64, large, SAMPLE, readers=4), 30_000)


def test_skewed_and_clustered_reads_gain_before_the_file_is_dense() -> None:
    rng = random.Random(4)
    count = 20 * GB // CHUNK_BYTES

    def zipf() -> int:
        region = int(rng.paretovariate(1.0)) * 2_654_435_761 % count
        return region * CHUNK_BYTES + rng.randrange(CHUNK_BYTES - SAMPLE)

    skewed = simulate([20 * GB], [(0, zipf()) for _ in range(500)], SAMPLE)
    assert skewed.seconds <= 0.6 * skewed.direct_s
    nodes = [(0, (i % 3) * 40 * CHUNK_BYTES + rng.randrange(CHUNK_BYTES - 4096)) for i in range(300)]
    clustered = simulate([20 * GB], nodes, 4096)
    assert clustered.chunks == 3
    assert clustered.seconds <= 0.5 * clustered.direct_s


# --- Where a hint schedules the chunk


def decided(density: MissPolicy, scheduled: ScheduledChunk, size: int = 4096, missing: int = 1000) -> Fetch:
    decision = density.missed(
        Extent(0, size), sequential=False, missing_chunks=missing, can_stage=True, scheduled=scheduled
    )
    assert decision.follow is Follow.NOTHING
    return decision.fetch


def test_tiny_records_of_a_sweep_are_waited_for_after_some_touches() -> None:
    density = MissPolicy(1000 * CHUNK_BYTES, CHUNK_BYTES)
    scheduled = ScheduledChunk(soon_bytes=0, sample_bytes=3000, swept=True)
    assert [decided(density, scheduled) for _ in range(17)] == [Fetch.BYPASS] * 16 + [Fetch.WAIT_FOR_SWEEP]
    assert decided(density, scheduled, size=128 << 10) is Fetch.WAIT_FOR_SWEEP, "the kernel's readahead at a fault"


def test_larger_samples_of_a_sweep_are_fetched_alone_for_a_twentieth_of_what_has_come() -> None:
    density = MissPolicy(1000 * CHUNK_BYTES, CHUNK_BYTES)
    scheduled = ScheduledChunk(soon_bytes=0, sample_bytes=20_000, swept=True)
    count = 0
    while decided(density, scheduled, 20_000) is Fetch.BYPASS:
        count += 1
    assert 150 < count < 200
    assert decided(density, scheduled, 20_000, missing=900) is Fetch.BYPASS
    assert decided(density, scheduled, 20_000) is Fetch.WAIT_FOR_SWEEP


def test_a_chunk_that_is_read_much_now_or_comes_by_itself_is_fetched_at_once() -> None:
    density = MissPolicy(1000 * CHUNK_BYTES, CHUNK_BYTES)
    assert decided(density, ScheduledChunk(CHUNK_BYTES // 8, 20_000, swept=False), 20_000) is Fetch.CHUNK
    assert decided(density, ScheduledChunk(CHUNK_BYTES // 8, 20_000, swept=True), 20_000) is Fetch.WAIT_FOR_SWEEP
