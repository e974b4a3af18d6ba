"""What is known of a clock that nobody can ask, and which time stamps are old by it. Times in seconds here."""

from __future__ import annotations

import time

import pytest

from hfs.mountd.source.second_looks import SourceClock, tick_ns

S = 10**9
OURS = 5_000_000 * S
FINE = 123_456_789
"""A part of a second: stamps that have one are fine."""


class Ours:
    """Our clock; also what the tests' source clocks are compared with, wherever they stand."""

    def __init__(self) -> None:
        self.now_ns = OURS

    def __call__(self) -> int:
        return self.now_ns


def clock() -> SourceClock:
    return SourceClock(our_ns=Ours())


def test_a_tick_is_as_fine_as_the_stamp() -> None:
    assert tick_ns(7 * S) == 2 * S
    assert tick_ns(7 * S + FINE) == S // 50


@pytest.mark.parametrize("stamp", [1_000_000 * S, 4_999_999 * S])
def test_a_stamp_is_over_once_it_has_been_known_for_a_tick(stamp: int) -> None:
    source = clock()
    assert not source.is_over(stamp, 10 * S)  # nothing is known of this clock
    source.saw(stamp, 10 * S)
    assert [source.is_over(stamp, at * S) for at in (10, 11, 12, 13)] == [False, False, True, True]
    assert source.is_over(stamp - 2 * S, 10 * S)
    assert not source.is_over(stamp - S, 10 * S)
    assert not source.is_over(stamp + FINE, 10 * S)
    assert source.is_over(stamp + FINE, 10 * S + FINE + S // 50)


def test_what_is_settled_is_over() -> None:
    """The same rule for who cannot ask about each stamp, at the time that it is now."""
    source, now_ns = clock(), time.monotonic_ns()
    assert not any(source.settled().has(stamp) for stamp in (1, S))  # nothing is known of this clock
    newest = 1_000_000 * S + FINE
    source.saw(newest, now_ns - S)  # so it is a second later by now, and a little more
    settled = source.settled()
    for stamp in (newest - 2 * S, newest, newest + S - S // 50, 999_999 * S, 1_000_000 * S + 1, 1_000_000 * S):
        assert settled.has(stamp) <= source.is_over(stamp, time.monotonic_ns())
    assert all(settled.has(stamp) for stamp in (newest, 999_999 * S, newest + S - S // 50))
    assert not settled.has(newest - FINE)  # of a whole second
    assert not settled.has(newest + 100 * S)
    assert SourceClock(stands=True).settled().has(OURS * 2)


def test_a_newer_stamp_proves_that_an_older_one_was_over_before_it_was_seen() -> None:
    source = clock()
    source.saw(1000 * S, 10 * S)
    assert not source.is_over(1000 * S, 10 * S)
    source.saw(1010 * S, 15 * S)  # five seconds later, ten seconds newer: its clock was at 1005 or later at 10
    assert source.is_over(1000 * S, 10 * S)
    source.saw(900 * S, 16 * S)  # an old file says nothing
    assert not source.is_over(1009 * S, 15 * S)


def test_a_stamp_from_our_future_speaks_for_itself_only() -> None:
    """One file of a time when a clock was wrong must not make all others look old."""
    source = clock()
    source.saw(OURS + 3600 * S, 10 * S)
    source.saw(1000 * S, 20 * S)
    assert not source.is_over(1000 * S, 20 * S)
    assert not source.is_over(OURS + 3600 * S, 11 * S)
    assert source.is_over(OURS + 3600 * S, 12 * S)
    assert not source.is_over(OURS + 3599 * S, 12 * S)


def test_stamps_from_our_future_are_bounded() -> None:
    source = clock()
    for number in range(10_000):
        source.saw(OURS + number * S + 1, 10 * S)
    assert not source.is_over(OURS + S + 1, 20 * S)  # forgotten: seen for the first time again
    assert source.is_over(OURS + S + 1, 20 * S + tick_ns(1))
    assert len(source._future) <= 4096


def test_a_local_file_system_has_our_clock() -> None:
    ours = Ours()
    source = SourceClock(is_ours=True, our_ns=ours)
    now_ns = time.monotonic_ns()
    assert not source.listens
    assert source.is_over(OURS - 3 * S, now_ns)
    assert not source.is_over(OURS - S, now_ns)
    assert source.is_over(OURS - S + FINE, now_ns)
    # Made elsewhere, by a clock that was ahead: known for a tick is enough.
    assert not source.is_over(OURS + 3600 * S, now_ns)
    assert source.is_over(OURS + 3600 * S, now_ns + 2 * S)


def test_what_cannot_change_has_no_ticks() -> None:
    assert SourceClock(stands=True, our_ns=Ours()).is_over(OURS + 1, 0)
