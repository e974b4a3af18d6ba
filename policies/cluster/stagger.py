"""Stagger: how many large reads of one source file may be under way at once, and which of the waiting ones goes next.

Many readers of one file at once reach the storage in no order, and each seek costs all of them bandwidth (LMDBIO, Pumma
et al., 2019, STAG). So at most so many reads of a file are under way; of those that wait, readers' go before what is
only fetched ahead, and within each kind they go in the order of the file, from where the last one went, and round: who
waits, waits for one round at most. Small lone reads do not ask.

A node keeps one for its files (`mountd/fetch/chunks/owners.py`), a job one for all nodes (`peers/read_slots.py`).
Pure.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count


@dataclass(eq=False, slots=True)
class Place:
    """One read that wants to go, or goes if it `may`. `offset`: where in the file, in any unit."""

    file: Hashable
    offset: int
    urgent: bool
    may: bool = False
    given_up: bool = False


_Heap = list[tuple[int, int, Place]]
"""Offset, number (in the order of coming), place; places that were given up stay until they come up."""


@dataclass(slots=True)
class _Round:
    """Those of one kind that wait, as a lift serves them: upwards from the last one, then again from the bottom."""

    now: _Heap = field(default_factory=list)
    next: _Heap = field(default_factory=list)

    def add(self, place: Place, number: int, last: int) -> None:
        heappush(self.now if place.offset >= last else self.next, (place.offset, number, place))

    def take(self) -> Place | None:
        for _ in range(2):
            while self.now:
                place = heappop(self.now)[2]
                if not place.given_up:
                    return place
            self.now, self.next = self.next, self.now
        return None

    def pass_by(self, last: int) -> None:
        """One of the other kind has gone, further up: what lies below it is left to the next round."""
        while self.now and self.now[0][0] < last:
            heappush(self.next, heappop(self.now))


@dataclass(slots=True)
class _File:
    under_way: int = 0
    last: int = -1
    urgent: _Round = field(default_factory=_Round)
    ahead: _Round = field(default_factory=_Round)


class Stagger:
    """`most`: reads of one file at a time, at least 1. Each `enter` needs one `leave`, whether it has gone or not.

    Both take O(log n) of those that wait.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._files: dict[Hashable, _File] = {}
        self._numbers = count()

    def __len__(self) -> int:
        """Files that are being read, or about to be."""
        return len(self._files)

    def enter(self, file: Hashable, offset: int, *, urgent: bool) -> Place:
        """A read that wants to go. It `may` at once, or when a `leave` says so."""
        place = Place(file, offset, urgent)
        found = self._files.setdefault(file, _File())
        if found.under_way < self._most:
            self._go(found, place)
        else:
            (found.urgent if urgent else found.ahead).add(place, next(self._numbers), found.last)
        return place

    def leave(self, place: Place) -> Place | None:
        """A read has ended, or does not want to go any more. The one that may go now, if any."""
        found = self._files[place.file]
        if not place.may:
            place.given_up = True
            return None
        found.under_way -= 1
        following = found.urgent.take() or found.ahead.take()
        if following is not None:
            self._go(found, following)
        if not found.under_way:
            del self._files[place.file]
        return following

    def _go(self, found: _File, place: Place) -> None:
        place.may = True
        found.under_way += 1
        found.last = place.offset
        found.ahead.pass_by(place.offset)
        found.urgent.pass_by(place.offset)
