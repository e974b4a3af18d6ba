"""Fetching: one chunk of one version, from the node that owns it or from the source, once for all who want it.

A fetch is a single flight in the daemon's nursery: take a buffer, have the chunk's owner node fill it or else read the
source, wake the waiters; only then is the chunk put to staging and, where it pays, pushed into the kernel's page cache.
Until staging has written it the chunk is answered from its buffer (`held_chunks`), so no byte is read from the source
twice.

Never decides what to fetch (`resolver`), never answers a reader.
"""

from __future__ import annotations

import contextlib
import enum
import math
from collections.abc import AsyncIterator, Callable, Iterator

import trio

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.core.attributes import Version
from hfs.mountd.core.errors import HfsError
from hfs.mountd.core.flight import SingleFlight
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.fetch.chunks.held import ChunkKey, ChunkMemory
from hfs.mountd.fetch.chunks.owners import Owners
from hfs.mountd.fetch.chunks.page_pusher import PagePusher, Push
from hfs.mountd.namespace import Node
from hfs.mountd.peers import PeerAnswer
from hfs.mountd.source import Source
from hfs.policies.cache.holes import is_sparse
from hfs.policies.geometry import Extent, chunk_extent
from hfs.policies.iomode import SMALL_BYTES
from hfs.policies.prefetch.yielding import Waits

_LOOK_AGAIN_S = 1.0
"""Who waits for a chunk that others have ordered looks so often whether it still comes."""


