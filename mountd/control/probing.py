"""How long a warm would take: a short piece of it is done, of files all over the set, and the rest takes as long a file
(small ones) or a byte (large ones) as that did.

Each kind by itself, with as many at a time as a warm has. What is measured is the middle of the piece: before that
not all threads are at work, after it not any more. It is bounded in time, bytes, and share of the set; what was fetched
stays staged.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import trio

from hfs.mountd.control.connection import Report
from hfs.mountd.control.warm import Moment, Warming
from hfs.mountd.namespace import Node
from hfs.mountd.wire.protocol import Progress, Rows, Touches

_GROUPS = 64
"""Remembered of all: more than can be fetched in a few seconds."""
_MOST_BYTES = 512 << 20
"""Of each kind, and not more than this part of it: the rest is left to the warm."""
_SHARE = 5
_FEW_FILES, _FEW_BYTES = 3000, 128 << 20
"""But so much, or half of it: less says nothing, and takes no time."""
_WORTH_FILES, _WORTH_BYTES = 500, 64 << 20
_RISE, _FALL = 0.15, 0.9
"""What lies between these parts of the piece is measured."""
_SHORTEST_S = 0.05
_STEADY_S = 1.5
_PARTS, _SPREAD = 5, 0.04
"""Nothing more is learned when the mean of so many parts of so long a time is known to 4 %."""


class Some(NamedTuple):
    """A file, and what it lacks on this node."""

    name: bytes
    bytes: int
    room_bytes: int
    is_small: bool


class Left(NamedTuple):
    """What is missing still."""

    bytes: int
    room_bytes: int


class Missing:
    """Files of one kind that are to be fetched, and a sample of them: of all groups of neighbours each is as likely to
    be in it. They are groups since a directory costs something, too."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._groups = 0
        self._sample: list[tuple[Node, Sequence[Some]]] = []
        self.files = self.bytes = self.room_bytes = 0

    def add(self, directory: Node, some: Sequence[Some]) -> None:
        """These neighbours are missing too."""
        self.files += len(some)
        self.bytes += sum(one.bytes for one in some)
        self.room_bytes += sum(one.room_bytes for one in some)
        if not some:
            return
        self._groups += 1
        if len(self._sample) < _GROUPS:
            self._sample.append((directory, some))
        elif (place := self._chance.randrange(self._groups)) < _GROUPS:
            self._sample[place] = directory, some

    def some(self, most_files: int, most_bytes: int) -> list[tuple[Node, list[bytes]]]:
        """Of the sample, in no order, so many at most, but one in any case."""
        self._chance.shuffle(self._sample)
        found: list[tuple[Node, list[bytes]]] = []
        for directory, group in self._sample:
            names: list[bytes] = []
            for one in group:
                if (found or names) and (most_files <= 0 or most_bytes < one.bytes):
                    break
                most_files -= 1
                most_bytes -= one.bytes
                names.append(one.name)
            if names:
                found.append((directory, names))
        return found


class Probing:
    """Of one command."""

    def __init__(self, small: Missing, large: Missing, new_warming: Callable[[Report], Warming]) -> None:
        self._small, self._large = small, large
        self._new_warming = new_warming
        self._small_moments: list[Moment] = []
        self._large_moments: list[Moment] = []

    async def run(self, limit_s: float, free_bytes: int) -> None:
        """Fetch some of each kind, for half of the time each at most, as far as there is room. Nothing of a set that
        takes a moment anyway."""
        if self._small.files + self._large.files < _WORTH_FILES and self.left().bytes < _WORTH_BYTES:
            return
        self._small_moments = await self._try(self._small, limit_s / 2, free_bytes, is_small=True)
        free_bytes -= self._small_moments[-1].bytes if self._small_moments else 0
        self._large_moments = await self._try(self._large, limit_s / 2, free_bytes, is_small=False)

    async def _try(self, missing: Missing, limit_s: float, free_bytes: int, *, is_small: bool) -> list[Moment]:
        most_files = min(max(_FEW_FILES, missing.files // _SHARE), -(-missing.files // 2))
        most_bytes = min(_MOST_BYTES, max(_FEW_BYTES, missing.bytes // _SHARE), missing.bytes // 2, free_bytes // 2)
        if not missing.files or most_bytes <= 0:
            return []

        def enough(moments: Sequence[Moment]) -> bool:
            now = moments[-1]
            return now.files >= most_files or now.bytes >= most_bytes or is_steady(_counts(moments, is_small=is_small))

        # A large one is given up in the middle.
        some = missing.some(most_files, most_bytes if is_small else missing.bytes)
        return await self._new_warming(_tell_nobody).try_some(some, limit_s, enough)

    def left(self) -> Left:
        """What is missing still."""
        left = [_left(self._small, self._small_moments), _left(self._large, self._large_moments)]
        return Left(sum(one.bytes for one in left), sum(one.room_bytes for one in left))

    def seconds(self) -> float | None:
        """That the rest would take; None: nobody knows."""
        small_s = large_s = 0.0
        if self._small.files:
            files = self._small.files - (self._small_moments[-1].files if self._small_moments else 0)
            rate = rate_of(_counts(self._small_moments, is_small=True))
            if rate is None:
                return None
            small_s = files / rate
        if self._large.files:
            rate = rate_of(_counts(self._large_moments, is_small=False))
            if rate is None:
                return None
            large_s = _left(self._large, self._large_moments).bytes / rate
        return small_s + large_s


def _counts(moments: Sequence[Moment], *, is_small: bool) -> list[tuple[float, int]]:
    return [(moment.now_s, moment.files if is_small else moment.bytes) for moment in moments]


def is_steady(counts: Sequence[tuple[float, int]]) -> bool:
    """Whether the rate of what was counted is known well enough: parts of equal length hardly differ."""
    first = next((count for count in counts if count[1] > 0), None)
    if first is None or counts[-1][0] - first[0] < _STEADY_S:
        return False
    part_s = (counts[-1][0] - first[0]) / _PARTS
    ends = [next(count for count in counts if count[0] >= first[0] + part_s * part) for part in range(_PARTS)]
    ends.append(counts[-1])
    rates = [(after[1] - before[1]) / max(after[0] - before[0], 1e-3) for before, after in itertools.pairwise(ends)]
    mean = statistics.fmean(rates)
    return statistics.stdev(rates) < _SPREAD * mean * math.sqrt(_PARTS)


def rate_of(counts: Sequence[tuple[float, int]]) -> float | None:
    """Things a second of what was counted at these times, once all were at work and while all still were. None: nothing
    was done."""
    if not counts or counts[-1][1] <= counts[0][1]:
        return None
    end = counts[-1][1]
    first = next(count for count in counts if count[1] >= _RISE * end)
    last = next(count for count in counts if count[1] >= _FALL * end)
    if last[0] - first[0] < _SHORTEST_S:
        first, last = counts[0], next(count for count in counts if count[1] == end)
    return (last[1] - first[1]) / max(last[0] - first[0], 1e-3)


def _left(missing: Missing, moments: Sequence[Moment]) -> Left:
    done_bytes = min(missing.bytes, moments[-1].bytes) if moments else 0
    if not missing.bytes:
        return Left(0, 0)
    return Left(missing.bytes - done_bytes, missing.room_bytes * (missing.bytes - done_bytes) // missing.bytes)


async def _tell_nobody(_news: Progress | Rows | Touches) -> None:
    await trio.lowlevel.checkpoint()
