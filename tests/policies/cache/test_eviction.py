"""What makes room under which policy, and what never does."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfs.policies.cache.eviction import HINTED_IDLE_S, IDLE_S, Entry, victims
from hfs.policies.cache.evictions import POLICIES

NOW_S = 1_000_000
FRESH = Entry(1, 10, NOW_S - 60)
FRESHER = Entry(2, 10, NOW_S - 30)
IDLE = Entry(3, 10, NOW_S - IDLE_S - 1)
SUPERSEDED = Entry(4, 10, NOW_S, superseded=True)
ALL = [FRESHER, FRESH, SUPERSEDED, IDLE]


def _keys(need: int, policy: str, entries: list[Entry] | None = None, *, forced: bool = False) -> list[int]:
    return [entry.key for entry in victims(entries or ALL, need, POLICIES[policy], now_s=NOW_S, forced=forced)]


def test_lru_takes_superseded_files_first_then_the_least_recently_used() -> None:
    assert _keys(35, "lru") == [4, 3, 1, 2]


def test_fill_once_keeps_what_was_used_today() -> None:
    assert _keys(1000, "fill-once") == [4, 3]


def test_fill_once_gives_up_what_is_used_when_the_room_is_no_longer_ours() -> None:
    assert _keys(25, "fill-once", forced=True) == [4, 3, 1]


def test_no_more_than_needed_goes() -> None:
    assert _keys(0, "lru") == []
    assert _keys(10, "lru") == [4]
    assert _keys(11, "lru") == [4, 3]


def test_open_files_never_go() -> None:
    pinned = [replace(entry, pinned=True) for entry in ALL]
    assert _keys(1000, "lru", pinned, forced=True) == []
    assert _keys(1000, "fill-once", pinned, forced=True) == []


entries = st.builds(
    Entry, st.integers(0, 99), st.integers(0, 50), st.integers(0, 2 * NOW_S), st.booleans(), st.booleans()
)


@given(st.lists(entries), st.integers(0, 500), st.sampled_from(["lru", "fill-once"]), st.booleans())
def test_the_last_victim_was_needed_and_the_first_ones_were_not_enough(
    found: list[Entry], need: int, policy: str, forced: bool
) -> None:
    chosen = victims(found, need, POLICIES[policy], now_s=NOW_S, forced=forced)
    freed = [entry.room_bytes for entry in chosen]
    assert not any(entry.pinned for entry in chosen)
    assert not chosen or sum(freed[:-1]) < need
    free = [entry for entry in found if not entry.pinned]
    if policy == "lru" and sum(freed) < need:
        assert len(chosen) == len(free)


@pytest.mark.parametrize("policy", ["fill-once", "lru"])
def test_what_an_order_names_stays_unless_the_room_is_not_ours(policy: str) -> None:
    named = Entry(1, 10, NOW_S - 10 * IDLE_S, hinted=True)
    assert victims([named], 10, POLICIES[policy], now_s=NOW_S) == []
    assert victims([named], 10, POLICIES[policy], now_s=NOW_S, forced=True) == [named]
    gone = Entry(1, 10, NOW_S, superseded=True, hinted=True)
    assert victims([gone], 10, POLICIES[policy], now_s=NOW_S) == [gone]


def test_fill_once_gives_up_what_is_idle_for_an_hour_while_orders_lack_room() -> None:
    hour, minute = Entry(1, 10, NOW_S - 3601), Entry(2, 10, NOW_S - 60)
    assert victims([hour, minute], 20, POLICIES["fill-once"], now_s=NOW_S) == []
    assert victims([hour, minute], 20, POLICIES["fill-once"], now_s=NOW_S, idle_s=HINTED_IDLE_S) == [hour]
