"""The size of a cache root, shared out: never more than there is, nobody without a share, nothing asked in vain."""

from hypothesis import given
from hypothesis import strategies as st

from hfs.policies.cache.sharing import fair_bytes, givers, grant_bytes, kept_bytes, step_bytes

GIB = 1 << 30
sizes = st.integers(1, 1 << 45)
amounts = st.integers(0, 1 << 45)


def test_a_step_is_an_eighth_and_never_small() -> None:
    assert step_bytes(80 * GIB) == 10 * GIB
    assert step_bytes(4 * GIB) == GIB
    assert step_bytes(GIB // 2) == GIB // 2


def test_who_comes_first_has_a_step_and_more_only_as_it_fills() -> None:
    assert grant_bytes(80 * GIB, 0, 0, 0, 1) == 10 * GIB
    assert grant_bytes(80 * GIB, 0, 10 * GIB, 9 * GIB, GIB) == 10 * GIB
    assert grant_bytes(80 * GIB, 0, 10 * GIB, 9 * GIB, GIB + 1) == 19 * GIB
    assert grant_bytes(80 * GIB, 75 * GIB, 0, 0, 1) == 5 * GIB // 2, "the rest is for whoever comes"
    assert grant_bytes(80 * GIB, 75 * GIB, 0, 0, 5 * GIB) == 5 * GIB
    assert grant_bytes(80 * GIB, 90 * GIB, GIB, GIB, 1) == 0


@given(sizes, amounts, amounts, amounts, amounts)
def test_grants_together_are_never_more_than_the_size(size: int, others: int, own: int, used: int, wanted: int) -> None:
    granted = grant_bytes(size, others, own, used, wanted)
    assert 0 <= granted <= max(0, size - others)
    if own <= size - others:
        assert granted >= own
    if used + wanted <= size - others:
        assert granted >= min(used + wanted, size - others)


@given(sizes, amounts, amounts)
def test_what_is_kept_covers_what_is_used(size: int, own: int, used: int) -> None:
    kept = kept_bytes(size, own, min(own, used))
    assert min(own, used) <= kept <= own


def test_those_with_most_give_first_and_down_to_a_fair_share() -> None:
    fair = fair_bytes(90, 3)
    assert fair == 30
    assert list(givers({"a": 35, "b": 55, "c": 10}, fair, 100)) == [("b", 25), ("a", 5)]
    assert list(givers({"a": 35, "b": 55}, fair, 20)) == [("b", 20)]
    assert list(givers({"a": 30}, fair, 20)) == []
    assert fair_bytes(90, 0) == 90
