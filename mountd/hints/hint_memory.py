"""How much memory hints take in all: layouts, orders, and what has come of them so far. More is refused.

Event loop only.
"""

from __future__ import annotations

from typing import Protocol

from mountd.wire.layout import LayoutError

_MAX_MEMORY_BYTES = 2 << 30
"""Layouts and orders together: eight million files of fifty bytes and eight learners that read an eighth of them each,
in this epoch and the next, take 1.5 GB."""


class _Holder(Protocol):
    @property
    def memory_bytes(self) -> int:
        """What it takes now."""


class HintMemory:
    """The plans and sessions that hold memory."""

    def __init__(self) -> None:
        self._holders: set[_Holder] = set()

    def add(self, holder: _Holder) -> None:
        """From now on what it takes is counted."""
        self._holders.add(holder)

    def remove(self, holder: _Holder) -> None:
        """It has gone."""
        self._holders.remove(holder)

    def check_room(self, more_bytes: int) -> None:
        """Raise LayoutError if so much more would be more than is kept of hints in all."""
        wanted_bytes = sum(holder.memory_bytes for holder in self._holders) + more_bytes
        if wanted_bytes > _MAX_MEMORY_BYTES:
            raise LayoutError(f"hints of {wanted_bytes} bytes are more than the {_MAX_MEMORY_BYTES} that are kept")
