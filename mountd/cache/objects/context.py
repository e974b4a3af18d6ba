"""What all parts of staging stand on: the disk, the index, the account, its health, and threads to reach them by.

Built once, when the cache is opened; shared by the parts. `Room` accounts every byte before it is written and knows
what the disk had free a moment ago; the arithmetic is in policies/cache/admission.py. `Health` turns faults of the disk
into pauses that grow, one warning a minute, and a state for `hfs status`. Both are plain state on the event loop. Each
kind of work has threads of its own, so that a slow sync never delays a read and a long clean-up never delays an
eviction.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeVar

import trio

from hfs.mountd.cache.index import Index, IndexFailed
from hfs.mountd.cache.objects.changes import ObjectLocks
from hfs.mountd.cache.objects.disk import Disk, DiskSpace
from hfs.mountd.cache.objects.file import StagedFile
from hfs.mountd.cache.objects.io import WritePace
from hfs.mountd.core.attributes import Version
from hfs.mountd.core.errors import show_size
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.kernel import DataPlane, SmallFetches, XattrAnswers
from hfs.policies.cache.admission import (
    RoomFacts,
    admit,
    default_floor_bytes,
    limit_bytes,
    over_bytes,
    shortfall_bytes,
    sized_floor_bytes,
)
from hfs.policies.prefetch.yielding import Waits

log = logging.getLogger(__name__)

State = Literal["ok", "cleaning", "resting", "full", "off"]

_FIRST_REST_S = 1.0
_LONGEST_REST_S = 60.0
"""A full disk is asked again after 1, 2, 4 ... 60 s: soon enough to notice that room came back, seldom enough that a
dead disk costs nothing."""

_WARNING_EVERY_S = 60.0

_NO_LIMIT_BYTES = 1 << 62


class Room:
    """The account. `capacity_bytes` None: as much as the floor of the disk leaves. Without `keeps_floor` nothing is
    staged, so nothing has to go, however full the disk is."""

    def __init__(
        self, capacity_bytes: int | None, used_bytes: int, space: DiskSpace, *, keeps_floor: bool = True
    ) -> None:
        self._keeps_floor = keeps_floor
        self.capacity_bytes = capacity_bytes
        self.obtainable_bytes: int | None = None
        """What could be had in all, where the capacity is what was taken so far of a size that several caches share."""
        self.used_bytes = used_bytes
        self.pinned_bytes = 0
        """Of it, what goes only by name: see `Pins`."""
        self.unwritten_bytes = 0
        """Accounted but not yet written: not yet missing from what the disk says it has free."""
        self._space = space
        self._since_bytes = 0
        """Accounted since the disk was asked."""

    def facts(self) -> RoomFacts:
        """What policies decide by."""
        return RoomFacts(
            self.used_bytes,
            self.capacity_bytes,
            self._space.free_bytes - self._since_bytes,
            self._floor_bytes(),
        )

    def _floor_bytes(self) -> int:
        if not self._keeps_floor:
            return 0
        floor_of = default_floor_bytes if self.capacity_bytes is None else sized_floor_bytes
        return floor_of(self._space.total_bytes)

    def fits(self, size_bytes: int) -> bool:
        """Whether so much more may be charged."""
        return admit(self.facts(), size_bytes)

    def shortfall_bytes(self, size_bytes: int) -> int:
        """How much must go before so much more fits."""
        return shortfall_bytes(self.facts(), size_bytes)

    def over_bytes(self) -> int:
        """How much is held that is no longer ours to hold."""
        return over_bytes(self.facts())

    def limit_bytes(self) -> int:
        """What may be used in all, as things stand."""
        facts = self.facts()
        if self.obtainable_bytes is not None:
            facts = replace(facts, capacity_bytes=self.obtainable_bytes)
        limit = limit_bytes(facts)
        return _NO_LIMIT_BYTES if limit is None else limit

    def what_limits(self) -> str:
        """Which of the two limits is the nearer one, for people."""
        facts, limit = self.facts(), self.limit_bytes()
        if limit in {self.capacity_bytes, self.obtainable_bytes}:
            pinned = f", {show_size(self.pinned_bytes)} of it pinned" if self.pinned_bytes else ""
            return f"cache-size reached ({show_size(limit)}{pinned})"
        free_bytes = max(0, facts.free_bytes)
        return (
            f"the cache disk is full: {show_size(free_bytes)} free, {show_size(facts.floor_bytes)} are left to others"
        )

    def charge(self, size_bytes: int) -> None:
        """Account for bytes that are about to be written."""
        self.used_bytes += size_bytes
        self.unwritten_bytes += size_bytes
        self._since_bytes += size_bytes

    def written(self, size_bytes: int) -> None:
        """Charged bytes have reached the disk, or never will."""
        self.unwritten_bytes -= size_bytes

    def release(self, size_bytes: int) -> None:
        """Bytes are off the disk."""
        self.used_bytes -= size_bytes
        self._since_bytes -= size_bytes

    def measured(self, space: DiskSpace) -> None:
        """The disk was asked just now."""
        self._space = space
        self._since_bytes = self.unwritten_bytes


class Health:
    """Whether the disk is to be tried. A fault means rest; after it a trial says that all is well, and the next fault
    makes the pause longer still until something is staged from end to end."""

    def __init__(self, metrics: Metrics, absent: str | None = None) -> None:
        """`absent`: why there is no cache."""
        self._metrics = metrics
        self._rest_s = 0.0
        self._until = -1.0
        self._warned_at = float("-inf")
        self._off = False
        self._failing = False
        self.last_error: str | None = None
        if absent is not None:
            self._stop(absent, "all is read from the source; the cache is taken up when it is well again")

    @property
    def off(self) -> bool:
        """Staging has stopped for good: the index seems broken, or there is no cache."""
        return self._off

    @property
    def resting(self) -> bool:
        """True while nothing is to be written."""
        return self._off or (self._rest_s > 0 and trio.current_time() < self._until)

    @property
    def failing(self) -> bool:
        """The last try has failed: the pause after it lasts, or is over and the next try is due."""
        return self._failing

    def failed(self, error: BaseException, what: str) -> None:
        """The disk or the index refused; counts it, rests and warns at most once a minute."""
        self._metrics.add("staging_errors")
        self.last_error = f"{what}: {error}"
        self._failing = True
        now = trio.current_time()
        if not self.resting:  # of the many that fail together only the first makes the pause longer
            self._rest_s = min(max(_FIRST_REST_S, 2 * self._rest_s), _LONGEST_REST_S)
            self._until = now + self._rest_s
        self._warn(now, f"{self.last_error}; serving from the source, trying again in {self._rest_s:.0f} s")

    @contextmanager
    def index_faults(self, what: str) -> Iterator[None]:
        """Where the index refuses, the block ends, and that is all."""
        try:
            yield
        except IndexFailed as error:
            self.index_failed(error, what)

    def index_failed(self, error: IndexFailed, what: str) -> None:
        """The index refused: rest, or stop for good when its file is damaged."""
        if error.damaged:
            self.stop(error)
        else:
            self.failed(error, what)

    def stop(self, error: BaseException) -> None:
        """The index is damaged: nothing more is staged until the cache is opened again."""
        self._stop(str(error), "nothing more is staged; the next daemon looks at all of it, and uses what is sound")

    def _stop(self, why: str, what_now: str) -> None:
        if not self._off:
            self._off = True
            self._metrics.add("staging_errors")
            self.last_error = why
            log.warning("%s; %s", why, what_now)

    def broken(self, what: str) -> None:
        """A staged file was found damaged: counted and told, but no reason to rest."""
        self._metrics.add("staging_errors")
        self.last_error = what
        self._warn(trio.current_time(), what)

    def why_resting(self) -> str | None:
        """Why nothing is to be written now, for people; None: it may be."""
        return f"the cache disk did not take it ({self.last_error})" if self.resting else None

    def succeeded(self) -> None:
        """Something was staged from end to end."""
        if not self.resting:
            self.answered()
            self._rest_s = 0.0

    def answered(self) -> None:
        """The disk and the index took a trial."""
        if self._failing and not self.resting:
            log.info("the cache disk works again")
            self._failing = False

    def _warn(self, now: float, message: str) -> None:
        if now - self._warned_at >= _WARNING_EVERY_S:
            self._warned_at = now
            log.warning("%s", message)
        else:
            log.debug("%s", message)


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


class Pool:
    """Threads for one kind of work. A call that has begun cannot be cancelled; its result always arrives."""

    def __init__(self, run: RunInThread, threads: int) -> None:
        self._run = run
        self.limiter = trio.CapacityLimiter(threads)

    async def __call__(self, function: Callable[..., Value], *args: Any) -> Value:
        """`function(*args)`, in one of them."""
        value: Value = await self._run(function, *args, limiter=self.limiter)
        return value


class Threads:
    """A pool for each kind of work."""

    def __init__(self, run: RunInThread, writers: int) -> None:
        # One each: a connection of the index is used by one thread at a time.
        self.change_index = Pool(run, 1)
        """A writing method of the index. Calls are carried out in the order in which they are made."""
        self.ask_index = Pool(run, 1)
        """A reading method of the index."""
        self._writers = writers
        self.write = Pool(run, writers)
        """Staging chunks."""
        self.read_ahead = Pool(run, 1)  # it hands requests over, and waits when the disk has too many
        """Having staged bytes read that nobody waits for yet."""
        self.look = Pool(run, 2)  # one for the scrub, one for who waits for `hfs cache check`
        """Comparing staged bytes with their checksums, that nobody wants to read now."""
        self.sync = Pool(run, 1)
        """Making a group durable."""
        self.sweep = Pool(run, 2)  # one for the clean-up after a crash, one for what cannot wait for it
        """Removing, punching, asking the disk."""
        self._reading, self._expanding = Pool(run, _READS), Pool(run, _EXPANDS)
        self.pace = WritePace(lambda: self.readers_wait)
        """Of what `write` writes."""
        self.waits = Waits(0, 0, 0)
        """How readers have waited for staged bytes from the disk, since the cache was opened. Those that the kernel
        serves by itself (passthrough, its page cache) are not seen."""

    async def read(self, function: Callable[..., Value], *args: Any, expands: bool = False) -> Value:
        """Reading staged bytes that somebody waits for; `expands`: which were shrunk."""
        began_s = trio.current_time()
        self.waits = self.waits.begun()
        try:
            return await (self._expanding if expands else self._reading)(function, *args)
        finally:
            self.waits = self.waits.ended(int((trio.current_time() - began_s) * 1e9))

    @property
    def readers_wait(self) -> bool:
        """Somebody waits for staged bytes from the disk."""
        return self._reading.limiter.borrowed_tokens > 0 or self._expanding.limiter.borrowed_tokens > 0

    def step_back(self, share: float) -> None:
        """Write in this part of the time from now on, one thread at least: readers of other mounts wait for the disk.
        What is under way goes on."""
        self.pace.share = share
        self.write.limiter.total_tokens = max(1, int(self._writers * share))


class Trust(Protocol):
    """Whether what the source gave was right, as far as that is known; see `mountd/source/second_looks.py`."""

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
class Others:
    """Those of other rooms whom a cache asks and tells; None: there is nobody."""

    trust: Trust | None = None
    """None: the source is always right."""
    lost_under_readers: Callable[[StagedFile, Sequence[int]], object] = lambda _file, _indexes: None
    """Told of chunks of a file that the kernel reads by itself, passed through or in an overlay: they were given up,
    and may be put again."""
    answers: DataPlane | None = None
    """Who answers reads of staged objects without asking us."""
    maker: SmallFetches | None = None
    """Who makes objects without asking for each."""
    overlay_answers: XattrAnswers | None = None
    """Who tells overlays of objects besides us."""
    planned: Callable[[Sequence[int]], Awaitable[Collection[int]]] = nothing_planned
    """Those of the objects that an order of a learner names: they go when it says so."""


NOBODY = Others()


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
    others: Others = NOBODY
    locks: ObjectLocks = field(default_factory=ObjectLocks)
