"""Hanging calls: how many may hang below each directory of the source before others below it wait in line.

A part of the source may hang while the rest is healthy: one server of many, a file system mounted below. Each call that
hangs there keeps a thread, and there are only so many. So a directory may have half as many hanging calls below it as
its parent may: whatever hangs leaves half of the threads of every directory above it to its neighbours. Which directory
it is that hangs need not be known, and no directory is so deep that nothing may be asked of it.

Pure: counts what it is told. Nothing is kept of directories without a hanging call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

_LEAST = 8
"""What the deepest directory may have: enough to see that it answers again."""


class Hanging:
    """The calls that hang now, by the directory that they ask. Paths are relative to the source; empty is its root."""

    def __init__(self, most: int) -> None:
        """`most`: how many may hang in all."""
        self.most = most
        self._below: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return self._below[b""]

    def began(self, directory: bytes) -> None:
        """A call that asks `directory` takes so long that it is taken to hang."""
        for above in _and_above(directory):
            self._below[above] += 1

    def ended(self, directory: bytes) -> None:
        """It has come back."""
        for above in _and_above(directory):
            self._below[above] -= 1
            if not self._below[above]:
                del self._below[above]

    def admits(self, directory: bytes) -> bool:
        """Whether one more call may ask `directory`."""
        if not self._below:
            return True
        return all(
            self._below[above] < max(min(_LEAST, self.most), self.most >> depth)
            for depth, above in enumerate(_and_above(directory))
        )


def _and_above(directory: bytes) -> Iterator[bytes]:
    """The root, then each directory on the way to `directory`, and that itself."""
    yield b""
    if not directory:
        return
    end = directory.find(b"/")
    while end >= 0:
        yield directory[:end]
        end = directory.find(b"/", end + 1)
    yield directory
