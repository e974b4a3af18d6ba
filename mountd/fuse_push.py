"""One push of bytes into the kernel's page cache, by a thread: who has to clean up behind it.

The kernel may wait for a page before it takes the bytes, and whoever waits for the push may give up before. What the
push needs until its end must then outlive them: so the thread itself says when it is over. Used by `fuse` only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import trio

__all__ = ["Push"]


class Push:
    """`run` calls `store` and then `ended`, in a thread. If the push was given up before it began, neither."""

    def __init__(self, store: Callable[[], None], ended: Callable[[], None]) -> None:
        self._store = store
        self._ended = ended
        self._unclaimed = [True]

    def claim(self) -> bool:
        """True for the first who asks: the thread that begins, or the caller that has given up before. Any thread."""
        try:
            return self._unclaimed.pop()  # one step for the interpreter: no two get it
        except IndexError:
            return False

    def run(self) -> None:
        """In a thread. Raises what `store` raises."""
        if not self.claim():
            return
        try:
            self._store()
        finally:
            with contextlib.suppress(trio.RunFinishedError):  # the daemon has stopped meanwhile
                self._ended()
