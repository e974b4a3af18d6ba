"""Names of a directory: kept as they came, and sorted in steps none of which is long."""

from __future__ import annotations

import random
from array import array

from hypothesis import given
from hypothesis import strategies as st

from hfs.policies.prefetch.statahead import NameList, sort_steps

NAMES = st.lists(st.binary(min_size=1, max_size=9))


class Counted(NameList):
    """How often a name was asked for."""

    asked = 0

    def __getitem__(self, place: int) -> bytes:
        self.asked += 1
        return super().__getitem__(place)


def listed(*parts: list[bytes]) -> Counted:
    names = Counted()
    for part in parts:
        names.extend(part)
    return names


def longest(names: Counted) -> tuple[list[bytes], int]:
    """The names in order, and how many were looked at in one step at most."""
    order: array[int] = array("I")
    most = before = 0
    for _ in sort_steps(names, order):
        most, before = max(most, names.asked - before), names.asked
    return [names[place] for place in order], most


@given(st.lists(NAMES))
def test_names_are_kept_as_they_came_and_sorted(parts: list[list[bytes]]) -> None:
    names = listed(*parts)
    every = [name for part in parts for name in part]
    assert [names[place] for place in range(len(names))] == every
    assert longest(names)[0] == sorted(every)


def test_many_names_are_sorted_in_short_steps_in_whatever_order_they_come() -> None:
    every = [b"%06d" % number for number in range(20_000)]
    shuffled = random.Random(1).sample(every, len(every))
    for names in (every, every[::-1], shuffled, [b"same"] * 100 + every):
        found, most = longest(listed(names))
        assert found == sorted(names)
        assert most <= 4096
