"""ByteLRU: what is kept in memory in case it is asked for again, a bounded number of bytes; the oldest goes first."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

Key = TypeVar("Key")


class ByteLRU(Generic[Key]):
    """Event loop only."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held: OrderedDict[Key, memoryview] = OrderedDict()
        self.bytes = 0

    def keep(self, key: Key, data: memoryview) -> None:
        """Keep it; the oldest go, and this one too if it is larger than the limit."""
        self.drop(key)
        self._held[key] = data
        self.bytes += len(data)
        while self.bytes > self._limit_bytes:
            _, oldest = self._held.popitem(last=False)
            self.bytes -= len(oldest)

    def get(self, key: Key) -> memoryview | None:
        """What is kept of `key`."""
        return self._held.get(key)

    def touch(self, key: Key) -> None:
        """It counts as the newest, if it is kept."""
        if key in self._held:
            self._held.move_to_end(key)

    def goes_first(self, key: Key) -> None:
        """It counts as the oldest, if it is kept."""
        if key in self._held:
            self._held.move_to_end(key, last=False)

    def drop(self, key: Key) -> None:
        """Nobody needs it any more."""
        held = self._held.pop(key, None)
        if held is not None:
            self.bytes -= len(held)

    def clear(self) -> None:
        """The memory is needed."""
        self._held.clear()
        self.bytes = 0
