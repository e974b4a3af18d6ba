"""The ring of bytes against a model that knows every byte, and how batches are divided."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfs.policies.ring import Ring, part

CAPACITY = 1024
ALIGN = 64


@given(st.lists(st.one_of(st.none(), st.integers(0, CAPACITY)), max_size=60))
def test_pieces_never_overlap_and_have_room_when_the_others_have_gone(steps: list[int | None]) -> None:
    """None frees the oldest; a number places as many bytes."""
    ring = Ring(CAPACITY, pieces=5, align=ALIGN)
    placed: list[range] = []
    for size in steps:
        if size is None:
            if placed:
                ring.free()
                placed.pop(0)
            continue
        at = ring.place_nowait(size)
        if at is None:
            assert placed, "an empty ring refuses nothing that it can hold"
            continue
        assert at % ALIGN == 0
        assert at + size <= CAPACITY
        piece = range(at, at + max(size, 1))
        assert all(piece.stop <= other.start or other.stop <= piece.start for other in placed)
        placed.append(piece)
        assert len(ring) == len(placed) <= 5
        assert sum(map(len, placed)) <= ring.used_bytes <= CAPACITY


def test_the_whole_ring_is_used_and_full_is_not_empty() -> None:
    ring = Ring(256, pieces=9)
    assert [ring.place_nowait(64) for _ in range(5)] == [0, 64, 128, 192, None]
    ring.free()
    assert ring.place_nowait(65) is None
    assert ring.place_nowait(64) == 0
    assert ring.place_nowait(0) is None
    for _ in range(4):
        ring.free()
    assert ring.place_nowait(256) == 0


def test_what_will_never_fit_is_an_error() -> None:
    ring = Ring(1000, pieces=2)
    assert ring.capacity_bytes == 960
    assert ring.holds(960)
    assert not ring.holds(961)
    with pytest.raises(ValueError, match="1024 bytes do not fit into 960"):
        ring.place_nowait(961)


@given(st.integers(0, 1000), st.integers(1, 70))
def test_parts_cover_a_batch_once_and_are_fair(count: int, world: int) -> None:
    parts = [part(count, rank, world) for rank in range(world)]
    assert [i for first, last in parts for i in range(first, last)] == list(range(count))
    sizes = [last - first for first, last in parts]
    assert max(sizes) - min(sizes) <= 1
