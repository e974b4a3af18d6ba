"""Fetching: one chunk of one version, from a peer or the source into a buffer, once for however many want it.

A fetch is a single flight in the daemon's nursery: take a buffer, have the node that owns the chunk fill it or else
read the source, wake the waiters; only then is the chunk put to staging and, where it pays, pushed into the kernel's
page cache. Until staging has written it the chunk is answered from its buffer (`held_nowait`), so no byte is read from
the source twice. Chunks that staging does not take
stay for a moment in a small ring, since the next read of a sequential reader wants the other half of its chunk. It
never decides what to fetch and never answers a reader.
"""

from __future__ import annotations

import contextlib
import enum
import mmap
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import trio

from mountd.base.errors import HfsError, SourceTimeout, StagingError
from mountd.base.version import Version
from mountd.cache import Cache, StagedFile
from mountd.core.background import start_guarded
from mountd.core.buffers import Buffers
from mountd.core.byte_lru import ByteLRU
from mountd.core.flight import SingleFlight
from mountd.core.memory import Memory
from mountd.core.metrics import Metrics
from mountd.fetch.batches import Batches, Place
from mountd.fetch.blocks import Blocks
from mountd.fetch.recorder import Recorder
from mountd.fetch.stagger import Staggered
from mountd.namespace import Node, by_any_name
from mountd.peers import JobPeers, PeerAnswer
from mountd.source import Source
from policies.geometry import Extent, chunk_extent
from policies.iomode import SMALL_BYTES
from policies.prefetch.miss_policy import BLOCK_BYTES

__all__ = ["PUSH_STEP_BYTES", "UNSTAGED_SHARE", "Fetcher", "PageCache", "Push"]


class Push(enum.Enum):
    """What of a chunk is put into the page cache once it is here."""

    NOTHING = enum.auto()
    WHOLE = enum.auto()
    NEVER = enum.auto()
    """Not even where nobody else keeps it: its reads are to come to us."""
    AHEAD = enum.auto()
    """All but the beginning of every 4 MiB: the READ for it shows how far a sequential reader is."""


class PageCache(Protocol):
    """Puts bytes into the kernel's page cache of a node; False if that was not possible. Never raises."""

    async def push(self, node: Node, offset: int, data: memoryview) -> bool:
        """Any bytes, at an offset; may wait for readers."""

    def push_nowait(self, node: Node, data: memoryview) -> bool:
        """A whole file, of which the only open was not answered yet."""


_PAGE_BYTES = mmap.PAGESIZE
PUSH_STEP_BYTES = 4 << 20
"""As far as readahead takes a read for the next one of a stream (policies/prefetch/readahead.py)."""

_SHOWN_BYTES = 256 << 10
"""One READ. With all pushed, windows ran dry since nobody saw the reader go on; with nothing pushed, a sequential read
of 1.2 GB from a fast source was slower by a third to a half."""

UNSTAGED_SHARE = 4
"""A quarter of the buffers keeps chunks that staging did not take: with the default two streams, each with the chunk it
reads and the next. They go at once when a reader needs the memory."""

_LOOK_AGAIN_S = 1.0
"""Who waits for a chunk that others have ordered looks so often whether it still comes."""

_BLOCKS_SHARE = 16
"""128 blocks of the default 128 MiB: the branch pages of a database of several hundred gigabytes."""

_PUSH_SHARE = 4
"""A quarter of the buffers may be on its way into the page cache. A push waits while the kernel fills the same page for
a READ, and that READ may wait for a buffer here: pushes that held all buffers once stopped a mount for good."""

Key = tuple[Version, int]


