"""Which paths may have been seen before: one bit for each of 67 million hashes, so that nobody keeps the paths.

Says yes of every path that was added, and by chance of some others: of one in 50 when a million were. Eight megabytes,
whatever comes. `mountd/cache/writer.py` keeps one of what it has staged. Pure.
"""

from __future__ import annotations

import numpy as np

_BITS = 26


class PathFilter:
    """Paths are given as 64-bit hashes, every bit of which must depend on all of the path."""

    def __init__(self) -> None:
        # Of NumPy, whose zeros take no memory before they are written to; a view, since its items are plain numbers.
        self._bits = np.zeros(1 << (_BITS - 3), np.uint8).data

    def add(self, path_hash: int) -> None:
        """One more."""
        bit = path_hash >> (64 - _BITS)
        self._bits[bit >> 3] |= 1 << (bit & 7)

    def __contains__(self, path_hash: int) -> bool:
        """False: it was not added."""
        bit = path_hash >> (64 - _BITS)
        return bool(self._bits[bit >> 3] & 1 << (bit & 7))
