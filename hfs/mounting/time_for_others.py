"""How long a command of root works for other users: for each some seconds over all that is done for that one, and for
all of them together a limit too. Who likes leaves things that say nothing, and as many as there is room for.

What we do for our own user is not counted. For work that is done one thing after another.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import time
from collections.abc import Iterable, Iterator


class TimeForOthers:
    """Of one command."""

    def __init__(self, user_s: float, all_s: float) -> None:
        self.stopped: set[int] = set()
        """Users for whom there was no time any more."""
        self.limits = f"{user_s:g} s for one user, {all_s:g} s for all"
        self._user_s = user_s
        self._left_s: dict[int, float] = {}
        self._left_for_all_s = all_s
        self._seed = random.random()
        self._since_s = 0.0

    def in_turn(self, users: Iterable[int]) -> list[int]:
        """Each once, our own first; of the others each time another one, since there may be no time for the last."""
        ours = os.geteuid()
        return sorted(set(users), key=lambda uid: (uid != ours, hash((self._seed, uid))))

    @contextlib.contextmanager
    def spent_on(self, uid: int) -> Iterator[None]:
        """What the block takes is for this user."""
        self._since_s = time.monotonic()
        try:
            yield
        finally:
            self._count(uid)

    def left_s(self, uid: int) -> float:
        """What is left for the user of the block that this is asked in."""
        if uid == os.geteuid():
            return math.inf
        self._count(uid)
        left_s = max(0.0, min(self._left_s[uid], self._left_for_all_s))
        if not left_s:
            self.stopped.add(uid)
        return left_s

    def _count(self, uid: int) -> None:
        now_s = time.monotonic()
        took_s, self._since_s = now_s - self._since_s, now_s
        self._left_s[uid] = self._left_s.get(uid, self._user_s) - took_s
        if uid != os.geteuid():
            self._left_for_all_s -= took_s
