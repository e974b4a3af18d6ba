"""The read path: what happens between a READ and its reply.

A read is cut to the end of the file, shown to readahead, epoch plans and recorder, and split at chunk boundaries;
the resolver finds the bytes of each piece. `read_nowait` answers where all of it is in memory, `read` in any case.
Opens no path, never decides where bytes come from.
"""

from __future__ import annotations

from collections import OrderedDict

import trio

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.core.attributes import Version
from hfs.mountd.core.errors import VersionChanged, ungrouped
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.fetch import PUSH_STEP_BYTES, History, Owners, PagePusher, PrefetchQueue, Resolved, Resolver
from hfs.mountd.files.delegations import Delegations
from hfs.mountd.files.handles import FileHandle
from hfs.mountd.files.readers import Recorder
from hfs.mountd.hints import FollowedPlans
from hfs.mountd.namespace import expire, pages_lost
from hfs.policies.geometry import Extent, Piece, chunk_range, clamp, split
from hfs.policies.prefetch.faults import Again, Faults, neighbours
from hfs.policies.prefetch.miss_policy import TINY_BYTES
from hfs.policies.prefetch.readahead import Advice, Kind, Limits, advise
from hfs.policies.schedule.successors import Trail
from hfs.policies.traffic import WHOLE_BYTES

_MAX_FILES = 64
"""Files whose page faults are counted: at most half a megabyte each."""


_NEXT_ELSEWHERE = 2
"""Chunks of a window that other nodes own: they come in milliseconds, and only memory holds them until then."""

_WINDOW_BUFFER_SHARE = 4
"""A reader's window takes at most a quarter of the buffers, so that four sequential readers do not starve each
other."""

_MOST_WINDOW_BYTES = 64 << 20


