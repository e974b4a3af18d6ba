"""Path numbers: small numbers for paths, given in the order in which they are first seen; bounded memory.

A table with open addressing over 64-bit hashes: 24 to 48 bytes a path besides its characters, where a dict of bytes
takes some 200. Two paths of one hash would be one number: once in a hundred million tables of a million paths, and what
follows from it is a file fetched that nobody asked for. Called by `hints.repeated`; knows nothing of files.
"""

from __future__ import annotations

from array import array

import numpy as np
from xxhash import xxh3_64_intdigest

__all__ = ["PathNumbers"]

_FULL_PARTS = 2
"""The table is at most half full: a look-up then takes one and a half steps."""


class PathNumbers:
    """Numbers 0 .. len - 1."""

    def __init__(self) -> None:
        self._hashes = array("Q", [0]) * 1024
        self._numbers = array("i", [-1]) * 1024
        self._names = bytearray()
        self._ends = array("Q")

    def __len__(self) -> int:
        return len(self._ends)

    def number(self, path: bytes) -> int:
        """The number of `path`; a new one if it was not seen."""
        hashed = xxh3_64_intdigest(path)
        place = self._find(hashed)
        found = self._numbers[place]
        if found >= 0:
            return found
        number = len(self._ends)
        self._hashes[place], self._numbers[place] = hashed, number
        self._names += path
        self._ends.append(len(self._names))
        if len(self._ends) * _FULL_PARTS > len(self._numbers):
            self._grow()
        return number

    def path(self, number: int) -> bytes:
        """The path of a number that was given."""
        start = self._ends[number - 1] if number else 0
        return bytes(self._names[start : self._ends[number]])

    def _find(self, hashed: int) -> int:
        """Where `hashed` is, or would be."""
        mask = len(self._numbers) - 1
        place = hashed & mask
        while self._numbers[place] >= 0 and self._hashes[place] != hashed:
            place = (place + 1) & mask
        return place

    def _grow(self) -> None:
        """Twice as many places. With numpy, 0.1 s for a million paths, in which nobody is answered; else a second."""
        old = np.frombuffer(self._numbers, np.int32)
        held = np.flatnonzero(old >= 0)
        hashes, numbers = np.frombuffer(self._hashes, np.uint64)[held], old[held]
        mask = 2 * len(old) - 1
        new_hashes, new_numbers = np.zeros(mask + 1, np.uint64), np.full(mask + 1, -1, np.int32)
        places = (hashes & np.uint64(mask)).astype(np.int64)
        while len(places):
            # Of all that want a free place the first has it, the others go on to the next.
            wanted, first = np.unique(places, return_index=True)
            first = first[new_numbers[wanted] < 0]
            new_hashes[places[first]], new_numbers[places[first]] = hashes[first], numbers[first]
            left = np.ones(len(places), bool)
            left[first] = False
            places, hashes, numbers = (places[left] + 1) & mask, hashes[left], numbers[left]
        self._hashes, self._numbers = array("Q", new_hashes.tobytes()), array("i", new_numbers.tobytes())
