"""How long a warm takes by a piece of it: what is counted, what is left, and when enough was seen. Plain figures."""

import random
from typing import Any

import pytest

from hfs.mountd.control.probing import Missing, Some, is_steady, rate_of

ANY: Any = object()


def ramp(rate: float, seconds: float, *, rise_s: float = 0.5, step: int = 1) -> list[tuple[float, int]]:
    """Counts of something that begins slowly."""
    counts = []
    for tick in range(int(seconds * 50)):
        now_s = tick / 50
        done = rate * max(0.0, now_s - rise_s / 2) if now_s > rise_s else rate * now_s**2 / rise_s / 2
        counts.append((100 + now_s, int(done) // step * step))
    return counts


@pytest.mark.parametrize("step", [1, 64])
def test_the_rate_is_that_of_the_middle(step: int) -> None:
    assert rate_of(ramp(2000, 3, step=step)) == pytest.approx(2000, rel=0.1)
    tail = [(110.0 + tick / 10, 5000) for tick in range(50)]
    assert rate_of([*ramp(2000, 3), *tail]) == pytest.approx(2000, rel=0.1), "nothing is done any more"


@pytest.mark.parametrize("counts", [[], [(1.0, 0)], [(1.0, 0), (2.0, 0)]])
def test_where_nothing_was_done_nobody_knows(counts: list[tuple[float, int]]) -> None:
    assert rate_of(counts) is None
    assert not is_steady(counts)


def test_what_is_done_at_once_has_a_rate_all_the_same() -> None:
    assert rate_of([(1.0, 0), (1.02, 100)]) == pytest.approx(5000)


def test_it_is_enough_when_the_parts_hardly_differ() -> None:
    assert not is_steady(ramp(2000, 1))
    assert is_steady(ramp(2000, 4, rise_s=0.1))
    uneven = [(tick / 50, 100 * tick if tick < 100 else 10_000 + 700 * (tick - 100)) for tick in range(200)]
    assert not is_steady(uneven)


def numbered(directory: int) -> Any:
    """Stands for one."""
    return ANY, directory


def test_a_sample_is_of_all_of_the_set() -> None:
    missing = Missing(random.Random(1))
    for directory in range(1000):
        missing.add(numbered(directory), [Some(b"%d" % name, 10, 8192, is_small=True) for name in range(3)])
    missing.add(ANY, [])
    assert (missing.files, missing.bytes, missing.room_bytes) == (3000, 30_000, 3000 * 8192)
    found: Any = missing.some(3000, 30_000)
    directories = sorted(directory[1] for directory, _ in found)
    assert len(directories) == 64
    assert directories[0] < 100
    assert directories[-1] > 900
    assert 300 < directories[32] < 700


def test_no_more_than_so_many_of_them_are_tried() -> None:
    missing = Missing(random.Random(1))
    for directory in range(10):
        missing.add(numbered(directory), [Some(b"%d" % name, 10, 8192, is_small=True) for name in range(10)])
    assert sum(len(names) for _, names in missing.some(35, 1000)) == 35
    assert sum(len(names) for _, names in missing.some(1000, 355)) == 35
    assert sum(len(names) for _, names in missing.some(0, 0)) == 1