class FetchTurns:
    """Turns: how many fetches that nobody waits for may be under way at a time, of those that Python carries out.

    A turn is taken before the fetch is known to anybody, so a reader that wants the same never waits for one: it
    fetches then by itself. As many as there are threads, unless readers of other mounts wait (`fetch.stepping_back`).

    Event loop only.
    """

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(math.inf)

    @property
    def taken(self) -> int:
        """Fetches under way."""
        return int(self._limiter.borrowed_tokens)

    @property
    def limit(self) -> float:
        """How many there may be; infinite: as many as there are threads."""
        return self._limiter.total_tokens

    @property
    def is_free(self) -> bool:
        """Whoever asks for a turn now has it at once."""
        return self._limiter.available_tokens > 0

    def set_limit(self, limit: float) -> None:
        """At least one. Those under way go on."""
        self._limiter.total_tokens = limit

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and keep it while the block lasts."""
        fetch = object()
        await self._limiter.acquire_on_behalf_of(fetch)
        try:
            yield
        finally:
            self._limiter.release_on_behalf_of(fetch)


class Goal(enum.Enum):
    """Where bytes are to be that nobody waits for."""

    STAGED = enum.auto()
    """On the cache disk of the node that caches them, nowhere else."""
    HERE = enum.auto()
    """On the cache disk if it takes them, else in memory for a while."""
    IN_MEMORY = enum.auto()
    """In memory, for a reader who comes soon: they are not worth a place on the disk."""


class Fetcher:
    """Chunks and bypass reads. Event loop only."""

    def __init__(
        self,
        source: Source,
        cache: Cache,
        held: ChunkMemory,
        pusher: PagePusher,
        owners: Owners,
        metrics: Metrics,
        nursery: trio.Nursery,
    ) -> None:
        self._source = source
        self._cache = cache
        self._held = held
        self._pusher = pusher
        self._owners = owners
        self._metrics = metrics
        self._flights: SingleFlight[ChunkKey, memoryview] = SingleFlight(nursery)
        self.turns = FetchTurns()
        """Of fetches that nobody waits for."""
        self._waits = Waits(0, 0, 0)
        self._awaited: dict[ChunkKey, trio.Event] = {}
        """Chunks that readers wait for though nobody has begun to fetch them: they come in their turn."""

    @property
    def waits(self) -> Waits:
        """How readers have waited for the source, those that the data plane answers not included."""
        return self._waits

    @property
    def in_flight(self) -> int:
        """Chunks being fetched now."""
        return len(self._flights)

    def is_coming(self, version: Version, index: int) -> bool:
        """True while the chunk is being fetched or waits for staging."""
        key = (version, index)
        return key in self._flights or self._held.has_landed(key)

    async def wait_flight(self, version: Version, index: int) -> None:
        """Until the chunk is not being fetched, whatever became of it; at once if it is not."""
        if (version, index) in self._flights:
            with contextlib.suppress(HfsError):
                await self._flights.wait((version, index))

    async def chunk(
        self, node: Node, file: StagedFile, index: int, *, push: Push = Push.NOTHING, in_turn: bool = False
    ) -> memoryview:
        """The bytes of chunk `index`, for a reader: from the fetch under way, or from one started now.

        `in_turn`: for another node, so that the owner is not asked. Raises SourceError, VersionChanged.
        """
        key = (file.version, index)
        with contextlib.nullcontext() if in_turn else self.reader_waits():
            return await self._flights.run(key, lambda: self._fetch(key, node, file, None, push=push, in_turn=in_turn))

    async def ahead(
        self,
        node: Node,
        file: StagedFile,
        index: int,
        *,
        push: Push = Push.NOTHING,
        goal: Goal = Goal.HERE,
        began: Callable[[], None] | None = None,
        soon: bool = False,
    ) -> bool:
        """Fetch chunk `index` before anybody asks, unless it is present or coming. True if it was fetched.

        `soon`: its reader comes in a moment, so that it needs no turn.

        The buffer is taken before the flight exists: a reader that joins the flight never waits for memory that
        prefetch has to wait for. `began` is called when the source is asked. Raises as `chunk`.
        """
        async with contextlib.nullcontext() if soon else self.turns.turn():
            return await self._ahead(node, file, index, push, goal, began)

    async def _ahead(
        self, node: Node, file: StagedFile, index: int, push: Push, goal: Goal, began: Callable[[], None] | None
    ) -> bool:
        key = (file.version, index)
        extent = chunk_extent(index, file.version.size, file.chunk_bytes)
        if push not in (Push.NOTHING, Push.NEVER):
            await self._pusher.wait_room(extent.size)
        async with self._owners.buffer_room(node, index, extent.size, urgent=False):
            into = await self._held.take(extent.size)
            if index in file.present or self.is_coming(file.version, index):
                return False
            if goal is not Goal.STAGED and self._held.chunk(file.version, index) is not None:
                return False  # its reader has come while this waited for a buffer
            await self._flights.run(key, lambda: self._fetch(key, node, file, into, push=push, goal=goal, began=began))
        return True

    async def bypass(self, node: Node, file: StagedFile, extent: Extent, *, peers_asked: bool = False) -> memoryview:
        """The bytes of a page-aligned `extent`, for one reader, not staged. Raises SourceError, VersionChanged.

        `peers_asked`: its owner has just said that it has not got them.
        """
        data = None if peers_asked else await self.from_owner(node, file, extent)
        if data is not None:
            return data
        with self.reader_waits():
            into = await self._held.take_urgent(extent.size)
            await self._read(node, file.version, extent, into, urgent=True)
        return self._held.blocks.keep_if_whole(file.version, extent, into[: extent.size].toreadonly())

    async def from_owner(self, node: Node, file: StagedFile, extent: Extent) -> memoryview | None:
        """As `bypass`, from the chunk's owner node if that has it staged; else None."""
        index = extent.start // file.chunk_bytes
        if not self._owners.asks(node.path, index) or extent.end > file.chunk(index).end:
            return None
        async with self._owners.buffer_room(node, index, extent.size, urgent=True):
            into = await self._held.take_urgent(extent.size)
            if await self._owners.fetch(node, file, extent, into, here_only=True) is not PeerAnswer.HIT:
                return None
        return self._held.blocks.keep_if_whole(file.version, extent, into[: extent.size].toreadonly())

    async def wait_scheduled(self, version: Version, index: int, comes: Callable[[], bool]) -> None:
        """Wait for a chunk that others have ordered, until it is here, or will not come by itself: `comes`."""
        key = (version, index)
        with self.reader_waits():
            while comes():
                event = self._awaited.setdefault(key, trio.Event())
                with trio.move_on_after(_LOOK_AGAIN_S):
                    try:
                        await event.wait()
                        return
                    finally:
                        if not event.is_set() and not event.statistics().tasks_waiting:
                            self._awaited.pop(key, None)

    @contextlib.contextmanager
    def reader_waits(self) -> Iterator[None]:
        """A reader waits for the source meanwhile: it is counted."""
        began_s = trio.current_time()
        self._waits = self._waits.begun()
        try:
            yield
        finally:
            waited_ns = int((trio.current_time() - began_s) * 1e9)
            self._waits = self._waits.ended(waited_ns)
            self._metrics.add("source_wait_ns", waited_ns)
            self._metrics.add("source_waits")

    # -- one fetch ----------------------------------------------------------------------------------------------------

    async def _fetch(
        self,
        key: ChunkKey,
        node: Node,
        file: StagedFile,
        buffer: memoryview | None,
        *,
        push: Push,
        goal: Goal = Goal.HERE,
        in_turn: bool = False,
        began: Callable[[], None] | None = None,
    ) -> memoryview:
        """`buffer`: taken ahead by prefetch; None for a reader's fetch, which is urgent."""
        version, index = key
        extent = chunk_extent(index, version.size, file.chunk_bytes)
        try:
            into = await self._filled(node, file, extent, buffer, in_turn=in_turn, began=began)
        finally:
            if (awaited := self._awaited.pop(key, None)) is not None:
                awaited.set()  # they look again when this has been kept, or has failed
        data = into[: extent.size].toreadonly()
        # No checkpoint from here to the return: the chunk is held before its flight ends, so nobody fetches it again.
        stage = goal is not Goal.IN_MEMORY and self._owners.caches_locally(node.path, index)
        if not stage or not self._stage(
            key, file, data, sparse=is_sparse(version.size, node.attributes.blocks, file.chunk_bytes)
        ):
            wanted = buffer is not None or version.size > SMALL_BYTES
            if wanted and push is not Push.NEVER:  # else who waits for it pushes it itself
                push = Push.WHOLE  # nobody keeps it but the page cache
            is_ahead = buffer is not None and not self._owners.is_kept(node.path, index)
            self._held.keep(key, data, soon=goal is Goal.IN_MEMORY or is_ahead)
        if push not in (Push.NOTHING, Push.NEVER):
            self._pusher.start_nowait(node, extent, data, push)
        return data

    async def _filled(
        self,
        node: Node,
        file: StagedFile,
        extent: Extent,
        buffer: memoryview | None,
        *,
        in_turn: bool,
        began: Callable[[], None] | None,
    ) -> memoryview:
        """A buffer with the bytes of a chunk: from its owner node, or from the source."""
        index, urgent = extent.start // file.chunk_bytes, buffer is None
        into, came = buffer, PeerAnswer.MISS
        if self._owners.asks(node.path, index, in_turn=in_turn):
            if into is None:
                async with self._owners.buffer_room(node, index, extent.size, urgent=True):
                    into = await self._held.take_urgent(extent.size)
                    came = await self._owners.fetch(node, file, extent, into)
            else:
                if began is not None:
                    began()
                came = await self._owners.fetch(node, file, extent, into)
            if came is PeerAnswer.HIT:
                return into
        if into is None or came is PeerAnswer.BUFFER_IN_USE:
            del into, buffer
            into = await self._held.take_urgent(extent.size)
        if began is not None:
            began()
        async with self._owners.read_slot(node, file.version, index, extent.size, urgent=urgent):
            await self._read(node, file.version, extent, into, urgent=urgent)
        return into

    async def _read(self, node: Node, version: Version, extent: Extent, into: memoryview, *, urgent: bool) -> None:
        await self._source.files.read(node.directory, node.name, version, extent, into, urgent=urgent)

    def _stage(self, key: ChunkKey, file: StagedFile, data: memoryview, *, sparse: bool = False) -> bool:
        """Put a chunk to staging, and answer it from memory until it can be read from there. False: not taken."""
        self._held.land(key, data)
        taken = self._cache.writer.put_nowait(file, key[1], data, lambda: self._held.written(key), sparse=sparse)
        if not taken or key[1] in file.present:  # staged meanwhile: nothing was queued
            self._held.written(key)
        return taken
