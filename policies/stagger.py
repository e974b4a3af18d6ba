"""Stagger: how many large reads of one source file may be under way at once, and which of the waiting ones goes next.

Many readers of one file at once reach the storage in no order, and each seek costs all of them bandwidth (LMDBIO, Pumma
et al., 2019, STAG). So at most so many reads of a file are under way; of those that wait, readers' go before what is
only fetched ahead, and within each kind they go in the order of the file, from where the last one went, and round: who
waits, waits for one round at most. Small lone reads do not ask.

`mountd/flight_stagger.py` keeps one for all files, and lets the reads wait. Pure.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

__all__ = ["Place", "Stagger"]


@dataclass(eq=False, slots=True)
class Place:
    """One read that wants to go, or goes if it `may`. `offset`: where in the file, in any unit."""

    file: Hashable
    offset: int
    urgent: bool
    may: bool = False


@dataclass(slots=True)
class _File:
    under_way: int = 0
    last: int = -1
    waiting: list[Place] = field(default_factory=list)


class Stagger:
    """`most`: reads of one file at a time, at least 1. Each `enter` needs one `leave`, whether it has gone or not."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._files: dict[Hashable, _File] = {}

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
            found.waiting.append(place)
        return place

    def leave(self, place: Place) -> Place | None:
        """A read has ended, or does not want to go any more. The one that may go now, if any."""
        found = self._files[place.file]
        following: Place | None = None
        if not place.may:
            found.waiting.remove(place)
        else:
            found.under_way -= 1
            if found.waiting:
                following = min(found.waiting, key=lambda one: (not one.urgent, one.offset < found.last, one.offset))
                found.waiting.remove(following)
                self._go(found, following)
        if not found.under_way:
            del self._files[place.file]
        return following

    def _go(self, found: _File, place: Place) -> None:
        place.may = True
        found.under_way += 1
        found.last = place.offset
