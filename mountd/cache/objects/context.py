"""What all parts of staging stand on: the disk, the index, the account, and the threads to reach them without waiting.

Built once, when the cache is opened; shared by the parts. Each kind of work has threads of its own, so that a slow sync
never delays a read and a long clean-up never delays an eviction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import trio

from hfs.mountd.base.version import Version
from hfs.mountd.cache.index import Index
from hfs.mountd.cache.objects.disk import Disk
from hfs.mountd.cache.objects.file import StagedFile
from hfs.mountd.cache.objects.pace import WritePace
from hfs.mountd.cache.objects.room import Health, Room
from hfs.mountd.cache.objects.stamps import Turns
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.kernel import DataPlane, SmallFetches
from hfs.policies.prefetch.yielding import Waits

Value = TypeVar("Value")

_READS = 16
"""Reads of staged files that wait for the disk at a time: an NVMe drive is at its best with about as many."""


_EXPANDS = 4
"""Shrunk chunks that are read at a time: that keeps four cores busy, and each is in memory twice."""


class RunInThread(Protocol):
    """trio.to_thread.run_sync, or a test's that runs the function at once."""

    def __call__(
        self, sync_fn: Callable[..., Any], *args: Any, limiter: trio.CapacityLimiter | None = None
    ) -> Awaitable[Any]: ...


class Threads:
    """Bounded pools. A call that has begun cannot be cancelled; its result always arrives."""

    def __init__(self, run: RunInThread, writers: int) -> None:
        self._run = run
        # One each: a connection of the index is used by one thread at a time.
        self._index_writing = trio.CapacityLimiter(1)
        self._index_reading = trio.CapacityLimiter(1)
        self._writers = writers
        self._writing = trio.CapacityLimiter(writers)
        self._reading = trio.CapacityLimiter(_READS)
        self._expanding = trio.CapacityLimiter(_EXPANDS)
        self._reading_ahead = trio.CapacityLimiter(1)  # it hands requests over, and waits when the disk has too many
        self._looking = trio.CapacityLimiter(2)  # one for the scrub, one for who waits for `hfs cache check`
        self._syncing = trio.CapacityLimiter(1)
        self._sweeping = trio.CapacityLimiter(2)  # one for the clean-up after a crash, one for what cannot wait for it
        self.pace = WritePace(lambda: self.readers_wait)
        """Of what `write` writes."""
        self._waits = Waits(0, 0, 0)

    async def change_index(self, function: Callable[..., Value], *args: Any) -> Value:
        """A writing method of the index. Calls are carried out in the order in which they are made."""
        value: Value = await self._run(function, *args, limiter=self._index_writing)
        return value

    async def ask_index(self, function: Callable[..., Value], *args: Any) -> Value:
        """A reading method of the index."""
        value: Value = await self._run(function, *args, limiter=self._index_reading)
        return value

    async def write(self, function: Callable[..., Value], *args: Any) -> Value:
        """Staging chunks."""
        value: Value = await self._run(function, *args, limiter=self._writing)
        return value

    async def read(self, function: Callable[..., Value], *args: Any) -> Value:
        """Reading staged bytes that somebody waits for."""
        return await self._wait_for(function, args, self._reading)

    async def expand(self, function: Callable[..., Value], *args: Any) -> Value:
        """As `read`, of what was shrunk."""
        return await self._wait_for(function, args, self._expanding)

    async def _wait_for(
        self, function: Callable[..., Value], args: tuple[Any, ...], limiter: trio.CapacityLimiter
    ) -> Value:
        began_s = trio.current_time()
        self._waits = self._waits.begun()
        try:
            value: Value = await self._run(function, *args, limiter=limiter)
        finally:
            self._waits = self._waits.ended(int((trio.current_time() - began_s) * 1e9))
        return value

    async def read_ahead(self, function: Callable[..., Value], *args: Any) -> Value:
        """Having staged bytes read that nobody waits for yet."""
        value: Value = await self._run(function, *args, limiter=self._reading_ahead)
        return value

    async def look(self, function: Callable[..., Value], *args: Any) -> Value:
        """Comparing staged bytes with their checksums, that nobody wants to read now."""
        value: Value = await self._run(function, *args, limiter=self._looking)
        return value

    @property
    def readers_wait(self) -> bool:
        """Somebody waits for staged bytes from the disk."""
        return self._reading.borrowed_tokens > 0 or self._expanding.borrowed_tokens > 0

    @property
    def waits(self) -> Waits:
        """How readers have waited for staged bytes from the disk, since the cache was opened. Those that the kernel
        serves by itself (passthrough, its page cache) are not seen."""
        return self._waits

    def step_back(self, share: float) -> None:
        """Write in this part of the time from now on, one thread at least: readers of other mounts wait for the disk.
        What is under way goes on."""
        self.pace.share = share
        self._writing.total_tokens = max(1, int(self._writers * share))

    async def sync(self, function: Callable[..., Value], *args: Any) -> Value:
        """Making a group durable."""
        value: Value = await self._run(function, *args, limiter=self._syncing)
        return value

    async def sweep(self, function: Callable[..., Value], *args: Any) -> Value:
        """Removing, punching, asking the disk."""
        value: Value = await self._run(function, *args, limiter=self._sweeping)
        return value


class Trust(Protocol):
    """Whether what the source gave was right, as far as that is known; see `mountd/source/doubts.py`."""

    def holds(self, version: Version) -> bool:
        """Bytes of this version are in doubt: what is written of it waits."""

    def refutes(self, version: Version) -> bool:
        """They were wrong: nothing of it is to be committed."""

    def hurry(self, version: Version) -> None:
        """Somebody waits until it is known."""


async def nothing_planned(_objects: Sequence[int]) -> Collection[int]:
    """No learner has given an order."""
    return ()


@dataclass(frozen=True, slots=True)
class CacheContext:
    disk: Disk
    index: Index
    threads: Threads
    room: Room
    health: Health
    metrics: Metrics
    clock: Callable[[], float]
    """Seconds since the epoch."""
    turns: Turns = field(default_factory=Turns)
    trust: Trust | None = None
    """None: the source is always right."""
    lost_under_readers: Callable[[StagedFile, Sequence[int]], object] = lambda _file, _indexes: None
    """Told of chunks of a file that the kernel reads by itself, passed through or in an overlay: they were given up,
    and may be put again."""
    answers: DataPlane | None = None
    """Who answers reads of staged objects without asking us; None: nobody."""
    maker: SmallFetches | None = None
    """Who makes objects without asking for each; None: nobody."""
    planned: Callable[[Sequence[int]], Awaitable[Collection[int]]] = nothing_planned
    """Those of the objects that an order of a learner names: they go when it says so."""
