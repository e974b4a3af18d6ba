"""The chunks that were decoded last, in memory, and which are being decoded.

An encoded chunk is decoded whole, since only then its checksum can be verified. Its reader asks for 128 KiB at a time,
so it would be decoded again for each of them: the chunks decoded last stay here, at most 64 MiB of them (one, if it is
larger): eight readers that each read through a chunk of their own. A chunk that was read to its end goes first. And a
chunk that several ask for is decoded once.

Event loop only; does no I/O. What is here was verified and belongs to one version, so
it can never be wrong; it is not used any more when its file has lost a chunk, and goes as others come.
"""

from __future__ import annotations

from collections import OrderedDict

import trio

from mountd.cache.objects.file import StagedFile

__all__ = ["Decoded"]

_LIMIT_BYTES = 64 << 20


class Decoded:
    """By object number and chunk."""

    def __init__(self, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._held: OrderedDict[tuple[int | None, int], tuple[int, bytearray]] = OrderedDict()
        self._coming: dict[tuple[int | None, int], trio.Event] = {}
        self.held_bytes = 0

    def get(self, file: StagedFile, index: int) -> bytearray | None:
        """All bytes of a present chunk, if they are here."""
        key = file.object_id, index
        held = self._held.get(key)
        if held is None or held[0] != file.changes:
            return None
        self._held.move_to_end(key)
        return held[1]

    def put(self, file: StagedFile, index: int, data: bytearray) -> None:
        """Keep a chunk that was decoded; the least recently used go for it."""
        key = file.object_id, index
        self._discard(key)
        self._held[key] = file.changes, data
        self.held_bytes += len(data)
        while self.held_bytes > self._limit_bytes and len(self._held) > 1:
            self._discard(next(iter(self._held)))

    def read_to_end(self, file: StagedFile, index: int) -> None:
        """Whoever read it has all of it: it is the first to go."""
        key = file.object_id, index
        if key in self._held:
            self._held.move_to_end(key, last=False)

    def coming(self, file: StagedFile, index: int) -> trio.Event | None:
        """Set when the decoding that is under way has ended, one way or the other; None: there is none."""
        return self._coming.get((file.object_id, index))

    def begin(self, file: StagedFile, index: int) -> tuple[int | None, int]:
        """The caller decodes it now, and gives what this returns to `end`."""
        key = file.object_id, index
        self._coming[key] = trio.Event()
        return key

    def end(self, key: tuple[int | None, int]) -> None:
        """Undo `begin`."""
        self._coming.pop(key).set()

    def _discard(self, key: tuple[int | None, int]) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            self.held_bytes -= len(held[1])
