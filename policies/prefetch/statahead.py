"""Statahead: which attributes to ask for ahead, once names are looked up in the order of a listing.

`ls -l`, `find -size`, `du` and jobs that look at the size of every file list a directory and then look its names up,
one after the other. A listing brings no attributes, so each look-up would cost a round trip to the source, in a row.
After 3 look-ups in order the next 16 names are asked for, many at once, then 32, and so on up to 512, always before the
reader has used up half of what was asked for last. So a wrong guess never costs much more than what was right before
it: 16 names after 3 look-ups, and at most 768 whenever a reader stops.

In order means: one look-up of a reader comes at most 16 look-ups of the directory after the other, not far beyond it
(several threads may share one order), and they are at least a quarter of the names that were passed. A reader that
looks at every tenth name, or at random, does not get past the first test but by chance, and chance does not last: each
window asked for is a test again.

`mountd/namespace/statahead.py` keeps one `Reader` for each place in a directory where somebody might be reading on, and
tells it the positions of the look-ups that belong to it. Pure; knows no names and never asks.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np

NEAR = 16
"""A look-up at most so many names beyond what is foreseen still belongs to a reader: 16 threads that share an order."""

_TRIGGER = 3
_FIRST, _LARGEST = 16, 512
"""512 names on a source with 1 ms a stat are 32 threads of 16 names: 16 ms, in which 150 look-ups are answered."""

_SPARSE = 4
TOLD_EVERY = 16
"""Of the names asked for ahead, look-ups of those whose position is a multiple of it are told for sure; others may be
answered where nobody counts. So one that is told stands for as many."""

_APART = 16
"""Look-ups of others between two of one reader: more than there are readers in one directory, far less than chance
needs to meet the same sixteen names of thousands again."""


_PILE = 512
"""Names of one, about."""

_DRAWN_A_PILE = 4
_MOST_DRAWN = 4096


class NameList:
    """The names of a directory, compactly, and sorted in steps of a millisecond or two.

    A million at once take a second, in which nobody else has the interpreter. Some 25 bytes a name, and nothing for the
    garbage collector, which takes a tenth of a second for a list of a million. Pure.
    """

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


class Reader:
    """Somebody who goes through the names of a directory in order. Positions are indexes of a listing."""

    __slots__ = ("_from", "_hits", "_last", "_window", "asked", "next", "steady")

    def __init__(self, position: int) -> None:
        self.next = position
        """Behind the furthest look-up."""
        self.asked = position
        """Behind the last name asked for ahead."""
        self.steady = False
        """Has shown that it reads in order, and was in order when it was last judged."""
        self._from = position
        self._hits = 0
        self._last = 0
        self._window = _FIRST

    def looked_up(self, position: int, count: int, number: int, *, sampled: bool = False) -> range:
        """The name at `position` of `count` was looked up: the positions to ask for now, perhaps none.

        `number`: how many look-ups there were in the directory. `sampled`: see TOLD_EVERY.
        """
        if number > self._last + _APART:
            self.steady, self._hits, self._from, self._window = False, 0, position, _FIRST
        self._last = number
        self.next = max(self.next, position + 1)
        if not sampled or position >= self.asked:
            self._hits += 1
        elif position % TOLD_EVERY == 0:
            self._hits += TOLD_EVERY
        if self._hits < _TRIGGER or self.asked - self.next > self._window // 2:
            return range(0)
        self.steady = self._hits * _SPARSE >= self.next - self._from
        self._hits, self._from = 0, self.next
        if not self.steady:
            self._window = _FIRST
            return range(0)
        begin = max(self.asked, self.next)
        self.asked = max(begin, min(begin + self._window, count))
        self._window = min(2 * self._window, _LARGEST)
        return range(begin, self.asked)
