"""Chunk buffers: the only large memory of the daemon, under one byte budget.

A fetch takes a buffer, the source reads into it, readers are answered from slices of it and staging writes it to disk.
Whoever holds a slice keeps the buffer alive; when the last slice goes (in any thread) its bytes return to the budget
and its pages are used again. There is no `give back` that could be called too early: an abandoned read of a hung source
still owns the memory it may write to.

Demand may use the whole budget; prefetch only half of it, so a reader never waits behind what nobody has asked for.
Large buffers are anonymous mappings (page-aligned, so O_DIRECT works on both sides) kept in a free list: faulting in
8 MiB costs about 2 ms. Small ones come from the allocator.
"""

from __future__ import annotations

import errno
import mmap
import threading
import weakref
from collections import OrderedDict, deque
from itertools import count
from typing import Generic, TypeVar

import numpy as np
import trio

from hfs.mountd.core.errors import SourceError

PAGE_BYTES = mmap.PAGESIZE
_OVERDUE_S = 10.0
"""A buffer that has been out for so long belongs to a read that hangs. While others wait it is written off the
budget, up to once more the budget: else sixteen hung chunks stop every read of what does not hang, and those that were
given up keep their memory until the source answers."""

_LOOK_EVERY_S = 1.0
_PREFETCH_SHARE = 0.5
"""Half: a node that only reads sequentially still has eight 8 MiB chunks ahead of it with the default budget."""


Key = TypeVar("Key")


class ByteLRU(Generic[Key]):
    """What is kept in memory in case it is asked for again, a bounded number of bytes; the oldest goes first.

    Event loop only.
    """

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


class Buffers:
    """Gives out memoryviews of unsigned bytes under a budget of `total_bytes`. `take` belongs to the event loop."""

    def __init__(self, total_bytes: int, chunk_bytes: int) -> None:
        if total_bytes < 2 * chunk_bytes:
            raise ValueError(f"{total_bytes} bytes of buffers hold fewer than two chunks of {chunk_bytes}")
        self.total_bytes = total_bytes
        self.chunk_bytes = chunk_bytes
        self._used_bytes = 0
        self._free: dict[int, list[mmap.mmap]] = {chunk_bytes: []}
        self._returned: deque[tuple[int, int, mmap.mmap | None]] = deque()
        self._numbers = count()
        self._out: dict[int, tuple[float, int]] = {}
        self._written_off: dict[int, int] = {}
        self._demand: deque[trio.Event] = deque()
        self._prefetch: deque[trio.Event] = deque()
        self._token: trio.lowlevel.TrioToken | None = None
        self._wake_wanted = threading.Event()

    @property
    def used_bytes(self) -> int:
        """Bytes given out and still held by somebody."""
        self._collect()
        return self._used_bytes

    @property
    def waiting(self) -> int:
        """Tasks that wait for a buffer."""
        return len(self._demand) + len(self._prefetch)

    def fits_nowait(self, size: int) -> bool:
        """True if a reader could have `size` bytes without waiting."""
        return self._fits(size, urgent=True)

    async def take(self, size: int, *, urgent: bool) -> memoryview:
        """A writable view of `size` bytes (at most one chunk plus a page), page-aligned. Waits until the budget has
        room.

        Contents are undefined. Not cancelled-unsafe: a cancelled waiter takes nothing.
        """
        if self._token is None:
            self._token = trio.lowlevel.current_trio_token()
        queue = self._demand if urgent else self._prefetch
        while not self._fits(size, urgent=urgent):
            event = trio.Event()
            queue.append(event)
            self._wake_wanted.set()
            try:
                if not self._fits(size, urgent=urgent):  # a return between the test and the flag wakes nobody
                    with trio.move_on_after(_LOOK_EVERY_S):
                        await event.wait()
            except trio.Cancelled:
                queue.remove(event)
                self._wake()  # whoever woke us meant the next as well
                raise
            queue.remove(event)
            self._write_off()
        view = self._made(size)
        self._wake()  # what is left may do for the next in the queue
        return view

    def _fits(self, size: int, *, urgent: bool) -> bool:
        self._collect()
        if urgent:
            return self._used_bytes + size <= self.total_bytes
        return not self._demand and self._used_bytes + size <= self.total_bytes * _PREFETCH_SHARE

    def _made(self, size: int) -> memoryview:
        try:
            return self._make(size)
        except (OSError, MemoryError):
            for free in self._free.values():
                free.clear()
        try:
            return self._make(size)
        except (OSError, MemoryError):
            raise SourceError(errno.ENOMEM, f"no memory for a buffer of {size} bytes") from None

    def _make(self, size: int) -> memoryview:
        mapping: mmap.mmap | None = None
        length = -(-size // PAGE_BYTES) * PAGE_BYTES
        if size > self.chunk_bytes // 2 or length in self._free:
            length = max(length, self.chunk_bytes) if size > self.chunk_bytes // 2 else length
            free = self._free.get(length)
            mapping = free.pop() if free else mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            owner = np.frombuffer(mapping, dtype=np.uint8)
        else:
            raw = np.empty(length + PAGE_BYTES, dtype=np.uint8)
            skip = -raw.ctypes.data % PAGE_BYTES
            owner = np.frombuffer(raw.data[skip : skip + length], dtype=np.uint8)
        self._used_bytes += length
        # The array is what every slice of its memoryview keeps alive; its death is the return of the buffer.
        number = next(self._numbers)
        self._out[number] = (trio.current_time(), length)
        weakref.finalize(owner, self._on_death, number, length, mapping).atexit = False
        return memoryview(owner.data)[:size]

    def _write_off(self) -> None:
        """Take what has been out for too long off the budget; oldest first, since that is the order of the dict."""
        self._collect()
        room = self.total_bytes - sum(self._written_off.values())
        for number, (since_s, length) in list(self._out.items()):
            if trio.current_time() - since_s < _OVERDUE_S or length > room:
                break
            del self._out[number]
            self._written_off[number] = length
            self._used_bytes -= length
            room -= length

    def _on_death(self, number: int, length: int, mapping: mmap.mmap | None) -> None:
        """In whatever thread dropped the last slice: only appends, which is atomic."""
        self._returned.append((number, length, mapping))
        if self._wake_wanted.is_set() and self._token is not None:
            try:
                self._token.run_sync_soon(self._wake, idempotent=True)
            except (trio.RunFinishedError, OSError):
                pass  # nobody waits any more; or a thread with descriptors of its own: who waits looks again soon

    def _collect(self) -> None:
        while self._returned:
            number, length, mapping = self._returned.popleft()
            if self._out.pop(number, None) is not None:
                self._used_bytes -= length
            else:
                del self._written_off[number]
            # One spare chunk for each prefetch in flight is enough; the rest goes back to the system.
            free = self._free.get(length)
            if mapping is not None and free is not None and len(free) < 8:
                free.append(mapping)

    def _wake(self) -> None:
        self._collect()
        if not self._demand and not self._prefetch:
            self._wake_wanted.clear()
            return
        queue = self._demand or self._prefetch
        queue[0].set()
