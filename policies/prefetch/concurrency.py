"""Concurrency: how many chunks to fetch from the source at a time, found by climbing.

More streams are faster until the source, the network or this machine is full; from there on each more only makes all of
them later, the one that somebody waits for among them. So their number grows by one as long as the rate grows with it,
and goes back by one when it does not; now and then one more is tried again, since other jobs come and go.

`hints` asks for `limit` before each fetch and tells every arrival. Pure; times are seconds of one clock.
"""

from __future__ import annotations

_FIRST = 3
"""Three streams fill a file system that gives one of them two fifths of what it has."""

_GAIN = 1.08
"""By less the rate varies by itself; one more stream of twelve that still counts brings as much."""

_ROUNDS_UNTIL_TRIED_AGAIN = 16


class Concurrency:
    """A number from 1 to `most`. A round is `limit` arrivals."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.limit = min(_FIRST, most)
        self._rate_below: float | None = None
        """Bytes a second at one less; None when that is not known, as at the start."""
        self._began_s: float | None = None
        self._count = 0
        self._bytes = 0
        self._rounds_left = 0

    def begin(self, now_s: float) -> None:
        """Fetching begins, after a pause: what was under way before says nothing."""
        self._began_s, self._count, self._bytes = now_s, 0, 0

    def arrived(self, size: int, now_s: float) -> None:
        """One fetch has ended, with this many bytes."""
        if self._began_s is None:
            self.begin(now_s)
            return
        self._count += 1
        self._bytes += size
        if self._count < self.limit or now_s <= self._began_s:
            return
        rate = self._bytes / (now_s - self._began_s)
        self.begin(now_s)
        if self._rounds_left:
            self._rounds_left -= 1
            if not self._rounds_left:
                self._try_more(rate)
        elif self._rate_below is None or rate > self._rate_below * _GAIN:
            self._try_more(rate)
        else:
            self.limit -= 1
            self._rounds_left = _ROUNDS_UNTIL_TRIED_AGAIN

    def _try_more(self, rate: float) -> None:
        if self.limit < self._most:
            self._rate_below = rate
            self.limit += 1
        else:
            self._rounds_left = _ROUNDS_UNTIL_TRIED_AGAIN
