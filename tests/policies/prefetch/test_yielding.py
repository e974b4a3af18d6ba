"""Yielding: readers of other mounts go first, what the source has besides is used, nobody is stopped by what is said.

A source of one link, in virtual time: each fetch ahead that is under way makes a reader wait longer, from some on.
"""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from hfs.policies.prefetch.yielding import FLOOR, Yielding

LOOK_S = 0.05


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def run(self, yielding: Yielding, spent_s: float, wait_s: Callable[[float], float] | None) -> list[float]:
        """A reader that waits all the time, so long each time at this share; None: none waits. All shares."""
        shares, since_s = [], 0.0
        until_s = self.now_s + spent_s
        while self.now_s < until_s:
            self.now_s += LOOK_S
            if wait_s is None:
                shares.append(yielding.look(0, 0.0, 0, self.now_s))
                continue
            since_s += LOOK_S
            each_s = wait_s(yielding.share)
            count = int(since_s / each_s)
            since_s -= count * each_s
            shares.append(yielding.look(count, count * each_s, 1, self.now_s))
        return shares


def mean(shares: list[float]) -> float:
    return sum(shares) / len(shares)


def test_all_is_fetched_ahead_where_none_waits() -> None:
    assert set(Clock().run(Yielding(), 10, None)) == {1.0}


def test_the_first_reader_that_waits_finds_the_floor() -> None:
    yielding = Yielding()
    assert yielding.look(0, 0.0, 1, 7.0) == FLOOR
    assert FLOOR > 0


def test_a_source_that_is_full_is_left_to_readers() -> None:
    """32 at a time make a wait of 5 ms one of 37; what is left over is used up to there."""
    clock, yielding = Clock(), Yielding()
    shares = clock.run(yielding, 30, lambda share: 0.005 + 0.032 * share)
    assert mean(shares[20:]) < 4 * FLOOR
    assert min(shares) == FLOOR
    waited_s = mean([0.005 + 0.032 * share for share in shares[20:]])
    assert waited_s < 1.3 * (0.005 + 0.032 * FLOOR)


def test_a_source_with_capacity_to_spare_is_used_by_both() -> None:
    clock, yielding = Clock(), Yielding()
    clock.run(yielding, 6, lambda _share: 0.005)
    assert mean(clock.run(yielding, 20, lambda _share: 0.005)) == 1.0


def test_half_of_what_fits_is_found() -> None:
    """Up to half of the threads cost readers nothing."""
    clock, yielding = Clock(), Yielding()
    shares = clock.run(yielding, 60, lambda share: 0.005 if share <= 0.5 else 0.02)
    assert 0.25 < mean(shares[100:]) <= 0.6


def test_it_recovers_within_a_second_once_none_waits() -> None:
    clock, yielding = Clock(), Yielding()
    clock.run(yielding, 5, lambda share: 0.005 + 0.032 * share)
    shares = clock.run(yielding, 1, None)
    assert shares[-1] == 1.0
    assert shares == sorted(shares)


def test_what_was_found_out_holds_for_the_next_batch() -> None:
    """A reader that computes for half a second after each batch."""
    clock, yielding = Clock(), Yielding()
    clock.run(yielding, 6, lambda _share: 0.005)
    for _ in range(5):
        clock.run(yielding, 0.5, None)
        assert mean(clock.run(yielding, 0.5, lambda _share: 0.005)) == 1.0


def test_a_source_that_becomes_slow_for_others_reasons_does_not_hold_it_at_the_floor() -> None:
    clock, yielding = Clock(), Yielding()
    clock.run(yielding, 10, lambda _share: 0.005)
    clock.run(yielding, 5, lambda _share: 0.05)
    assert mean(clock.run(yielding, 20, lambda _share: 0.05)) > 0.9


def test_readers_that_hang_in_the_source_do_not_hold_it_there_either() -> None:
    yielding, now_s = Yielding(), 0.0
    while now_s < 40:
        now_s += LOOK_S
        yielding.look(0, 0.0, 3, now_s)
    assert yielding.share == 1.0


@given(
    st.lists(
        st.tuples(st.integers(0, 1 << 64), st.floats(-1e30, 1e30), st.integers(0, 1 << 64), st.floats(0, 1e6)),
        max_size=50,
    )
)
def test_whatever_is_said_some_is_fetched_ahead_and_never_more_than_all(
    looks: list[tuple[int, float, int, float]],
) -> None:
    yielding, now_s = Yielding(), 0.0
    for waits, waited_s, waiting, step_s in looks:
        now_s += step_s
        assert FLOOR <= yielding.look(waits, waited_s, waiting, now_s) <= 1
    for _ in range(30):
        now_s += LOOK_S
        yielding.look(0, 0.0, 0, now_s)
    assert yielding.share == 1
