"""Whether and when the next daemon is started after one has ended by itself.

A daemon that had served for a while is followed at once: what ended it may come once a day or once a minute, and each
time costs its readers some tenths of a second. One that ends as soon as it begins is a loop: most likely it is given
the same request again, or finds the same damage. Each of these waits longer, and after a few there is no next.
Pure: state in, decision out.
"""

from __future__ import annotations

from collections import deque

_YOUNG_S = 1.0
"""A request that ends every daemon is sent again to each, and ends it within milliseconds."""
_WITHIN_S = 60.0
_MOST = 5
_DELAYS_S = (0.0, 0.1, 0.5, 1.0, 2.0)
"""Before the first, second, ... start after a young death. In all below 4 s: readers wait meanwhile."""


class Restarts:
    """The ends of one mount's daemons."""

    def __init__(self) -> None:
        self.count = 0
        """Daemons that ended by themselves."""
        self._young: deque[float] = deque()
        self._hung_s: float | None = None

    def hung(self, now_s: float) -> bool:
        """A daemon was ended since it did not answer. Whether another one was just before: then it is not the daemons,
        and the connection should be given up with all that waits there."""
        before_s, self._hung_s = self._hung_s, now_s
        return before_s is not None and now_s - before_s < _WITHIN_S

    def ended(self, now_s: float, lived_s: float | None) -> float | None:
        """A daemon has ended that had answered for `lived_s` seconds (None: it never did).

        Seconds to wait before the next start; None: no other is started.
        """
        self.count += 1
        if lived_s is not None and lived_s >= _YOUNG_S:
            self._young.clear()
            return 0.0
        self._young.append(now_s)
        while self._young[0] < now_s - _WITHIN_S:
            self._young.popleft()
        return None if len(self._young) >= _MOST else _DELAYS_S[len(self._young) - 1]

    def forgive(self) -> None:
        """What comes now is something else: another release."""
        self._young.clear()

    @property
    def young(self) -> int:
        """Daemons that ended as soon as they began, of late."""
        return len(self._young)
