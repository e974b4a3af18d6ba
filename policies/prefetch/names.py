"""The names of a directory, compactly, and sorted in steps of a millisecond or two: a million at once take a second, in
which nobody else has the interpreter, in a thread neither. Pure.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np

_PILE = 512
"""Names of one, about."""

_DRAWN_A_PILE = 4
_MOST_DRAWN = 4096


class NameList:
    """Some 25 bytes a name, and nothing for the garbage collector, which takes a tenth of a second for a list of a
    million."""

    def __init__(self) -> None:
        self._text = bytearray()
        self._ends = array("Q", [0])

    def extend(self, names: Sequence[bytes]) -> None:
        """Some thousand more."""
        self._text += b"".join(names)
        lengths = accumulate(map(len, names), initial=self._ends.pop())
        self._ends.extend(lengths)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, place: int) -> bytes:
        return bytes(self._text[self._ends[place] : self._ends[place + 1]])


def sort_steps(names: NameList, order: array[int]) -> Iterator[None]:
    """Add to `order`, which is empty, the places in `names` in the order of the names.

    They are dealt out to some thousand piles, between names that are drawn from among them, and each pile is sorted.
    """
    name, count = names.__getitem__, len(names)
    # At random: whoever has made the directory would know which ones.
    drawn = np.random.default_rng().integers(count, size=min(count // _PILE * _DRAWN_A_PILE, _MOST_DRAWN))
    yield
    borders = [name(place) for place in drawn.tolist()]
    yield
    borders = sorted(borders)[::_DRAWN_A_PILE]
    piles = [array("I") for _ in range(len(borders) + 1)]
    yield
    for begin in range(0, count, _PILE):
        for place in range(begin, min(begin + _PILE, count)):
            piles[bisect_right(borders, name(place))].append(place)
        yield
    for pile in piles:
        order.extend(sorted(pile, key=name))
        yield
