"""`hfs sweep`: what killed processes and ended jobs have left on a node is found, and taken away.

    mounts.py     dead mounts
    daemons.py    mounts that are held for jobs that have ended, and daemons that such jobs have started
    sockets.py    sockets that nobody listens at, directories of sockets that are empty
    caches.py     caches that nobody has used for longer than `expire`

Each finds one kind and says what becomes of it (`Swept`). None touches a mount that answers and is in use, and what
cannot be told for certain stays. A user sweeps what is the user's own, root all.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Swept(NamedTuple):
    """One thing that was left behind, and whether it is gone now. `kind` stays the same from release to release."""

    kind: str
    """dead-mount, job, daemon, socket, directory or cache; user: what there was no time for."""
    where: str
    """A path; `user N`."""
    text: str
    """What it is, in a few words."""
    kept: str = ""
    """Why it is still there; empty: it is gone, or would be without --dry-run."""
    is_theirs: bool = False
    """Another user's, who can keep it as long as that one likes: no failure of the command."""

    def line(self, *, dry_run: bool) -> str:
        """For people."""
        if self.kept:
            return f"kept {self.where}: {self.text}; {self.kept}"
        return f"{'would remove' if dry_run else 'removed'} {self.where}: {self.text}"


class TimeForOthers:
    """How long a command of root works for other users: for each some seconds over all that is done for that one, and
    for all of them together a limit too. Who likes leaves things that say nothing, and as many as there is room for.

    What we do for our own user is not counted. For work that is done one thing after another.
    """

    def __init__(self, user_s: float, all_s: float) -> None:
        self.stopped: set[int] = set()
        """Users for whom there was no time any more."""
        self.limits = f"{user_s:g} s for one user, {all_s:g} s for all"
        self._user_s = user_s
        self._left_s: dict[int, float] = {}
        self._left_for_all_s = all_s
        self._seed = random.random()
        self._since_s = 0.0

    def in_fair_order(self, users: Iterable[int]) -> list[int]:
        """Each once, our own first; of the others each time another one, since there may be no time for the last."""
        ours = os.geteuid()
        return sorted(set(users), key=lambda uid: (uid != ours, hash((self._seed, uid))))

    def each(self, users: Iterable[int]) -> Iterator[int]:
        """Those for whom there is time, each once, in turn; until the next is asked for it is spent on this one."""
        for uid in self.in_fair_order(users):
            with self.spent_on(uid):
                if self.left_s(uid):
                    yield uid

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
