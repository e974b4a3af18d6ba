"""Objects that are to go and were told to overlays: since when, of how much room, and which of them have gone.

Plain state on the event loop; `told_objects` says what may go, `departures` has it go.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import trio

from hfs.mountd.base.version import Version

LATE_S = 5.0
"""Who has not let go of an object by then holds it for as long as a job may have a file open."""

_MOST_DEPARTED = 65_536


@dataclass(frozen=True, slots=True)
class Leaver:
    """An object that is to go."""

    number: int
    version: Version
    room_bytes: int
    by_name: bool = False
    if_empty: bool = False
    is_to_go: bool = True
    """False: a part of it is to go, by whoever asks again."""


class Leavers:
    """`number in leavers`: it goes by itself."""

    def __init__(self) -> None:
        self._leaving: dict[int, tuple[Leaver, float]] = {}
        self._departed: dict[int, None] = {}
        self.awaited_bytes = 0
        """What is about to be given back, by those that are not late."""
        self.some_are_late = False

    def __contains__(self, number: int) -> bool:
        return number in self._leaving

    def __len__(self) -> int:
        return len(self._leaving)

    def all(self) -> list[tuple[Leaver, float]]:
        """And since when."""
        return list(self._leaving.values())

    def add(self, leavers: Iterable[Leaver]) -> None:
        """Those that were leaving before are so by what is said last."""
        now_s = trio.current_time()
        for leaver in leavers:
            _, since_s = self._leaving.get(leaver.number, (leaver, now_s))
            self._leaving[leaver.number] = leaver, since_s
        self.count()

    def remove(self, numbers: Iterable[int]) -> None:
        """They are gone, or stay."""
        for number in numbers:
            self._leaving.pop(number, None)
        self.count()

    def count(self) -> None:
        """Once in a while: some may be late."""
        in_time_s = trio.current_time() - LATE_S
        in_time = [leaver.room_bytes for leaver, since_s in self._leaving.values() if since_s > in_time_s]
        self.awaited_bytes = sum(in_time)
        self.some_are_late = len(in_time) < len(self._leaving)

    def departed(self, numbers: Iterable[int]) -> None:
        """These have gone by themselves."""
        for number in numbers:
            self._departed[number] = None
        while len(self._departed) > _MOST_DEPARTED:
            del self._departed[next(iter(self._departed))]

    def take_departed(self, numbers: Iterable[int]) -> list[int]:
        """Those of these that did, once."""
        found = [number for number in numbers if number in self._departed]
        for number in found:
            del self._departed[number]
        return found
