"""policies/successors: what it costs where there is nothing to learn, and what it gains where there is."""

import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfs.policies.geometry import Extent
from hfs.policies.prefetch.miss_policy import bypass_extent
from hfs.policies.schedule.successors import Successors, Trail

CHUNK_BYTES = 1 << 20
SAMPLE_BYTES = 20_000
SAMPLES = CHUNK_BYTES // SAMPLE_BYTES
Read = tuple[int, int, int]
"""Handle, chunk, sample in the chunk."""


@dataclass
class Outcome:
    paid: int = 0
    alone: int = 0
    ahead: int = 0
    wasted: int = 0
    """Bytes that were read ahead and not saved."""
    without: int = 0
    """Bytes that would have been read without guesses."""


def play(reads: Iterable[Read], chunks: int, *, staged: int, held: int = 4, guesses: bool = True) -> Outcome:
    """Readers of a file of which `staged` chunks are in a cache that is full; `held` more are kept for a while."""
    history = Successors(chunks * CHUNK_BYTES, CHUNK_BYTES)
    trails: dict[int, Trail] = {}
    kept: OrderedDict[int, None] = OrderedDict()
    out = Outcome()
    for handle, index, sample in reads:
        start = index * CHUNK_BYTES + sample * SAMPLE_BYTES
        read = Extent(start, start + SAMPLE_BYTES)
        if index in kept:
            history.hit(index, read)
        elif index >= staged:
            size = bypass_extent(read, chunks * CHUNK_BYTES).size
            history.paid(size)
            out.paid += size
            out.alone += 1
        if history.enters(trails.setdefault(handle, Trail()), index) and guesses:
            for ahead in history.worth_fetching(index, lambda i: i < staged or i in kept):
                assert 0 <= ahead < chunks
                kept[ahead] = None
                out.ahead += CHUNK_BYTES
                if len(kept) > held:
                    kept.popitem(last=False)
    out.wasted = history.ahead_bytes - history.saved_bytes
    out.without = out.paid + history.saved_bytes
    assert out.ahead == history.ahead_bytes
    return out


def uniform(rng: random.Random, chunks: int, count: int, handles: int) -> Iterator[Read]:
    for _ in range(count):
        yield rng.randrange(handles), rng.randrange(chunks), rng.randrange(SAMPLES)


def epochs_of_pieces(rng: random.Random, chunks: int, passes: int) -> Iterator[Read]:
    """The same order of the chunks in each pass, the samples of each in another order every time."""
    order = rng.sample(range(chunks), chunks)
    for _ in range(passes):
        for index in order:
            for sample in rng.sample(range(SAMPLES), SAMPLES):
                yield 0, index, sample


def walks(rng: random.Random, chunks: int, count: int) -> Iterator[Read]:
    """`count` walks through one mapping that take turns at random."""
    length = chunks // count
    at = [0] * count
    while live := [walk for walk in range(count) if at[walk] < length * SAMPLES]:
        walk = rng.choice(live)
        yield 0, walk * length + at[walk] // SAMPLES, at[walk] % SAMPLES
        at[walk] += 1


@pytest.mark.parametrize("chunks", [2, 3, 5, 12, 40, 200])
def test_truly_random_reads_cost_less_than_a_twentieth(chunks: int) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        found = play(uniform(rng, chunks, 1000, rng.randint(1, 4)), chunks, staged=chunks // 3)
        assert found.wasted * 100 <= 5 * found.without
        if chunks >= 40:
            assert found.ahead == 0  # it is not even tried


def test_shuffled_epochs_cost_next_to_nothing() -> None:
    for seed in range(5):
        rng = random.Random(seed)
        samples = [(0, index, sample) for index in range(30) for sample in range(SAMPLES)]
        reads = [read for _ in range(3) for read in rng.sample(samples, len(samples))]
        found = play(reads, 30, staged=10)
        assert found.wasted * 100 <= found.paid


@given(
    st.integers(2, 40).flatmap(
        lambda chunks: st.tuples(
            st.just(chunks),
            st.integers(0, chunks - 1),
            st.lists(
                st.tuples(st.integers(0, 2), st.integers(0, chunks - 1), st.integers(0, SAMPLES - 1)), max_size=300
            ),
        )
    )
)
def test_whatever_is_read_the_ledger_holds(case: tuple[int, int, list[Read]]) -> None:
    chunks, staged, reads = case
    found = play(reads * 4, chunks, staged=staged)
    assert found.wasted * 100 <= 5 * found.without


def test_an_order_of_pieces_that_repeats_is_fetched_ahead() -> None:
    """A file three times as large as the cache, five epochs."""
    rng = random.Random(1)
    reads = list(epochs_of_pieces(rng, 60, 5))
    without = play(reads, 60, staged=20, guesses=False)
    found = play(reads, 60, staged=20)
    assert found.alone <= 0.35 * without.alone
    assert found.paid + found.ahead <= 1.05 * without.paid


def test_an_order_that_changes_is_found_out_and_learned_anew() -> None:
    rng = random.Random(2)
    first, second = (list(epochs_of_pieces(rng, 60, 4)) for _ in range(2))
    found = play(first + second, 60, staged=20)
    assert found.wasted * 100 <= 5 * found.without
    assert found.alone <= 0.6 * play(first + second, 60, staged=20, guesses=False).alone


@pytest.mark.parametrize("count", [1, 3, 6])
def test_walks_through_one_mapping_are_fetched_ahead_in_their_first_pass(count: int) -> None:
    reads = list(walks(random.Random(3), 240, count))
    without = play(reads, 240, staged=0, held=12, guesses=False)
    found = play(reads, 240, staged=0, held=12)
    assert found.alone <= 0.65 * without.alone
    assert found.paid + found.ahead <= 1.05 * without.paid


def test_memory_is_bounded() -> None:
    history, trail = Successors(1 << 50, CHUNK_BYTES), Trail()
    for index in range(10_000):
        history.enters(trail, index)
        history.paid(CHUNK_BYTES * 100)
        history.worth_fetching(index, lambda _: False)
    assert len(history._followers) <= 2048
    assert len(history._ahead) <= 64
    assert len(trail.recent) <= 8
