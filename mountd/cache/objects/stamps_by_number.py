"""A number for each of millions of objects, those close to one another together: eight bytes each.

Plain state; no two threads at a time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

_TOGETHER = 64
_NONE = bytes(8 * _TOGETHER)


class StampsByNumber:
    """What is not entered has 0."""

    def __init__(self) -> None:
        self._blocks: dict[int, array[int]] = {}

    def __getitem__(self, number: int) -> int:
        block = self._blocks.get(number // _TOGETHER)
        return block[number % _TOGETHER] if block is not None else 0

    def __setitem__(self, number: int, stamp: int) -> None:
        block = self._blocks.get(number // _TOGETHER)
        if block is None:
            block = self._blocks[number // _TOGETHER] = array("Q", _NONE)
        block[number % _TOGETHER] = stamp

    def forget(self, numbers: Iterable[int]) -> None:
        """They have 0 from now on."""
        for number in numbers:
            block = self._blocks.get(number // _TOGETHER)
            if block is not None:
                block[number % _TOGETHER] = 0
                if not any(block):
                    del self._blocks[number // _TOGETHER]
