"""Pins: staged files that a person wants kept (`hfs cache warm --pin`), which go only by name or with a change at the
source.

No room pressure takes them: neither the policy, nor neighbours of the same root, nor an age, nor the order of a
learner. The index has them, so they outlive restarts and crashes; memory knows their numbers, so that whoever evicts
for room asks here at the last moment, without waiting. What is open is something else (`StagedFile.pins`).

Event loop only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing

import trio

from hfs.mountd.base.version import Version
from hfs.mountd.cache.index import Committed, IndexFailed
from hfs.mountd.cache.objects import CacheContext
from hfs.mountd.cache.objects.number_set import NumberSet
from hfs.mountd.cache.table.listing import pages_of
from hfs.policies.cache.admission import BLOCK_BYTES

_AT_ONCE = 4096
"""In one durable commit: some 20 ms of the thread that changes the index."""


class Pins:
    """`number in pins`. `len()`: how many. What they take is `Room.pinned_bytes`."""

    def __init__(self, context: CacheContext) -> None:
        self._context = context
        numbers, blocks = context.index.opened_pins
        self._numbers = NumberSet(numbers)
        self._count = len(numbers)
        context.room.pinned_bytes = blocks * BLOCK_BYTES
        self._one_at_a_time = trio.Lock()

    def __contains__(self, number: int | None) -> bool:
        return number in self._numbers

    def __len__(self) -> int:
        return self._count

    def bits(self) -> bytes:
        """A bit for each number, of the first byte the lowest first; what lies beyond is not pinned."""
        return self._numbers.bits()

    async def pin(self, numbers: Sequence[int]) -> int:
        """Keep these objects. How many of them are pinned now, durably: those that are not in the index are not.

        Raises IndexFailed, and some may be pinned then.
        """
        pinned = 0
        for start in range(0, len(numbers), _AT_ONCE):
            pinned += await self._pin(numbers[start : start + _AT_ONCE])
        return pinned

    async def _pin(self, numbers: Sequence[int]) -> int:
        async with self._one_at_a_time:
            new = [number for number in dict.fromkeys(numbers) if number not in self._numbers]
            for number in new:
                self._numbers.add(number)  # from this moment on: what is being evicted already has no row
            missing = new
            try:
                with trio.CancelScope(shield=True):  # what the index does memory knows
                    changed, missing = await self._context.threads.change_index(self._pin_in_index, new)
                self._count += len(new) - len(missing)
                self._context.room.pinned_bytes += sum(changed.values())
            except IndexFailed as error:
                self._context.health.index_failed(error, "pinning staged files")
                raise
            finally:
                for number in missing:
                    self._numbers.discard(number)
            return sum(number in self._numbers for number in numbers)

    def _pin_in_index(self, numbers: Sequence[int]) -> tuple[dict[int, int], list[int]]:
        return self._context.index.writer.pin(numbers, pinned=True)

    async def unpin(
        self, prefixes: Collection[bytes] = (b"",), source_ids: Collection[str] | None = None
    ) -> tuple[int, int]:
        """Those at or below these paths may go again; see `StagedListing.rows` for both arguments. Returns (files,
        bytes of their room). Raises IndexFailed, and some may be unpinned then."""
        files = size_bytes = 0
        async with aclosing(pages_of(self._context, prefixes, source_ids, pinned=True)) as pages:
            async for rows in pages:
                numbers = [row.object_id for row in rows]
                async with self._one_at_a_time:
                    with trio.CancelScope(shield=True):
                        changed, _ = await self._context.threads.change_index(self._unpin_in_index, numbers)
                        self.gone(changed)
                files += len(changed)
                size_bytes += sum(changed.values())
        return files, size_bytes

    def _unpin_in_index(self, numbers: Sequence[int]) -> tuple[dict[int, int], list[int]]:
        return self._context.index.writer.pin(numbers, pinned=False)

    async def replaced(self, rows: Sequence[Committed]) -> Sequence[Version]:
        """What is pinned at the paths of these new rows, and was there before them: it is superseded. Nobody else may
        notice, as where the kernel has forgotten the file meanwhile."""
        new = [(row.path, row.version) for row in rows if row.is_new and row.path]
        if not new or not self._count:
            return ()
        try:
            found = await self._context.threads.ask_index(self._context.index.reader.pinned_at, new)
        except IndexFailed as error:
            self._context.health.index_failed(error, "looking for pinned files")
            return ()
        return [row.version for row in found]

    def gone(self, room_bytes: Mapping[int, int]) -> None:
        """These have no row any more, or are not pinned there; the room of each."""
        for number, size_bytes in room_bytes.items():
            if number in self._numbers:
                self._numbers.discard(number)
                self._count -= 1
                # What was repaired since takes another size: it is counted anew at the next start.
                self._context.room.pinned_bytes = max(0, self._context.room.pinned_bytes - size_bytes)
