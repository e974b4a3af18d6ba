"""A set of object numbers, of which there may be millions: a bit for each below the largest.

Plain state; no two threads at a time.
"""

from __future__ import annotations

from collections.abc import Iterable

_MORE_BYTES = 1 << 10
"""It grows by so much at least."""


class NumberSet:
    """`number in numbers`, also of None, which is never in it."""

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._bits = bytearray()
        for number in numbers:
            self.add(number)

    def __contains__(self, number: int | None) -> bool:
        if number is None:
            return False
        byte, bit = divmod(number, 8)
        return byte < len(self._bits) and bool(self._bits[byte] >> bit & 1)

    def add(self, number: int) -> None:
        """It is in it from now on."""
        byte, bit = divmod(number, 8)
        if byte >= len(self._bits):
            self._bits.extend(bytes(byte + _MORE_BYTES + 1 - len(self._bits)))
        self._bits[byte] |= 1 << bit

    def bits(self) -> bytes:
        """A bit for each number, of the first byte the lowest first."""
        return bytes(self._bits)

    def discard(self, number: int) -> None:
        """It is not, from now on."""
        byte, bit = divmod(number, 8)
        if byte < len(self._bits):
            self._bits[byte] &= ~(1 << bit)