class ReadaheadWindows:
    """What is fetched ahead of a reader because of what it has read.

    Joins the policy of sequential and strided readers and the history of a file (readers who repeat themselves) to the
    prefetch queue. Where an epoch plan says what comes next, neither says anything. Never fetches.
    """

    def __init__(
        self,
        resolver: Resolver,
        owners: Owners,
        cache: Cache,
        history: History,
        plans: FollowedPlans,
        queue: PrefetchQueue,
        *,
        buffer_bytes: int,
        pushes: bool,
    ) -> None:
        """`pushes`: the kernel's page cache may answer reads that are not seen then."""
        self._resolver = resolver
        self._owners = owners
        self._cache = cache
        self._history = history
        self._plans = plans
        self._queue = queue
        self._window_bytes = min(_MOST_WINDOW_BYTES, buffer_bytes // _WINDOW_BUFFER_SHARE)
        self._unseen_bytes = PUSH_STEP_BYTES if pushes else 0
        self._limits: dict[int, Limits] = {}

    def saw(self, handle: FileHandle, extent: Extent) -> Advice:
        """A READ of an incomplete file; what comes next is queued."""
        file = handle.file
        limits = self._limits.get(file.chunk_bytes)
        if limits is None:
            window_bytes = max(file.chunk_bytes, self._window_bytes)
            limits = self._limits[file.chunk_bytes] = Limits(file.chunk_bytes, window_bytes, self._unseen_bytes)
        advice = advise(handle.pattern, extent, file.size, limits)
        if self._plans.is_planned(file.version, extent.start // file.chunk_bytes):
            return advice  # the order says what comes next
        for window in advice.windows:
            indexes = [i for i in chunk_range(window, file.chunk_bytes) if i not in file.present]
            if not self._cache.admission.admits_nowait(file, file.chunk_bytes):
                indexes = indexes[:1]  # what is not staged must not be far ahead: nobody keeps it
            elsewhere = [i for i in indexes if not self._owners.caches_locally(handle.node.path, i)]
            if len(elsewhere) > _NEXT_ELSEWHERE:
                indexes = [i for i in indexes if i not in elsewhere[_NEXT_ELSEWHERE:]]
            if indexes:
                self._queue.window_nowait(handle.node, file, indexes)
        return advice

    def saw_piece(self, handle: FileHandle, extent: Extent, advice: Advice, *, here: bool | None = None) -> None:
        """A READ in one chunk of an incomplete file, of which `advice` says nothing more: its history may.

        `here`: it is answered without the source; None: find out.
        """
        file: StagedFile = handle.file
        index = extent.start // file.chunk_bytes
        if advice.kind in (Kind.SEQUENTIAL, Kind.STRIDED) or file.size <= file.chunk_bytes:
            return
        if self._plans.is_planned(file.version, index) or self._queue.is_filling(handle.node):
            return
        if handle.trail is None:
            handle.trail = Trail()
        ahead = self._history.read(
            file,
            handle.trail,
            extent,
            here=self._resolver.is_here(file, index) if here is None else here,
            is_here=lambda i: self._resolver.is_here(file, i),
        )
        if ahead:
            self._queue.window_nowait(handle.node, file, ahead)


class PageFaults:
    """Small reads of staged chunks, whose pages the kernel has let go. What was lost is pushed again.

    One fault for each page would make a mapping of a staged file many times slower than the file itself; the policy
    (policies/prefetch/faults.py) says when it is the neighbours and when the whole chunk. Never reads for a reader.
    """

    def __init__(self, pusher: PagePusher, history: History) -> None:
        self._pusher = pusher
        self._history = history
        self._faults: OrderedDict[Version, Faults] = OrderedDict()

    def put_back_nowait(self, handle: FileHandle, extent: Extent) -> bool:
        """A READ has come. True: it was a fault, what was lost comes back, and the rest of its chunk is there."""
        file, index = handle.file, extent.start // handle.file.chunk_bytes
        if extent.size >= TINY_BYTES or index not in file.present or not self._pusher.on:
            return False
        if not file.complete and self._history.is_ahead(file, index):
            return False  # what was guessed must be seen to be used
        faults = self._faults.get(file.version)
        if faults is None:
            faults = self._faults[file.version] = Faults()
            if len(self._faults) > _MAX_FILES:
                self._faults.popitem(last=False)
        again = faults.push_again(index)
        if again is Again.NOTHING:
            return False
        chunk = file.chunk(index)
        lost = chunk if again is Again.CHUNK else neighbours(extent, chunk)
        return self._pusher.start_staged_nowait(handle.node, file, lost)


class ReadPath:
    """Event loop only."""

    def __init__(
        self,
        resolver: Resolver,
        readahead: ReadaheadWindows,
        faults: PageFaults,
        plans: FollowedPlans,
        recorder: Recorder,
        metrics: Metrics,
        delegations: Delegations,
        *,
        chunk_bytes: int,
    ) -> None:
        self._resolver = resolver
        self._readahead = readahead
        self._faults = faults
        self._plans = plans
        self._recorder = recorder
        self._metrics = metrics
        self._delegations = delegations
        self._chunk_bytes = chunk_bytes

    def read_nowait(self, handle: FileHandle, offset: int, size: int) -> bytes | bytearray | memoryview | None:
        """As `read`, if all of it is in memory; good until the next call. None, and nothing has changed, if not."""
        file = handle.file
        extent = clamp(offset, size, file.size)
        if not extent.size:
            return b"" if file.size else None
        found = self._resolver.peek(file, extent)
        if found is None:
            return None
        self._noticed(handle, extent)
        if not file.complete:
            self._readahead.saw_piece(handle, extent, self._readahead.saw(handle, extent), here=True)
        else:
            self._delegations.offer_reads(handle.node, file)
        return self._counted(handle, found)

    async def read(self, handle: FileHandle, offset: int, size: int) -> bytes | bytearray | memoryview:
        """The bytes of `[offset, offset + size)` that exist, all of the handle's version.

        Raises SourceError, and VersionChanged for bytes that only a version the source no longer has could give.
        """
        file = handle.file
        if not file.size:  # the kernel asks for bytes of it where it was told to ask always
            return await self._resolver.unsized.read(handle.node, offset, size)
        extent = clamp(offset, size, file.size)
        if not extent.size:
            return b""
        advice = None if file.complete else self._readahead.saw(handle, extent)
        self._noticed(handle, extent)
        try:
            pieces = split(extent, file.chunk_bytes)
            if len(pieces) == 1:
                return await self._piece(handle, pieces[0], advice)
            return await self._joined(handle, extent, pieces, advice)
        except VersionChanged:
            expire(handle.node)
            raise

    async def _joined(
        self, handle: FileHandle, extent: Extent, pieces: list[Piece], advice: Advice | None
    ) -> bytearray:
        """A read across chunk boundaries: all pieces at once, then together."""
        joined = bytearray(extent.size)

        async def put(piece: Piece) -> None:
            joined[piece.start - extent.start : piece.end - extent.start] = await self._piece(handle, piece, advice)

        with ungrouped():
            async with trio.open_nursery() as nursery:
                for piece in pieces:
                    nursery.start_soon(put, piece)
        return joined

    async def _piece(self, handle: FileHandle, piece: Piece, advice: Advice | None) -> bytes | bytearray | memoryview:
        extent = Extent(piece.start, piece.end)
        if advice is None:
            return self._counted(handle, await self._resolver.get(handle.node, handle.file, extent))
        self._readahead.saw_piece(handle, extent, advice)
        return self._counted(handle, await self._resolver.get(handle.node, handle.file, extent, advice.kind))

    def _noticed(self, handle: FileHandle, extent: Extent) -> None:
        """A read has come to us."""
        pages_lost(handle.node)  # to be pushed again at the next open
        if handle.file.size > self._chunk_bytes:  # small ones are noticed when they are opened
            self._recorder.touched(handle.node, extent.start, extent.size, handle.opener)
            if not self._faults.put_back_nowait(handle, extent):
                self._plans.asked(handle.file.version, extent.start // handle.file.chunk_bytes)

    def _counted(self, handle: FileHandle, found: Resolved) -> bytes | bytearray | memoryview:
        self._metrics.add("reads_" + found.tier)
        self._metrics.add("bytes_" + found.tier, len(found.data))
        if handle.file.size > WHOLE_BYTES:
            self._metrics.add("bytes_large", len(found.data))
        return found.data
