"""Object numbers: where each staged file gets a name that no file ever had; and what is kept of millions of them.

Numbers are leased from the index in durable blocks, ahead of need, so that `take_nowait` waits for nothing. A number is
open from the moment it is taken until its object has a row in the index or is off the disk. All below the lowest open
number is settled; after a crash only the numbers from there to the end of the lease can be garbage.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable

import trio

from hfs.mountd.cache.index import IndexFailed
from hfs.mountd.cache.objects.context import CacheContext

_MORE_BYTES = 1 << 10
"""It grows by so much at least."""


class NumberSet:
    """`number in numbers`, also of None, which is never in it."""

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._bits = bytearray()
        self.add(*numbers)

    def __contains__(self, number: int | None) -> bool:
        if number is None:
            return False
        byte, bit = divmod(number, 8)
        return byte < len(self._bits) and bool(self._bits[byte] >> bit & 1)

    def add(self, *numbers: int) -> None:
        """They are in it from now on."""
        for number in numbers:
            byte, bit = divmod(number, 8)
            if byte >= len(self._bits):
                self._bits.extend(bytes(byte + _MORE_BYTES + 1 - len(self._bits)))
            self._bits[byte] |= 1 << bit

    def bits(self) -> bytes:
        """A bit for each number, of the first byte the lowest first."""
        return bytes(self._bits)

    def discard(self, *numbers: int) -> None:
        """They are not, from now on."""
        for number in numbers:
            byte, bit = divmod(number, 8)
            if byte < len(self._bits):
                self._bits[byte] &= ~(1 << bit)


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


_AHEAD = 8_192
"""Numbers left when the next block is asked for: over a second of the fastest staging of small files."""

_RETRY_S = 5.0


class ObjectIdAllocator:
    """Event loop only. `run` is a task of staging's nursery."""

    def __init__(self, context: CacheContext) -> None:
        self._context = context
        self._free: list[range] = []
        self._next = context.index.opened.next_id
        self._open: OrderedDict[int, None] = OrderedDict()
        self._granted: set[int] = set()
        """Those of them that others may use, and have not said that they have."""
        self._garbage_from: int | None = context.index.opened.settled_id
        self._low = trio.Event()
        self._leased = trio.Event()

    def __contains__(self, number: int) -> bool:
        """It is open: its object has no row yet."""
        return number in self._open

    @property
    def unused_from(self) -> int:
        """The first number that was not taken."""
        return self._free[0].start if self._free else self._next

    def settled_id(self) -> int:
        """Every object below has a row or is off the disk."""
        candidates = [self.unused_from]
        if self._open:
            candidates.append(next(iter(self._open)))
        if self._garbage_from is not None:
            candidates.append(self._garbage_from)
        return min(candidates)

    @property
    def all_settled(self) -> bool:
        """No object is without a row, and the garbage of an earlier run is gone."""
        return not self._open and self._garbage_from is None

    def garbage_removed(self) -> None:
        """What an earlier run left without a row is off the disk."""
        self._garbage_from = None

    @property
    def open_count(self) -> int:
        """Objects without a row."""
        return len(self._open) - len(self._granted)

    def ready_nowait(self) -> bool:
        """Whether `take_nowait` has a number; if not, more are asked for."""
        if not self._free:
            self._low.set()
        return bool(self._free)

    def take_nowait(self) -> int:
        """A new number; `ready_nowait` was asked before."""
        block = self._free[0]
        number = block.start
        if number + 1 < block.stop:
            self._free[0] = range(number + 1, block.stop)
        else:
            del self._free[0]
        self._open[number] = None
        if sum(map(len, self._free)) < _AHEAD:
            self._low.set()
        return number

    def grant_nowait(self, at_most: int) -> range:
        """So many numbers one after the other, or fewer, that no file ever had, for others to use."""
        block = self._free[0]
        taken = block[:at_most]
        self._free[0] = block[at_most:]
        if not self._free[0]:
            del self._free[0]
        self._open.update(dict.fromkeys(taken))
        self._granted.update(taken)
        if sum(map(len, self._free)) < _AHEAD:
            self._low.set()
        return taken

    def used(self, number: int) -> None:
        """Others have made an object with this number."""
        self._granted.discard(number)

    def settle(self, number: int) -> None:
        """The object has a row now, or is off the disk; or there is none."""
        self._granted.discard(number)
        self._open.pop(number, None)

    async def run(self) -> None:
        """Keep numbers ahead of need. Never returns."""
        while True:
            try:
                block = await self._context.threads.change_index(self._context.index.writer.lease, self.settled_id())
            except IndexFailed as error:
                self._context.health.index_failed(error, "leasing object numbers")
                await trio.sleep(_RETRY_S)
                continue
            self._free.append(block)
            self._next = block.stop
            self._leased.set()
            self._low = trio.Event()
            await self._low.wait()

    async def wait_leased(self) -> None:
        """Until there have been numbers to take."""
        await self._leased.wait()
