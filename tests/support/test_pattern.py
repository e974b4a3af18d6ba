"""The computed contents themselves: same bytes however they are cut, and a wrong byte is traced to its origin."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.pattern import MAX_SEED, explain, origin, pattern

SEEDS = st.integers(1, MAX_SEED)
OFFSETS = st.integers(0, 1 << 40)


@given(SEEDS, OFFSETS, st.integers(0, 300), st.integers(0, 300))
def test_a_run_is_the_same_however_it_is_cut(seed: int, offset: int, first: int, second: int) -> None:
    assert pattern(seed, offset, first) + pattern(seed, offset + first, second) == pattern(seed, offset, first + second)


@given(SEEDS, OFFSETS)
def test_bytes_tell_where_they_come_from(seed: int, offset: int) -> None:
    assert origin(pattern(seed, offset, 64)) == (seed, offset)


def test_wrong_bytes_are_explained() -> None:
    good = pattern(7, 1000, 400)
    assert explain(7, 1000, good) is None
    swapped = good[:100] + pattern(9, 5, 200) + good[300:]
    assert "the bytes of file 9 at 5" in str(explain(7, 1000, swapped))
    assert "the first at 1100" in str(explain(7, 1000, swapped))
    assert "zeros" in str(explain(7, 1000, good[:100] + bytes(300)))
    assert "unknown bytes" in str(explain(7, 1000, good[:100] + b"x" * 300))
