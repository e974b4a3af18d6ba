"""What fits, what is short, and what is no longer ours: room as arithmetic."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hfs.policies.cache.admission import (
    BLOCK_BYTES,
    RoomFacts,
    admit,
    blocks_bytes,
    default_floor_bytes,
    limit_bytes,
    object_overhead_bytes,
    over_bytes,
    shortfall_bytes,
    sized_floor_bytes,
)

GB = 1000**3
SIZED = RoomFacts(used_bytes=70, capacity_bytes=100, free_bytes=0, floor_bytes=0)
FLOORED = RoomFacts(used_bytes=70, capacity_bytes=None, free_bytes=50, floor_bytes=20)
BOTH = RoomFacts(used_bytes=70, capacity_bytes=100, free_bytes=50, floor_bytes=20)


def test_what_others_hold_cannot_be_given_back() -> None:
    assert over_bytes(replace(FLOORED, free_bytes=5)) == 15
    assert over_bytes(replace(FLOORED, free_bytes=0, used_bytes=3, floor_bytes=1000)) == 3
    assert over_bytes(FLOORED) == 0


def test_the_floor_is_a_tenth_of_the_disk_and_never_less_than_ten_gigabytes() -> None:
    assert default_floor_bytes(1000 * GB) == 100 * GB
    assert default_floor_bytes(50 * GB) == 10 * GB


def test_with_a_size_little_stays_free_and_nothing_where_the_disk_does_not_say() -> None:
    assert sized_floor_bytes(1000 * GB) == GB
    assert sized_floor_bytes(60_000_000) == 3_000_000
    assert sized_floor_bytes(0) == 0


def test_the_nearer_limit_counts() -> None:
    assert limit_bytes(SIZED) == 100
    assert limit_bytes(FLOORED) == 100
    assert limit_bytes(replace(BOTH, free_bytes=30)) == 80
    assert limit_bytes(replace(BOTH, free_bytes=0, used_bytes=5)) == 0
    assert limit_bytes(replace(SIZED, capacity_bytes=None)) is None


def test_bytes_take_whole_blocks_and_objects_a_block_more() -> None:
    assert [blocks_bytes(n) for n in (0, 1, 4096, 4097)] == [0, 4096, 4096, 8192]
    assert object_overhead_bytes(1) == BLOCK_BYTES
    assert object_overhead_bytes(2560) == 21 * BLOCK_BYTES


@given(st.integers(0, 1 << 40), st.none() | st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_giving_back_the_shortfall_is_enough_and_not_too_much(
    used: int, capacity: int | None, free: int, wanted: int
) -> None:
    facts = RoomFacts(used, capacity, free, floor_bytes=1 << 30)
    limit = limit_bytes(facts)
    assert limit is not None
    assert admit(facts, limit - used) or limit < used or not limit
    assert not admit(facts, limit - used + 1)
    short = shortfall_bytes(facts, wanted)
    enough = replace(facts, used_bytes=used - short, free_bytes=free + short)
    assert admit(enough, wanted)
    if short:
        less = replace(facts, used_bytes=used - short + 1, free_bytes=free + short - 1)
        assert not admit(less, wanted)
