"""The read path: what happens between a READ and its reply, and what is fetched because of it.

One read: cut to the end of the file, split at chunk boundaries; each piece from the first that has it:
  staged   on NVMe: without waiting if its pages are in memory, else in a thread
  held     arrived from the source, not written yet
  coming   a fetch under way: join it
  source   alone (a small extent) or its whole chunk, as `policies.prefetch.miss_policy` decides
Staging can only make it faster: its faults are counted and the next tier is asked. Errors of the source reach the
reader.

Also here, because it is the same decision: the fetches that `prefetch` orders. Files are opened by `opening`. Called by
`fuse` and `commands`. Event loop only; opens no path.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence

import trio

from mountd.base.errors import HfsError, StagingError, VersionChanged
from mountd.base.version import Version
from mountd.cache import Cache, StagedFile
from mountd.core.metrics import Metrics
from mountd.fetch import (
    PUSH_STEP_BYTES,
    Become,
    Fetcher,
    PrefetchQueue,
    Push,
    Recorder,
    SiblingWatch,
    Small,
    SmallFiles,
)
from mountd.files.handles import FileHandle
from mountd.hints import HintFollower, History
from mountd.namespace import Namespace, Node, expire
from mountd.source import Source
from policies.geometry import Extent, Piece, chunk_range, clamp, split
from policies.iomode import SMALL_BYTES
from policies.prefetch.faults import Again, Faults, neighbours
from policies.prefetch.miss_policy import PATIENCE_S, TINY_BYTES, Decision, Fetch, Follow, MissPolicy, alone_extent
from policies.prefetch.readahead import Advice, Kind, Limits, advise
from policies.schedule.successors import Trail

__all__ = ["ReadPath"]

_WARM_STREAMS = 4
"""Chunks of one file fetched at a time by a warm: shared file systems limit a stream to a fraction of the whole."""

_MAX_DENSITIES = 4096
"""Files whose random touches are remembered: a few hundred bytes each."""

_JOIN = Decision(Fetch.CHUNK, Follow.NOTHING)
"""A chunk that was guessed and is on its way: much of it will be read now."""

_MAX_FAULTS = 64
"""Files whose page faults are counted: at most half a megabyte each."""

_PUSH_TOUCHES = 8
"""A file with this many lone reads is read at random: its chunks go into the page cache when they arrive, and the small
reads that follow never reach us. (A sequential reader has one or two: its first reads, before it was known for one.)"""

_NEXT_ELSEWHERE = 2
"""Chunks of a window that other nodes keep: they come in milliseconds, and only memory holds them until then."""

_WINDOW_BUFFER_SHARE = 4
"""A reader's window takes at most a quarter of the buffers, so that four sequential readers do not starve each
other."""


class ReadPath:
    """Reads and ordered fetches."""

    def __init__(
        self,
        namespace: Namespace,
        cache: Cache,
        fetcher: Fetcher,
        source: Source,
        metrics: Metrics,
        siblings: SiblingWatch,
        hints: HintFollower,
        recorder: Recorder,
        small_files: SmallFiles,
        prefetch: PrefetchQueue,
        *,
        chunk_bytes: int,
        buffer_bytes: int,
    ) -> None:
        self._namespace = namespace
        self._cache = cache
        self._fetcher = fetcher
        self._source = source
        self._metrics = metrics
        self._siblings = siblings
        self._hints = hints
        self._recorder = recorder
        self._small_files = small_files
        self._prefetch = prefetch
        self._chunk_bytes = chunk_bytes
        self._window_bytes = max(chunk_bytes, min(64 << 20, buffer_bytes // _WINDOW_BUFFER_SHARE))
        # For answers that are given before anything else happens.
        self._buffer = memoryview(bytearray(SMALL_BYTES))
        self._limits: dict[int, Limits] = {}
        self._densities: OrderedDict[Version, MissPolicy] = OrderedDict()
        self._history = History(metrics)
        self._faults: OrderedDict[Version, Faults] = OrderedDict()
        self._told: OrderedDict[Version, set[int]] = OrderedDict()
        """Chunks that their owners, other nodes, were told to stage."""

    # -- read ---------------------------------------------------------------------------------------------------------

    def read_nowait(self, handle: FileHandle, offset: int, size: int) -> bytes | memoryview | None:
        """As `read`, if all of it is in memory; good until the next call. None, and nothing has changed, if not."""
        file = handle.file
        extent = clamp(offset, size, file.size)
        if not extent.size:
            return b""
        index = extent.start // file.chunk_bytes
        if extent.size > len(self._buffer):
            return None
        if (extent.end - 1) // file.chunk_bytes != index and not file.complete:
            return None
        if index in file.present:
            data, tier = self._buffer[: extent.size], "staged"
            if not self._cache.reader.read_into_nowait(file, extent, data):
                return None
        else:
            held = self._fetcher.held_nowait(file.version, index)
            if held is not None:
                begin = index * file.chunk_bytes
                data, tier = held[extent.start - begin : extent.end - begin], "flight"
            else:
                block = self._fetcher.block_nowait(file.version, extent)
                if block is None:
                    return None
                data, tier = block, "flight"
        self._noticed(handle, extent)
        if not file.complete:
            self._learn(handle, extent, self._advise(handle, extent), here=True)
        self._count(tier, extent)
        return data

    async def read(self, handle: FileHandle, offset: int, size: int) -> bytes | bytearray | memoryview:
        """The bytes of `[offset, offset + size)` that exist, all of the handle's version.

        Raises SourceError, and VersionChanged for bytes that only a version the source no longer has could give.
        """
        file = handle.file
        extent = clamp(offset, size, file.size)
        if not extent.size:
            return b""
        advice = None if file.complete else self._advise(handle, extent)
        self._noticed(handle, extent)
        try:
            pieces = split(extent, file.chunk_bytes)
            if len(pieces) == 1:
                return await self._piece(handle, pieces[0], advice)
            return await self._joined(handle, extent, pieces, advice)
        except VersionChanged:
            expire(handle.node)
            raise

    def _noticed(self, handle: FileHandle, extent: Extent) -> None:
        """A read has come to us."""
        handle.node.pushed = False  # the kernel has let its pages go: push them again at the next open
        if handle.file.size > self._chunk_bytes:  # small ones are noticed when they are opened
            index = extent.start // handle.file.chunk_bytes
            self._recorder.touched(handle.node, extent.start, extent.size)
            is_fault = extent.size < TINY_BYTES and index in handle.file.present and self._fetcher.pushes
            # What was guessed must be seen to be used.
            is_fault = is_fault and (handle.file.complete or not self._history.is_ahead(handle.file, index))
            if not is_fault or not self._put_back(handle, index, extent):
                self._hints.asked(handle.file.version, index)

    def _put_back(self, handle: FileHandle, index: int, fault: Extent) -> bool:
        """A page of a staged chunk is not in the page cache. True: what was lost comes back, and the rest is there."""
        faults = self._faults.get(handle.file.version)
        if faults is None:
            faults = self._faults[handle.file.version] = Faults()
            if len(self._faults) > _MAX_FAULTS:
                self._faults.popitem(last=False)
        again = faults.push_again(index)
        if again is Again.NOTHING:
            return False
        chunk = handle.file.chunk(index)
        lost = chunk if again is Again.CHUNK else neighbours(fault, chunk)
        return self._fetcher.push_staged_nowait(handle.node, handle.file, lost)

    async def _joined(
        self, handle: FileHandle, extent: Extent, pieces: list[Piece], advice: Advice | None
    ) -> bytearray:
        """A read across chunk boundaries: all pieces at once, then together."""
        joined = bytearray(extent.size)

        async def put(piece: Piece) -> None:
            joined[piece.start - extent.start : piece.end - extent.start] = await self._piece(handle, piece, advice)

        try:
            async with trio.open_nursery() as nursery:
                for piece in pieces:
                    nursery.start_soon(put, piece)
        except* HfsError as group:
            raise _first(group) from None
        return joined

    async def _piece(
        self, handle: FileHandle, piece: Piece, advice: Advice | None, *, patient: bool = True
    ) -> bytes | bytearray | memoryview:
        """`patient`: it may wait until the fill gets to its chunk."""
        file, index = handle.file, piece.index
        extent = Extent(piece.start, piece.end)
        if advice is not None and patient:
            self._learn(handle, extent, advice, here=self._is_here(file, index))
        if index in file.present:
            data: bytearray | None = self._cache.reader.read_nowait(file, extent)
            if data is None:
                try:
                    data = await self._cache.reader.read(file, extent)
                except StagingError:
                    data = None  # counted there
            if data is not None:
                self._count("staged", extent)
                return data
        begin = index * file.chunk_bytes
        held = self._fetcher.held_nowait(file.version, index)
        if held is not None:
            self._count("flight", extent)
            return held[piece.start - begin : piece.end - begin]
        block = self._fetcher.block_nowait(file.version, extent)
        if block is not None:
            self._count("flight", extent)
            return block
        node = handle.node
        coming = self._fetcher.is_coming(file.version, index)
        asked = not coming and not self._fetcher.caches_locally(node.path, index) and _is_part(file, extent, advice)
        if asked:
            part = await self._part(node, file, extent)
            if part is not None:
                return part
        if not coming:
            self._hints.missed(file.version, index)
        if coming and self._history.is_ahead(file, index):
            decision = _JOIN
        else:
            decision = self._decide(handle, extent, advice, coming=coming, patient=patient)
        if decision.fetch is Fetch.ALONE:
            # Even if its chunk is on the way: that may be a fill, whose chunk takes a hundred times as long.
            return await self._alone(node, file, index, extent, decision, peers_asked=asked)
        if decision.fetch is Fetch.TURN:
            await self._fetcher.wait_turn(file.version, index, lambda: self._hints.comes(file.version, index))
            return await self._piece(handle, piece, advice)
        if decision.fetch is Fetch.WAIT_FOR_FILL:
            limit_s = trio.current_time() + PATIENCE_S
            await self._fetcher.wait_turn(
                file.version,
                index,
                lambda: trio.current_time() < limit_s and self._prefetch.filled_in_s(node, index) < math.inf,
            )
            return await self._piece(handle, piece, advice, patient=False)
        tier = "flight" if coming else "source"
        random = advice is not None and advice.kind is not Kind.SEQUENTIAL and file.size > self._chunk_bytes
        self._follow(node, file, index, decision)
        chunk = await self._fetcher.chunk(node, file, index, push=Push.WHOLE if random else Push.NOTHING)
        self._prefetch.demand_served_nowait()
        if not coming:
            self._history.paid(file, len(chunk))
        self._count(tier, extent)
        return chunk[piece.start - begin : piece.end - begin]

    async def _part(self, node: Node, file: StagedFile, extent: Extent) -> memoryview | None:
        """A part of a chunk that another node keeps; None: not to be had there."""
        wanted = alone_extent(extent, file.size)
        data = await self._fetcher.part(node, file, wanted)
        if data is None:
            return None
        self._count("alone", extent)
        return data[extent.start - wanted.start : extent.end - wanted.start]

    async def _alone(
        self, node: Node, file: StagedFile, index: int, extent: Extent, decision: Decision, *, peers_asked: bool
    ) -> memoryview:
        wanted = alone_extent(extent, file.size)
        data = await self._fetcher.alone(node, file, wanted, peers_asked=peers_asked)
        self._history.paid(file, wanted.size)
        self._count("alone", extent)
        self._follow(node, file, index, decision)  # behind the read: its reader must not share the bandwidth
        return data[extent.start - wanted.start : extent.end - wanted.start]

    def _decide(
        self, handle: FileHandle, extent: Extent, advice: Advice | None, *, coming: bool, patient: bool
    ) -> Decision:
        file = handle.file
        index = extent.start // file.chunk_bytes
        # By version, not by handle: many data sets open their one large file anew for each sample.
        density = self._densities.get(file.version)
        if density is None:
            density = self._densities[file.version] = MissPolicy(file.size, file.chunk_bytes)
            if len(self._densities) > _MAX_DENSITIES:
                self._densities.popitem(last=False)
        return density.missed(
            extent,
            sequential=advice is not None and advice.kind is Kind.SEQUENTIAL,
            missing_chunks=file.present.count - len(file.present),
            can_stage=self._cache.admission.admits_nowait(file, file.chunk_bytes),
            turn=self._hints.turn(file.version, index),
            coming=coming,
            filled_in_s=self._prefetch.filled_in_s(handle.node, index) if patient else math.inf,
        )

    def _follow(self, node: Node, file: StagedFile, index: int, decision: Decision) -> None:
        if decision.follow is Follow.NOTHING:
            return
        if decision.follow is Follow.CHUNK:
            self._prefetch.window_nowait(node, file, [index])
        else:
            self._prefetch.fill_nowait(node, file)

    def _advise(self, handle: FileHandle, extent: Extent) -> Advice:
        file = handle.file
        limits = self._limits.get(file.chunk_bytes)
        if limits is None:
            unseen_bytes = PUSH_STEP_BYTES if self._fetcher.pushes else 0
            limits = Limits(file.chunk_bytes, max(file.chunk_bytes, self._window_bytes), unseen_bytes)
            self._limits[file.chunk_bytes] = limits
        advice = advise(handle.pattern, extent, file.size, limits)
        if self._hints.is_planned(file.version, extent.start // file.chunk_bytes):
            return advice  # the order says what comes next
        for window in advice.windows:
            indexes = [i for i in chunk_range(window, file.chunk_bytes) if i not in file.present]
            if not self._cache.admission.admits_nowait(file, file.chunk_bytes):
                indexes = indexes[:1]  # what is not staged must not be far ahead: nobody keeps it
            elsewhere = [i for i in indexes if not self._fetcher.caches_locally(handle.node.path, i)]
            if len(elsewhere) > _NEXT_ELSEWHERE:
                indexes = [i for i in indexes if i not in elsewhere[_NEXT_ELSEWHERE:]]
            if indexes:
                self._prefetch.window_nowait(handle.node, file, indexes)
        return advice

    def _learn(self, handle: FileHandle, extent: Extent, advice: Advice, *, here: bool) -> None:
        """A READ in one chunk of an incomplete file, of which `advice` says nothing more: its history may."""
        file = handle.file
        index = extent.start // file.chunk_bytes
        if advice.kind in (Kind.SEQUENTIAL, Kind.STRIDED) or file.size <= file.chunk_bytes:
            return
        if self._hints.is_planned(file.version, index) or self._prefetch.is_filling(handle.node):
            return
        if handle.trail is None:
            handle.trail = Trail()
        ahead = self._history.read(file, handle.trail, extent, here=here, is_here=lambda i: self._is_here(file, i))
        if ahead:
            self._prefetch.window_nowait(handle.node, file, ahead)

    def _is_here(self, file: StagedFile, index: int) -> bool:
        """Chunk `index` is staged, in memory or on its way: a READ of it need not ask the source."""
        version = file.version
        return (
            index in file.present
            or self._fetcher.is_coming(version, index)
            or self._fetcher.held_nowait(version, index) is not None
        )

    def _count(self, tier: str, extent: Extent) -> None:
        self._metrics.add("reads_" + tier)
        self._metrics.add("bytes_" + tier, extent.size)

    # -- fetched ahead ------------------------------------------------------------------------------------------------

    async def prefetch_chunk(
        self, node: Node, file: StagedFile, index: int, began: Callable[[], None], *, soon: bool
    ) -> None:
        """For `prefetch`: one chunk of an open or warmed file. `began`: see `Fetches`."""
        if index in file.present or self._fetcher.is_coming(file.version, index):
            return
        if self._fetcher.held_nowait(file.version, index) is not None:
            return
        if not soon and not self._fetcher.caches_locally(node.path, index):
            began()
            await self._told_owner(node, file, index)
            return
        density = self._densities.get(file.version)
        random = density is not None and density.touches >= _PUSH_TOUCHES
        push = Push.WHOLE if random else Push.AHEAD
        if self._history.is_ahead(file, index):
            push = Push.NEVER
        if await self._fetcher.ahead(node, file, index, push=push, unless_held=True, began=began):
            self._metrics.add("prefetched_chunks")

    async def _told_owner(self, node: Node, file: StagedFile, index: int) -> None:
        """A chunk that another node owns is filled there; each is told once."""
        told = self._told.setdefault(file.version, set())
        if len(self._told) > _MAX_FAULTS:
            self._told.popitem(last=False)
        if index not in told and await self._fetcher.have_staged(node, file, index):
            told.add(index)

    async def prefetch_siblings(self, places: Sequence[tuple[Node, bytes]]) -> int:
        """For `prefetch`: files whose siblings are being read; how many were fetched. None is asked for before."""
        left, fetched = dict.fromkeys(places), 0
        try:
            outcomes = await self._small_files.stage(places, push=True, wanted=self._siblings.is_wanted)
            for place, outcome in zip(places, outcomes, strict=True):
                if not isinstance(outcome, Small) or outcome.become is Become.HERE:
                    continue
                size = outcome.node.attributes.size
                if outcome.become is Become.FETCHED:
                    self._siblings.fetched(*place, size)
                elif not self._siblings.admit(*place, size) or not await self._one_chunk(outcome.node):
                    continue
                fetched += 1
                del left[place]
        finally:
            for place in left:
                self._siblings.drop(*place)
        return fetched

    async def _one_chunk(self, node: Node) -> bool:
        """A sibling that is too large to be fetched with others."""
        if node.version is None:
            return False
        file = await self._cache.files.get(node.version, node.path)
        return await self._fetcher.ahead(node, file, 0, push=Push.NOTHING)

    def next_siblings(self, limit: int) -> list[tuple[Node, bytes]]:
        """For `prefetch`: what the sibling policy would fetch now."""
        return self._siblings.next(limit)

    def demand_waits(self) -> bool:
        """For `prefetch`."""
        return self._source.threads.demand_waits

    def worth_filling(self, file: StagedFile) -> bool:
        """For `prefetch`."""
        return self._cache.admission.admits_nowait(file, file.chunk_bytes)

    async def stage_whole(self, node: Node, file: StagedFile) -> None:
        """For `warm`: every missing chunk of a file, some at a time.

        Raises as `read`, and StagingError when a chunk found no room or no place in the queue of the cache disk.
        """
        missing = file.present.missing()

        async def stream() -> None:
            for index in missing:
                if not self._fetcher.caches_locally(node.path, index):
                    if not await self._fetcher.have_staged(node, file, index):
                        raise StagingError("another node, which owns it, could not stage all of it")
                    continue
                if not self._cache.admission.admits_nowait(file, file.chunk(index).size):
                    raise self._cache.admission.refusal(file.chunk(index).size)
                # Who has it open reads it through the page cache, and soon.
                await self._fetcher.ahead(node, file, index, push=Push.WHOLE if node.opens else Push.NOTHING)
                if index not in file.present and not self._fetcher.is_coming(file.version, index):
                    raise self._cache.admission.refusal(file.chunk(index).size)

        try:
            async with trio.open_nursery() as nursery:
                for _ in range(min(_WARM_STREAMS, file.present.count)):
                    nursery.start_soon(stream)
        except* HfsError as group:
            raise _first(group) from None


def _is_part(file: StagedFile, extent: Extent, advice: Advice | None) -> bool:
    """Whether a read is a small part of a large file, as read at random: worth its own question to another node."""
    sequential = advice is not None and advice.kind is Kind.SEQUENTIAL
    return not sequential and file.size > SMALL_BYTES and 2 * extent.size < file.chunk_bytes


def _first(group: BaseExceptionGroup[HfsError]) -> HfsError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
