"""Yielding: how much of what may be fetched ahead at a time is, while readers of other mounts wait for the source.

Or of what may be written to the disk of the cache, while they wait for that.

What nobody waits for is to cost those little who do. How little cannot be known beforehand: a source with capacity to
spare serves both, one that is full makes readers wait longer for each fetch more. So it is found out, as a transport
protocol for background traffic does: by how long neighbours wait.

    a reader of a neighbour waits      down to the floor at once, and learn how long it waits there
    it waits hardly longer than that   one step more
    it waits longer                    half as much
    none waits any more                twice as much every tenth of a second, up to all
    one waits again within a minute    what was right the last time

Never below the floor: whoever fetches ahead gets on, whatever others say. What they wait at the floor is learned anew
all the time, so neither a source that becomes slow nor a neighbour that lies holds it there for ever, unless the lie
grows without end, and then the floor is what it costs.

Pure; times are seconds of one clock. `share` is a part of what may be fetched at a time: 1 is all.
"""

from __future__ import annotations

from typing import NamedTuple

FLOOR = 1 / 16
"""One of 16 chunks and two of 32 small files at a time: it gets on, and one that waits shares with few."""

_STEP = 1 / 16

_LONGER = 1.15
"""By less a mean of some dozens of waits varies by itself."""

_WINDOW_S = 0.25
_LEAST_WAITS = 4
_LONGEST_WINDOW_S = 1.0
"""A mean is taken over the first, of four waits at least, or over the second, of what there is."""

_SILENT_S = 0.3
"""None waits any more: longer than a reader computes between two files, and a reader that comes back finds no crowd."""

_RECOVER_EVERY_S = 0.1

_KNOWN_S = 60.0
"""Readers come in bursts, a batch each: what was found out holds for the next ones."""

_WEIGHT = 0.3
"""Of a new mean at the floor in what is known of it: after a second two thirds are new."""

_LONGEST_REST_S = 0.25
"""What takes 20 ms at a time is so slow that a longer rest would serve nobody."""


class Waits(NamedTuple):
    """How the readers of one mount have waited, for the source or for the disk of the cache, since its daemon began."""

    waits: int
    """Times that one has waited, and come to an end of it."""
    waited_ns: int
    """So long in all."""
    waiting: int
    """Those that do so now."""

    def beside(self, others: Waits) -> Waits:
        """Of both together."""
        return Waits(self.waits + others.waits, self.waited_ns + others.waited_ns, self.waiting + others.waiting)

    def since(self, before: Waits) -> Waits:
        """What came after that; nothing where another daemon of the mount has begun anew."""
        if self.waits < before.waits or self.waited_ns < before.waited_ns:
            return Waits(0, 0, self.waiting)
        return Waits(self.waits - before.waits, self.waited_ns - before.waited_ns, self.waiting)

    def begun(self) -> Waits:
        """One more waits."""
        return self._replace(waiting=self.waiting + 1)

    def ended(self, waited_ns: int) -> Waits:
        """One does not any more, after so long."""
        return Waits(self.waits + 1, self.waited_ns + waited_ns, self.waiting - 1)


def rest_s(took_s: float, share: float) -> float:
    """How long to rest behind something that took so long, so that it is under way for `share` of the time, above 0:
    0 to 0.25 s, so that it goes on soon whatever others say."""
    return min(_LONGEST_REST_S, max(0.0, took_s) * (1 / min(1.0, share) - 1))


class Yielding:
    """Of one who fetches ahead. `look` is called some times a second."""

    def __init__(self) -> None:
        self.share = 1.0
        self._floor_wait_s: float | None = None
        """How long neighbours wait while this is at the floor."""
        self._seen_s = float("-inf")
        """When somebody waited last."""
        self._right = FLOOR
        """The share when it was measured last."""
        self._began_s = float("-inf")
        """Of the window that is measured."""
        self._recovered_s = float("-inf")
        self._waits = 0
        self._waited_s = 0.0

    def look(self, waits: int, waited_s: float, waiting: int, now_s: float) -> float:
        """The share from now on. Since the last look neighbours have waited so many times for the source, so long in
        all; `waiting` do so now."""
        if waits > 0 or waiting > 0:
            if now_s > self._seen_s + _SILENT_S:
                self._step_back(now_s)
            self._seen_s = now_s
            self._waits += waits
            self._waited_s += max(0.0, waited_s)
            self._measure(now_s)
        elif self.share < 1 and now_s > self._seen_s + _SILENT_S and now_s >= self._recovered_s + _RECOVER_EVERY_S:
            self._recovered_s = now_s
            self.share = min(1.0, 2 * self.share)
        return self.share

    def _step_back(self, now_s: float) -> None:
        if now_s > self._seen_s + _KNOWN_S:
            self._floor_wait_s, self._right = None, FLOOR
        self.share = min(self.share, self._right)
        self._begin(now_s)

    def _begin(self, now_s: float) -> None:
        self._began_s, self._waits, self._waited_s = now_s, 0, 0.0

    def _measure(self, now_s: float) -> None:
        spent_s = now_s - self._began_s
        if spent_s < _WINDOW_S or (self._waits < _LEAST_WAITS and spent_s < _LONGEST_WINDOW_S):
            return
        # None has ended in all that time: they wait at least as long.
        wait_s = self._waited_s / self._waits if self._waits else spent_s
        self._begin(now_s)
        known_s = self._floor_wait_s
        if known_s is None or wait_s < known_s:
            known_s = wait_s
        elif self.share <= FLOOR:
            known_s += _WEIGHT * (wait_s - known_s)
        self._floor_wait_s = known_s
        if wait_s > _LONGER * known_s:
            self.share = max(FLOOR, self.share / 2)
        else:
            self.share = min(1.0, self.share + _STEP)
        self._right = self.share
