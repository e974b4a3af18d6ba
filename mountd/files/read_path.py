"""The read path: what happens between a READ and its reply.

A read is cut to the end of the file, shown to readahead, epoch plans and recorder, and split at chunk boundaries;
the resolver finds the bytes of each piece. `read_nowait` answers where all of it is in memory, `read` in any case.
Opens no path, never decides where bytes come from.
"""

from __future__ import annotations

from collections import OrderedDict

import trio

from hfs.mountd.core.errors import VersionChanged, ungrouped
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.core.version import Version
from hfs.mountd.fetch import History, PagePusher, Resolved, Resolver
from hfs.mountd.files.delegations import Delegations
from hfs.mountd.files.handles import FileHandle
from hfs.mountd.files.readahead_windows import ReadaheadWindows
from hfs.mountd.files.recorder import Recorder
from hfs.mountd.hints import FollowedPlans
from hfs.mountd.namespace import expire, pages_lost
from hfs.policies.geometry import Extent, Piece, clamp, split
from hfs.policies.prefetch.faults import Again, Faults, neighbours
from hfs.policies.prefetch.miss_policy import TINY_BYTES
from hfs.policies.prefetch.readahead import Advice
from hfs.policies.traffic import WHOLE_BYTES

_MAX_FILES = 64
"""Files whose page faults are counted: at most half a megabyte each."""


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
