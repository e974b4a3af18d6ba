"""Repetition: an order of opens that is the one of the pass before, as in validation and in epochs without shuffling.

`observe` is told every open of a file, by a number of the caller's choosing. Where a later pass over the same files
follows the order of the pass before, `following` becomes true: `order` is then what comes, in order, and `position`
says how far the pass is in it. When the opens go another way it becomes false, until it is proven again.

    opens.observe(item)
    if opens.following and opens.passes != passes:        # another pass is recognised: a hint of our own
        passes = opens.passes
        schedule.follow(..., opens.order, ...)
    schedule.advance(..., opens.position, ...)            # not following: schedule.over(...)

Passes. Files are opened once a pass, but training and validation alternate, and no pass says where it begins. So each
open of an item is entered in the record of its *generation*: all first opens ever in one record, all second ones in
another, and so on. The place that an open had in the record before is its recorded place; for a pass that repeats,
recorded places go up by one with every open, whatever else was read in between. A file opened again within 64 opens is
still the same use.

Proof. Loader workers that share an order mix it anew in each pass: 8 workers with batches of 128 are some hundred
places apart. So opens are looked at in blocks of 64, and each place is compared with the median place of the block
`lag` opens before it: in a pass that repeats it is `lag` higher, give or take what the workers are apart. It agrees if
it is 1 to 2 * lag higher. In a random order half of the places agree at most: as many lie below that median as above
it, and the record must have four times `lag` places. A cumulative sum test (E. S. Page, Continuous inspection schemes,
Biometrika 41, 1954) of "6 of 10 agree" against "8 of 10 agree" is run for lags of 64 to 2048. Its limit is reached
after 1.5 * (lag + 64) opens that all agree: where one set of files ends and another begins, lag + 32 of them do
whatever the order is. At the smallest lag random opens get there once in exp(55), by the test's own bound. So a pass of
one worker is recognised after some 300 opens, one of 8 workers with batches of 128 after some 500 to 2000. A set of
fewer than 512 files is never recognised, nor one of fewer than four times what its workers are apart. Who opens each
file twice, further apart than 64 opens, follows himself: half of his opens agree in any order, and where sets meet that
has been seen to suffice, for some 128 opens.

Two jobs that read at the same time hide each other. Memory: 4 bytes an item and 4 for each that is foreseen. Cost:
about a microsecond an open. Pure.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["MAX_ITEMS", "Repetition"]

MAX_ITEMS = 1 << 22
"""Items from here on are not looked at: 16 MB of memory, and the bits that a place takes."""

_PLACE_BITS = 22
_GENERATIONS = 1 << (31 - _PLACE_BITS)
"""Counted modulo this: records of so many passes ago are not needed any more."""
_NEVER = -1

_BLOCK = 64
_LAGS = (1, 2, 4, 8, 16, 32)
"""In blocks."""
_SMALLEST_RECORD = 4
"""In lags, and it is 512 items at least: what is opened again soon is not seen, which makes small sets look ordered."""
_AGREES = math.log(0.8 / 0.6)
_DISAGREES = math.log(0.2 / 0.4)
_PROOF_LAGS = 1.5
_LEAST_BLOCKS = 4
"""Of the record must lie ahead: less is not worth it."""
_NEAR = 2048
"""How far from where the pass should be opens may be; a quarter of what is foreseen, if that is less."""


class Repetition:
    """See the module's text. `observe` is called on the event loop, for every open."""

    def __init__(self) -> None:
        self.following = False
        self.passes = 0
        """How many passes were recognised so far."""
        self.order: NDArray[np.int32] = np.empty(0, np.int32)
        """int32: the items that come in the pass that was recognised last, in order; each once. Empty if none does."""
        self.position = 0
        """How many of `order` are behind; to some hundred. Never goes back within a pass."""
        # generation << 22 | place, or _NEVER
        self._records = np.full(1024, _NEVER, np.int32)
        self._record_of = self._records.data
        self._entries = [0] * _GENERATIONS
        self._newest = 0
        self._block: dict[int, int] = {}
        """Item -> what its record was, in the order of the opens."""
        self._before: dict[int, int] = {}
        self._medians: list[float] = []
        """Of the last blocks, the newest last; nan for blocks of items that are mostly new."""
        self._sums = [0.0] * len(_LAGS)
        self._near = 0
        self._lost = False

    def observe(self, item: int) -> None:
        """Somebody opens `item`, a small number >= 0: best the number of opens of other items before its first."""
        block = self._block
        if item in block or item in self._before or item >= MAX_ITEMS:
            return
        if item >= len(self._record_of):
            self._grow(item)
        record = self._record_of[item]
        block[item] = record
        generation = (record >> _PLACE_BITS) + 1 if record != _NEVER else 0
        if generation == _GENERATIONS:
            generation = 0
        if generation == (self._newest + 1) % _GENERATIONS:
            self._newest, self._entries[generation] = generation, 0
        place = self._entries[generation]
        self._entries[generation] = place + 1
        self._record_of[item] = generation << _PLACE_BITS | place
        if len(block) == _BLOCK:
            self._look()

    def _grow(self, item: int) -> None:
        grown = np.full(min(MAX_ITEMS, max(item + 1, len(self._records) * 3 // 2)), _NEVER, np.int32)
        grown[: len(self._records)] = self._records
        self._records, self._record_of = grown, grown.data

    def _look(self) -> None:
        """A block is complete: does it come where the record says?"""
        records = np.fromiter(self._block.values(), np.int32, _BLOCK)
        self._before, self._block = self._block, {}
        records = records[records != _NEVER]
        if len(records) < _BLOCK // 2:
            places, generation, size = records, 0, 0
            self._medians.append(math.nan)
        else:
            generation = int(np.bincount(records >> _PLACE_BITS).argmax())
            places = records & (1 << _PLACE_BITS) - 1
            size = self._entries[generation]
            self._medians.append(float(np.median(places)))
        del self._medians[: -1 - _LAGS[-1]]
        if self.following:
            self._go_on(places)
            return
        for which, lag in enumerate(_LAGS):
            agree = 0
            if lag < len(self._medians) and size >= _SMALLEST_RECORD * max(lag, 2) * _BLOCK:
                higher = places - self._medians[-1 - lag]
                agree = int(np.count_nonzero((higher > 0) & (higher <= 2 * lag * _BLOCK)))
            total = self._sums[which] + agree * _AGREES + (_BLOCK - agree) * _DISAGREES
            self._sums[which] = max(total, 0.0)
            if total >= _PROOF_LAGS * (lag + 1) * _BLOCK * _AGREES:
                if size - self._medians[-1] >= _LEAST_BLOCKS * _BLOCK:
                    self._follow(generation, int(self._medians[-1]))
                    return
                self._sums[which] = 0.0

    def _follow(self, generation: int, front: int) -> None:
        """The pass is recognised: all of this record that has not been opened in this pass is what comes."""
        items = np.flatnonzero(self._records >> _PLACE_BITS == generation)
        places = self._records[items] & (1 << _PLACE_BITS) - 1
        by_place = places.argsort()
        self.order = items[by_place].astype(np.int32)
        # From now on a place in this record is a place in `order`.
        self._records[self.order] = (generation << _PLACE_BITS) + np.arange(len(items), dtype=np.int32)
        self.position = int(np.searchsorted(places[by_place], front + _BLOCK // 2))
        self.following = True
        self.passes += 1
        self._near = min(_NEAR, (len(self.order) - self.position) // _SMALLEST_RECORD)
        self._lost = False

    def _go_on(self, places: NDArray[np.int32]) -> None:
        """Follow the pass for a block, or no longer: when half of two blocks is not near where it should be."""
        near = places[np.abs(places - (self.position + _BLOCK // 2)) <= max(self._near, _BLOCK)]
        if len(near) >= _BLOCK // 2:
            self._lost = False
            self.position = min(max(self.position, int(np.median(near)) + _BLOCK // 2), len(self.order))
        elif self._lost or self.position + _BLOCK >= len(self.order):
            self.following = False
            self.order = np.empty(0, np.int32)
            self.position = 0
            self._sums = [0.0] * len(_LAGS)
            self._medians = []
        else:
            self._lost = True
