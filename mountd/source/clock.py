"""The clock that stamps a file system's files, as far as it is known, and whether a time stamp's tick is over.

A file that is written again within one tick of its clock keeps its ctime: two states, one version. So what was read
before the tick of its ctime was over may be of the first of them, which git calls racily clean. What was read later is
of the last one, since every later change has a later ctime.

By the source's own clock: ours may be off by hours. Nobody may write to the source to learn its time, but every ctime
that is seen says that its clock had come so far by then, and it goes on at the rate of ours. Only ctime counts: atime
and mtime can be set to anything. A stamp from our future proves nothing to others, since one file that was written when
a clock was wrong would do away with all caution; it counts for the files that have the same one. On local file systems
the clock is the kernel's, which is ours; what cannot change while it is mounted has no ticks.

The tick is two seconds, since some parallel and older file systems keep whole seconds, or even ones, and nodes that
stamp files themselves are apart a little; it is 20 ms for a ctime that has a part of a second: two ticks of the slowest
kernels. Any thread: what one overwrites of another's is an estimate on the careful side.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

_COARSE_NS = 2_000_000_000
_FINE_NS = 20_000_000
_SECOND_NS = 1_000_000_000

_FOR_EVER_NS = 1 << 62

_MAX_FUTURE = 4096
"""Stamps from our future that are remembered. One that is forgotten counts as seen for the first time again."""


def tick_ns(ctime_ns: int) -> int:
    """How long a file may be changed without another ctime, at most, once it has this one."""
    return _FINE_NS if ctime_ns % _SECOND_NS else _COARSE_NS


class Settled(NamedTuple):
    """ctimes up to these are of the past: a file that is changed again gets another one."""

    coarse_ns: int
    """Of whole seconds."""
    fine_ns: int
    """Those that have a part of a second."""

    def has(self, ctime_ns: int) -> bool:
        """Whether this one is."""
        return ctime_ns <= (self.fine_ns if ctime_ns % _SECOND_NS else self.coarse_ns)


class SourceClock:
    """`is_ours`: the file system is stamped by this machine's kernel. `stands`: nothing on it ever changes.

    Times `at_ns` are those of time.monotonic_ns.
    """

    def __init__(
        self, *, is_ours: bool = False, stands: bool = False, our_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self.listens = not (is_ours or stands)
        """`saw` is of use."""
        self._is_ours = is_ours
        self._stands = stands
        self._our_ns = our_ns
        self._ahead_ns: float = float("-inf")
        """By so much it is ahead of time.monotonic_ns at least."""
        self._future: OrderedDict[int, int] = OrderedDict()
        """ctime from our future -> when it was seen first."""

    def saw(self, ctime_ns: int, at_ns: int) -> None:
        """A file, or a directory, had this ctime at `at_ns`, or before."""
        if not self.listens or ctime_ns - at_ns <= self._ahead_ns:
            return
        if ctime_ns <= self._our_ns():
            self._ahead_ns = ctime_ns - at_ns
        else:
            self._note(ctime_ns, at_ns)

    def is_over(self, ctime_ns: int, at_ns: int) -> bool:
        """Whether the tick of `ctime_ns` was over at `at_ns`, for all that is known now."""
        if self._stands:
            return True
        over_ns = ctime_ns + tick_ns(ctime_ns)
        ahead_ns = self._our_ns() - time.monotonic_ns() if self._is_ours else self._ahead_ns
        if at_ns + ahead_ns >= over_ns:
            return True
        if ctime_ns <= self._our_ns():
            return False
        return at_ns - self._note(ctime_ns, at_ns) >= tick_ns(ctime_ns)

    def settled(self) -> Settled:
        """The newest stamps whose tick is over now, for all that is known; some are that are younger."""
        if self._stands:
            return Settled(_FOR_EVER_NS, _FOR_EVER_NS)
        ahead_ns = self._our_ns() - time.monotonic_ns() if self._is_ours else self._ahead_ns
        if ahead_ns == float("-inf"):
            return Settled(0, 0)
        now_ns = min(int(time.monotonic_ns() + ahead_ns), self._our_ns())
        return Settled(now_ns - _COARSE_NS, now_ns - _FINE_NS)

    def _note(self, ctime_ns: int, at_ns: int) -> int:
        """When a stamp from our future was seen first: at `at_ns`, or before."""
        first_ns = self._future.setdefault(ctime_ns, at_ns)
        if len(self._future) > _MAX_FUTURE:
            self._future.popitem(last=False)
        return first_ns