class Fetcher:
    """Chunks and lone extents from the source. Event loop only."""

    def __init__(
        self,
        source: Source,
        cache: Cache,
        buffers: Buffers,
        nursery: trio.Nursery,
        metrics: Metrics,
        page_cache: PageCache | None,
        memory: Memory,
        recorder: Recorder,
        peers: JobPeers | None,
        *,
        reads_a_file: int,
    ) -> None:
        """`reads_a_file`: chunks of one file that are read from the source at a time."""
        self._source = source
        self._cache = cache
        self._buffers = buffers
        self._nursery = nursery
        self._metrics = metrics
        self._page_cache = page_cache
        self._memory = memory
        self._recorder = recorder
        self._peers = peers
        self._flights: SingleFlight[Key, memoryview] = SingleFlight(nursery)
        self._staggered = Staggered(reads_a_file)
        self.batches = Batches()
        """Small files that are being read together."""
        self._landed: dict[Key, memoryview] = {}
        self._unstaged: ByteLRU[Key] = ByteLRU(buffers.total_bytes // UNSTAGED_SHARE)
        self._hinted: ByteLRU[Key] = ByteLRU(buffers.total_bytes // UNSTAGED_SHARE)
        """What is read soon and not worth staging: kept until then, whatever else comes."""
        self._awaited: dict[Key, trio.Event] = {}
        """Chunks that readers wait for though nobody has begun to fetch them: they come in their turn."""
        self._blocks = Blocks(buffers.total_bytes // _BLOCKS_SHARE)
        self._pushing_bytes = 0
        self._pushes_staged = False
        """A chunk is read from staging for the page cache: one at a time, since that is memory outside the buffers."""
        self._push_room = trio.lowlevel.ParkingLot()

    @property
    def in_flight(self) -> int:
        """Chunks being fetched now."""
        return len(self._flights) + len(self.batches)

    @property
    def pushes(self) -> bool:
        """True if bytes may be put into the kernel's page cache before they are asked for."""
        return self._page_cache is not None

    async def push(self, node: Node, offset: int, data: memoryview) -> bool:
        """Put `data` into the page cache of `node`; False if that was not possible. Never raises."""
        return self._page_cache is not None and await self._page_cache.push(node, offset, data)

    def push_nowait(self, node: Node, data: memoryview) -> bool:
        """Put a whole file into the page cache of `node`, of which the only open was not answered yet."""
        return self._page_cache is not None and self._page_cache.push_nowait(node, data)

    def held_nowait(self, version: Version, index: int) -> memoryview | None:
        """The bytes of a chunk that has arrived and is not readable from staging yet."""
        key = (version, index)
        held = self._landed.get(key)
        if held is None:
            held = self._unstaged.get(key)
        return held if held is not None else self._hinted.get(key)

    def block_nowait(self, version: Version, extent: Extent) -> memoryview | None:
        """The bytes of a tiny extent from a block that was read alone and is still in memory."""
        return self._blocks.get(version, extent)

    def let_go(self, version: Version, index: int) -> None:
        """A chunk that was held for a reader who comes soon: he has come."""
        self._hinted.drop((version, index))

    def is_coming(self, version: Version, index: int) -> bool:
        """True while the chunk is being fetched or waits for staging."""
        key = (version, index)
        return key in self._flights or key in self._landed

    async def wait_flight(self, version: Version, index: int) -> None:
        """Until the chunk is not being fetched, whatever became of it; at once if it is not."""
        if (version, index) in self._flights:
            with contextlib.suppress(HfsError):
                await self._flights.wait((version, index))

    async def chunk(self, node: Node, file: StagedFile, index: int, *, push: Push = Push.NOTHING) -> memoryview:
        """The bytes of chunk `index`, for a reader: from the fetch under way, or from one started now.

        Raises SourceError, VersionChanged.
        """
        key = (file.version, index)
        with self.reader_waits():
            data = await self._from_batch(node, file)
            if data is not None:
                return data
            return await self._flights.run(key, lambda: self._fetch(key, node, file, None, push=push))

    async def for_peer(self, node: Node, file: StagedFile, index: int) -> memoryview:
        """The bytes of chunk `index`, for another node: as `chunk`, but no other node is asked for them in turn."""
        key = (file.version, index)
        data = await self._from_batch(node, file)
        if data is not None:
            return data
        return await self._flights.run(
            key, lambda: self._fetch(key, node, file, None, push=Push.NEVER, from_peers=False)
        )

    async def _from_batch(self, node: Node, file: StagedFile) -> memoryview | None:
        """The bytes of a small file that comes with a batch; None if it does not, and then nobody is fetching it."""
        while (place := self._in_batch(node)) is not None:
            data = await self.batches.hurried(place, file.version)
            if data is not None:
                return data
            # It has left its batch; or that has ended without it, and it may be in the next one already.
        return None

    def _in_batch(self, node: Node) -> Place | None:
        return next((place for place in node.places if place in self.batches), None) if len(self.batches) else None

    async def _wait_batches(self, node: Node) -> None:
        while (place := self._in_batch(node)) is not None:
            await self.batches.wait(place)

    async def ahead(
        self,
        node: Node,
        file: StagedFile,
        index: int,
        *,
        push: Push = Push.NOTHING,
        stage: bool = True,
        unless_held: bool = False,
        began: Callable[[], None] | None = None,
    ) -> bool:
        """Fetch chunk `index` before anybody asks, unless it is present or coming. True if it was fetched.

        The buffer is taken before the flight exists: a reader that joins the flight never waits for memory that
        prefetch has to wait for. Without `stage` it is only held in memory for a while, as what finds no room in the
        cache is; with `unless_held` it is not fetched if it is held already. `began` is
        called when the source is asked. Raises as `chunk`.
        """
        key = (file.version, index)
        extent = chunk_extent(index, file.version.size, file.chunk_bytes)
        await self._wait_batches(node)
        if push not in (Push.NOTHING, Push.NEVER):
            await self.wait_may_push(extent.size)
        async with self._peers_room(node, index, extent.size, urgent=False):
            into = await self._buffers.take(_whole_pages(extent.size), urgent=False)
            await self._wait_batches(node)  # one may have begun meanwhile; it waits for no memory any more
            if index in file.present or self.is_coming(file.version, index):
                return False
            if unless_held and self.held_nowait(file.version, index) is not None:
                return False  # its reader has come while this waited for a buffer
            await self._flights.run(
                key, lambda: self._fetch(key, node, file, into, push=push, stage=stage, began=began)
            )
        return True

    def owned_remotely(self, path: bytes, index: int) -> bool:
        """Whether another node of the job owns a chunk, and is asked for it before the source."""
        if self._peers is None or self._source.file_systems.is_passing(path):
            return False
        return self._peers.owners.owned_remotely(path, index)

    def caches_locally(self, path: bytes, index: int) -> bool:
        """Whether a chunk is to be staged on this node, and not only on its owner."""
        if self._peers is None or self._source.file_systems.is_passing(path):
            return True
        return self._peers.owners.caches_locally(path, index)

    async def have_staged(self, node: Node, file: StagedFile, index: int) -> bool:
        """Have another node, its owner, stage a chunk. False if that could not be."""
        if self._peers is None:
            return False
        return await self._peers.have_staged(node.path, file.version, file.chunk_bytes, file.chunk(index))

    def _peers_room(self, node: Node, index: int, size: int, *, urgent: bool) -> AbstractAsyncContextManager[None]:
        """To be entered before memory is taken that a peer may fill."""
        if self._peers is None or not self.owned_remotely(node.path, index):
            return contextlib.nullcontext()
        return self._peers.room(size, urgent=urgent)

    def land_nowait(
        self, node: Node, file: StagedFile, data: memoryview, *, wanted: bool, push: bool, stage: bool, hold: bool
    ) -> bool:
        """All bytes of a file of one chunk are here, read by a batch. True if staging has them, or takes them.

        `wanted`: readers wait for them. `stage` False: they are only held in memory, for a reader who comes soon; so
        with `hold` is what staging does not take.
        """
        key = (file.version, 0)
        staged = stage and self._stage(key, file, data)
        held = hold or not stage
        if not staged and (wanted or held):
            # A copy: `data` keeps the buffer of the whole batch.
            (self._hinted if held else self._unstaged).keep(key, memoryview(bytes(data)))
        if (push or not stage) and self._page_cache is not None and node.lookups and data:
            self._push_nowait(node, Extent(0, len(data)), data, Push.WHOLE)
        return staged

    def push_staged_nowait(self, node: Node, file: StagedFile, extent: Extent) -> bool:
        """Put what is staged of one chunk into the page cache again, unless something is being put there. False: never,
        since the file does not fit into memory."""
        if not self._memory.has_room(file.size):
            return False
        if not self._pushes_staged:
            self._pushes_staged = True
            start_guarded(self._nursery, "push of staged bytes", self._push_staged, node, file, extent)
        return True

    async def _push_staged(self, node: Node, file: StagedFile, extent: Extent) -> None:
        try:
            found = self._cache.reader.read_nowait(file, extent) if extent.size <= SMALL_BYTES else None
            data = memoryview(await self._cache.reader.read(file, extent) if found is None else found)
        except StagingError:
            return  # counted there
        finally:
            self._pushes_staged = False
        if node.lookups:
            self._push_nowait(node, extent, data, Push.WHOLE)

    async def wait_may_push(self, size: int) -> None:
        """Until the kernel has taken enough: what comes faster is not pushed, and its readers would come to us."""
        while self._page_cache is not None and self._pushing_bytes and not self._may_push(size):
            await self._push_room.park()

    async def alone(self, node: Node, file: StagedFile, extent: Extent, *, peers_asked: bool = False) -> memoryview:
        """The bytes of a page-aligned `extent`, for one reader, not staged. Raises SourceError, VersionChanged.

        `peers_asked`: its owner has just said that it has not got them.
        """
        data = None if peers_asked else await self.part(node, file, extent)
        if data is not None:
            return data
        with self.reader_waits():
            into = await self.take_urgent(extent.size)
            await self._read(node, file.version, extent, into, urgent=True)
        return self._kept_block(file, extent, into)

    async def part(self, node: Node, file: StagedFile, extent: Extent) -> memoryview | None:
        """As `alone`, from its owner if that has it staged; else None."""
        index = extent.start // file.chunk_bytes
        if not self.owned_remotely(node.path, index) or extent.end > file.chunk(index).end:
            return None
        async with self._peers_room(node, index, extent.size, urgent=True):
            into = await self.take_urgent(extent.size)
            came = await self._from_peers(node, file, index, extent, into, here_only=True)
        return self._kept_block(file, extent, into) if came is PeerAnswer.HIT else None

    def _kept_block(self, file: StagedFile, extent: Extent, into: memoryview) -> memoryview:
        data = into[: extent.size].toreadonly()
        whole = extent.end % BLOCK_BYTES == 0 or extent.end == file.size
        if extent.start % BLOCK_BYTES == 0 and whole and extent.size <= 2 * BLOCK_BYTES:
            self._blocks.keep(file.version, extent, data)
        return data

    async def wait_turn(self, version: Version, index: int, comes: Callable[[], bool]) -> None:
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
        try:
            yield
        finally:
            self._metrics.add("source_wait_ns", int((trio.current_time() - began_s) * 1e9))

    async def _fetch(
        self,
        key: Key,
        node: Node,
        file: StagedFile,
        buffer: memoryview | None,
        *,
        push: Push,
        stage: bool = True,
        from_peers: bool = True,
        began: Callable[[], None] | None = None,
    ) -> memoryview:
        """`buffer`: taken ahead by prefetch; None for a reader's fetch, which is urgent."""
        version, index = key
        extent = chunk_extent(index, version.size, file.chunk_bytes)
        try:
            into = await self._filled(key, node, file, extent, buffer, from_peers=from_peers, began=began)
        finally:
            if (awaited := self._awaited.pop(key, None)) is not None:
                awaited.set()  # they look again when this has been kept, or has failed
        data = into[: extent.size].toreadonly()
        # No checkpoint from here to the return: the chunk is held before its flight ends, so nobody fetches it again.
        if not stage or not self.caches_locally(node.path, index) or not self._stage(key, file, data):
            wanted = buffer is not None or version.size > SMALL_BYTES
            if wanted and push is not Push.NEVER:  # else who waits for it pushes it itself
                push = Push.WHOLE  # nobody keeps it but the page cache
            (self._unstaged if stage else self._hinted).keep(key, data)
        if push not in (Push.NOTHING, Push.NEVER) and self._page_cache is not None and node.lookups:
            self._push_nowait(node, extent, data, push)
        return data

    async def _filled(
        self,
        key: Key,
        node: Node,
        file: StagedFile,
        extent: Extent,
        buffer: memoryview | None,
        *,
        from_peers: bool,
        began: Callable[[], None] | None,
    ) -> memoryview:
        """A buffer with the bytes of a chunk: from its owner, or from the source."""
        version, index = key
        urgent = buffer is None
        into, came = buffer, PeerAnswer.MISS
        if from_peers and self.owned_remotely(node.path, index):
            if into is None:
                async with self._peers_room(node, index, extent.size, urgent=True):
                    into = await self.take_urgent(extent.size)
                    came = await self._from_peers(node, file, index, extent, into)
            else:
                if began is not None:
                    began()
                came = await self._from_peers(node, file, index, extent, into)
            if came is PeerAnswer.HIT:
                return into
        if into is None or came is PeerAnswer.BUFFER_IN_USE:
            del into, buffer
            into = await self.take_urgent(extent.size)
        if began is not None:
            began()
        async with self._staggered.turn(version, index, urgent=urgent), self._slot_of_job(node, extent, index, urgent):
            await self._read(node, version, extent, into, urgent=urgent)
        return into

    async def _read(self, node: Node, version: Version, extent: Extent, into: memoryview, *, urgent: bool) -> None:
        await by_any_name(
            node, lambda directory, name: self._source.files.read(directory, name, version, extent, into, urgent=urgent)
        )

    def _slot_of_job(self, node: Node, extent: Extent, index: int, urgent: bool) -> AbstractAsyncContextManager[None]:
        if self._peers is None or extent.size >= node.attributes.size:
            return contextlib.nullcontext()  # one read of a small file is in order
        return self._peers.read_slot(node.path, index, urgent=urgent)

    async def _from_peers(
        self, node: Node, file: StagedFile, index: int, extent: Extent, into: memoryview, *, here_only: bool = False
    ) -> PeerAnswer:
        if self._peers is None or not self.owned_remotely(node.path, index):
            return PeerAnswer.MISS
        return await self._peers.fetch(node.path, file.version, file.chunk_bytes, extent, into, here_only=here_only)

    def _stage(self, key: Key, file: StagedFile, data: memoryview) -> bool:
        """Put a chunk to staging, and answer it from memory until it can be read from there. False: not taken."""
        self._landed[key] = data
        taken = self._cache.writer.put_nowait(file, key[1], data, lambda: self._landed.pop(key, None))
        if not taken or key[1] in file.present:  # staged meanwhile: nothing was queued
            self._landed.pop(key)
        return taken

    async def take_urgent(self, size: int) -> memoryview:
        """A buffer for a reader. What is kept only in case somebody wants it goes first."""
        if not self._buffers.fits_nowait(_whole_pages(size)):
            self._unstaged.clear()
            if not self._buffers.fits_nowait(_whole_pages(size)):
                self._blocks.clear()
            if not self._buffers.fits_nowait(_whole_pages(size)):
                self._hinted.clear()
        with trio.move_on_after(self._source.threads.time_limit_s):
            return await self._buffers.take(_whole_pages(size), urgent=True)
        raise SourceTimeout("no memory: too many reads hang in the source")

    def _push_nowait(self, node: Node, extent: Extent, data: memoryview, push: Push) -> None:
        """Push a chunk, unless as much as may be is being pushed: then its readers ask for it."""
        hides = self._recorder.active and node.attributes.size > extent.size
        if not hides and self._may_push(extent.size) and self._memory.has_room(node.attributes.size):
            self._pushing_bytes += extent.size
            start_guarded(self._nursery, "push", self._push_chunk, node, extent, data, push)

    async def _push_chunk(self, node: Node, extent: Extent, data: memoryview, push: Push) -> None:
        try:
            if push is Push.AHEAD:
                for start in range(_SHOWN_BYTES, len(data), PUSH_STEP_BYTES):
                    end = start - _SHOWN_BYTES + PUSH_STEP_BYTES
                    await self.push(node, extent.start + start, data[start:end])
            elif await self.push(node, extent.start, data) and extent.size == node.attributes.size:
                node.pushed = True
        finally:
            self._pushing_bytes -= extent.size
            self._push_room.unpark_all()

    def _may_push(self, size: int) -> bool:
        return (self._pushing_bytes + size) * _PUSH_SHARE <= self._buffers.total_bytes


def _whole_pages(size: int) -> int:
    return -(-size // _PAGE_BYTES) * _PAGE_BYTES
