"""Statahead: what is asked for ahead of look-ups in order, and how little is when they are not."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from hfs.policies.prefetch.statahead import NEAR, Reader


def walked(reader: Reader, positions: list[int], count: int, others: int = 0) -> list[range]:
    """What each look-up has asked for. `others`: look-ups of other readers before each."""
    return [reader.looked_up(position, count, i * (others + 1)) for i, position in enumerate(positions)]


def test_three_look_ups_in_order_begin_it_and_windows_double() -> None:
    reader = Reader(0)
    asked = [ahead for ahead in walked(reader, list(range(3000)), 100_000) if ahead]
    assert asked[0] == range(3, 19)
    assert [len(ahead) for ahead in asked[:6]] == [16, 32, 64, 128, 256, 512]
    assert {len(ahead) for ahead in asked[6:]} == {512}


def test_a_reader_in_order_asks_for_nothing_itself_but_the_first_three() -> None:
    reader = Reader(0)
    asked = set()
    late = 0
    for position in range(10_000):
        late += position not in asked
        asked.update(reader.looked_up(position, 10_000, position))
    assert late == 3
    assert asked == set(range(3, 10_000))


def test_it_begins_in_the_middle_and_ends_at_the_end() -> None:
    reader = Reader(90)
    assert [p for ahead in walked(reader, list(range(90, 100)), 100) for p in ahead] == list(range(93, 100))


def test_threads_that_share_an_order_are_in_order() -> None:
    """Sixteen look-ups at a time, in any order among themselves."""
    rng, positions = random.Random(1), []
    for start in range(0, 4096, 16):
        positions += rng.sample(range(start, start + 16), 16)
    reader = Reader(0)
    asked = {p for ahead in walked(reader, positions, 4096) for p in ahead}
    assert len(asked) > 4000


def test_every_other_name_is_order_enough_and_every_tenth_is_not() -> None:
    assert any(walked(Reader(0), list(range(0, 2000, 2)), 2000))
    assert not any(walked(Reader(0), list(range(9, 2000, 10)), 2000))


def test_a_reader_that_begins_to_skip_is_given_up() -> None:
    reader = Reader(0)
    walked(reader, list(range(1000)), 100_000)
    assert reader.steady
    after = walked(reader, list(range(1000, 20_000, 10)), 100_000)
    assert not reader.steady
    assert sum(map(len, after)) <= 512  # what was begun when it was still in order


def test_readers_that_take_turns_are_in_order_and_rare_look_ups_are_not() -> None:
    assert any(walked(Reader(0), list(range(100)), 1000, others=15))
    assert not any(walked(Reader(0), list(range(100)), 1000, others=16))


def test_looking_back_asks_for_nothing() -> None:
    reader = Reader(50)
    assert not any(walked(reader, [50, 49, 10, 0], 60)[:2])


@given(st.lists(st.integers(0, 999), max_size=400), st.integers(0, 999))
def test_nothing_is_asked_for_twice_nor_far_ahead_nor_beyond_the_end(positions: list[int], start: int) -> None:
    reader, asked, most = Reader(start), set(), 0
    for number, position in enumerate(positions):
        ahead = reader.looked_up(position, 1000, number)
        assert not asked & set(ahead)
        asked.update(ahead)
        most = max(most, position)
        assert all(most < p < 1000 for p in ahead)
        assert reader.asked - reader.next <= 768


@given(st.integers(1, 3000))
def test_a_reader_that_stops_leaves_little_behind(look_ups: int) -> None:
    reader = Reader(0)
    asked = {p for ahead in walked(reader, list(range(look_ups)), 1_000_000) for p in ahead}
    in_vain = sum(p >= look_ups for p in asked)
    assert in_vain <= min(768, 8 * look_ups)
    assert look_ups >= 3 or not asked


def test_a_random_order_asks_for_next_to_nothing() -> None:
    """All names of a large directory, each told to the reader that it is nearest to, as near as readers go."""
    order, reader, asked = random.Random(5).sample(range(10_000), 10_000), Reader(0), 0
    for number, position in enumerate(order):
        if abs(position - reader.next) > NEAR:
            reader = Reader(position)
        asked += len(reader.looked_up(position, 10_000, number))
    assert asked < 100
