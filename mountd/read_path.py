"""The read path: what happens between a READ and its reply, and what is fetched because of it.

One read: cut to the end of the file, split at chunk boundaries; each piece from the first that has it:
  staged   on NVMe: without waiting if its pages are in memory, else in a thread
  held     arrived from the source, not written yet
  coming   a fetch under way: join it
  source   alone (a small extent) or its whole chunk, as `policies.density` decides
Staging can only make it faster: its faults are counted and the next tier is asked. Errors of the source reach the
reader.

Also here, because it is the same decision: opening a file (its version asked for again past the time-to-live, a small
file put into the page cache before its first READ), closing it, and the fetches that `prefetch` orders. Called by
`fuse` and `commands`. Event loop only; opens no path.
"""

from __future__ import annotations

import errno
from collections import OrderedDict

import trio

from mountd.errors import HfsError, SourceError, StagingError, VersionChanged
from mountd.fetcher import Fetcher
from mountd.handles import FileHandle, Handles
from mountd.io_mode import IoMode
from mountd.metrics import Metrics
from mountd.namespace import Namespace
from mountd.node import Node
from mountd.passthrough import Passthrough
from mountd.prefetch import Prefetch
from mountd.sibling_watch import SiblingWatch
from mountd.source import Source
from mountd.staging import Staging
from mountd.staging_file import StagedFile
from mountd.version import Version
from policies.density import Decision, Density, Fetch, Follow, alone_extent
from policies.geometry import Extent, Piece, chunk_range, clamp, split
from policies.iomode import SMALL_BYTES, Answer, answer
from policies.readahead import Advice, Kind, Limits, advise

__all__ = ["ReadPath"]

_OPEN_WAIT_S = 2.0
"""How long an open may wait for the bytes of a small file; after that its reads wait."""

_WARM_STREAMS = 4
"""Chunks of one file fetched at a time by a warm: shared file systems limit a stream to a fraction of the whole."""

_MAX_DENSITIES = 4096
"""Files whose random touches are remembered: a few hundred bytes each."""

_PUSH_TOUCHES = 8
"""A file with this many lone reads is read at random: its chunks go into the page cache when they arrive, and the small
reads that follow never reach us. (A sequential reader has one or two: its first reads, before it was known for one.)"""

_MAX_SENT_AWAY = 64
"""Threads remembered at a node; more are answered through the page cache, which is always allowed."""

_WINDOW_BUFFER_SHARE = 4
"""A reader's window takes at most a quarter of the buffers, so that four sequential readers do not starve each
other."""


class ReadPath:
    """Reads, opens and ordered fetches. The daemon sets `prefetch` before the mount answers."""

    prefetch: Prefetch

    def __init__(
        self,
        namespace: Namespace,
        handles: Handles,
        staging: Staging,
        fetcher: Fetcher,
        source: Source,
        metrics: Metrics,
        siblings: SiblingWatch,
        io_mode: IoMode,
        passthrough: Passthrough,
        *,
        chunk_bytes: int,
        buffer_bytes: int,
    ) -> None:
        self._namespace = namespace
        self._handles = handles
        self._staging = staging
        self._fetcher = fetcher
        self._source = source
        self._metrics = metrics
        self._siblings = siblings
        self._io_mode = io_mode
        self._passthrough = passthrough
        self._chunk_bytes = chunk_bytes
        self._window_bytes = max(chunk_bytes, min(64 << 20, buffer_bytes // _WINDOW_BUFFER_SHARE))
        # For answers that are given before anything else happens.
        self._buffer = memoryview(bytearray(SMALL_BYTES))
        self._limits: dict[int, Limits] = {}
        self._densities: OrderedDict[Version, Density] = OrderedDict()

    # -- open and close -----------------------------------------------------------------------------------------------

    def open_nowait(self, node: Node, thread_id: int) -> tuple[int, int | None] | None:
        """As `open`, if nothing has to be waited for; None, and nothing has changed, if something has."""
        if node.version is None or not self._namespace.is_fresh_nowait(node):
            return None
        size = node.version.size
        file = self._staging.file_nowait(node.version, node.path)
        if file is None:
            return None
        backing_id = None
        push: memoryview | None = None
        if (node.passed or self._io_mode.passes(size, pushed=node.pushed)) and self._passthrough.may(file):
            if node.opens > node.passed:
                return None  # its mode stands in the way
            backing_id = self._passthrough.acquire_nowait(file)
            if backing_id is None:
                return None
        elif 0 < size <= self._chunk_bytes and not node.pushed:
            if node.opens or size > SMALL_BYTES or not self._fetcher.pushes or 0 not in file.present:
                return None
            push = self._buffer[:size]
            if not self._staging.read_into_nowait(file, Extent(0, size), push):
                return None
        self._io_mode.opening(size)
        self._staging.pin(file)
        number = self._opened(node, file, backing_id)
        if push is not None:
            node.pushed = self._fetcher.push_nowait(node, push)
        if backing_id is None and node.sent_away:
            node.sent_away.discard(thread_id)
        return number, backing_id

    async def open(self, node: Node, thread_id: int) -> tuple[int, int | None]:
        """Open `node` for a kernel that knows it, asked by thread `thread_id`.

        The number of the handle, and the backing file that the kernel is to read instead of asking us, if any. Raises
        VersionChanged if the source has another version under its name, or if its I/O mode stands in the way of a
        better one: the kernel looks it up again.
        """
        if node.version is None:
            raise SourceError(errno.EINVAL, f"{node.path!r} is no regular file")
        self._io_mode.opening(node.version.size)
        await self._namespace.fresh(node)
        path = node.path
        file = self._staging.file_nowait(node.version, path) or await self._staging.file(node.version, path)
        self._staging.pin(file)
        try:
            backing_id = await self._mode(node, file, thread_id)
        except BaseException:
            self._staging.unpin(file)
            raise
        # No checkpoint since the mode was chosen.
        number = self._opened(node, file, backing_id)
        if backing_id is None and 0 < file.size <= self._chunk_bytes:
            try:
                await self._open_small(node, file)
            except BaseException:
                self.close(number)
                raise
        return number, backing_id

    def _opened(self, node: Node, file: StagedFile, backing_id: int | None) -> int:
        number = self._handles.add_file(FileHandle(node, file, backing_id))
        self._namespace.opened(node)
        if backing_id is None:
            self._metrics.add("opens_cached")
        else:
            self._metrics.add("opens_passed")
            node.passed += 1
        if 0 < file.size <= self._chunk_bytes:
            self._siblings.opened(node, staged=0 in file.present)
        return number

    async def _mode(self, node: Node, file: StagedFile, thread_id: int) -> int | None:
        """The backing file of an open that is passed through; None for one through the page cache."""
        passes = self._io_mode.passes(file.size, pushed=node.pushed)
        passable = (node.passed > 0 or passes) and self._passthrough.may(file)
        backing_id = None
        if passable and (node.passed or not node.opens):
            backing_id = await self._passthrough.acquire(file)
            passable = backing_id is not None
        away = node.sent_away or set()
        chosen = answer(
            cached=node.opens - node.passed,
            passed=node.passed,
            passable=passable,
            sent_away=thread_id in away or len(away) >= _MAX_SENT_AWAY,
        )
        if chosen is Answer.PASSED:
            return backing_id
        if backing_id is not None:
            self._passthrough.release(file)
        if chosen is Answer.ANEW:
            self._metrics.add("opens_anew")
            node.sent_away = away | {thread_id}
            self._namespace.renew(node)
            raise VersionChanged(f"{node.path!r} can be passed through now")
        away.discard(thread_id)
        return None

    @property
    def stateless(self) -> bool:
        """Opens are not to be answered: the kernel reads without handles."""
        return self._io_mode.stateless

    async def stateless_handle(self, node_id: int) -> FileHandle:
        """The handle for a read of node `node_id`, which the kernel has opened without us."""
        handle = self._handles.without_open(node_id)
        if handle is not None:
            return handle
        node = self._namespace.node(node_id)
        if node.version is None:
            raise SourceError(errno.EINVAL, f"{node.path!r} is no regular file")
        path = node.path
        file = self._staging.file_nowait(node.version, path) or await self._staging.file(node.version, path)
        handle = FileHandle(node, file)
        self._handles.keep_without_open(handle)
        if 0 < file.size <= self._chunk_bytes:
            self._siblings.opened(node, staged=0 in file.present)
        return handle

    def close(self, number: int) -> None:
        """The kernel lets go of a handle."""
        handle = self._handles.remove_file(number)
        node = handle.node
        if handle.backing_id is not None:
            node.passed -= 1
            self._passthrough.release(handle.file)
        self._staging.unpin(handle.file)
        self._namespace.closed(node)
        if not node.opens:
            self.prefetch.forget(node)
            if node.version is not None and node.version.size > self._chunk_bytes:
                self._source.release(node.version)

    async def _open_small(self, node: Node, file: StagedFile) -> None:
        """Have the bytes of a small file in the page cache before its reader asks: no READ reaches us then.

        One push costs less than the two to five READs that the kernel's growing readahead makes of 110 KB, and the
        reader of a small file reads all of it.
        """
        if node.pushed:
            return
        if file.size > SMALL_BYTES or not self._fetcher.pushes:
            if 0 not in file.present:
                self.prefetch.window_nowait(node, file, [0])
            return
        with trio.move_on_after(_OPEN_WAIT_S):
            try:
                data = await self._small(node, file)
            except VersionChanged:
                self._namespace.expire(node)
                raise  # the kernel looks the name up again, and its reader never notices
            except HfsError:
                return  # the first READ meets the same error and tells it to its reader
            await self._push_small(node, data)

    async def _push_small(self, node: Node, data: memoryview) -> None:
        if node.pushed:
            return  # by another open meanwhile
        if node.opens == 1:
            node.pushed = self._fetcher.push_nowait(node, data)
        else:
            node.pushed = await self._fetcher.push(node, 0, data)

    async def _small(self, node: Node, file: StagedFile) -> memoryview:
        if 0 in file.present:
            extent = Extent(0, file.size)
            data = self._staging.read_nowait(file, extent)
            if data is not None:
                return memoryview(data)
            try:
                return memoryview(await self._staging.read_chunk(file, 0))
            except StagingError:
                pass  # counted there; the source has it
        held = self._fetcher.held_nowait(file.version, 0)
        return held if held is not None else await self._fetcher.chunk(node, file, 0)

    # -- read ---------------------------------------------------------------------------------------------------------

    def read_nowait(self, handle: FileHandle, offset: int, size: int) -> bytes | memoryview | None:
        """As `read`, if it lies in one staged chunk and in memory; good until the next call. None, and nothing has
        changed, if not.
        """
        file = handle.file
        extent = clamp(offset, size, file.size)
        if not extent.size:
            return b""
        index = extent.start // file.chunk_bytes
        if index not in file.present or extent.size > len(self._buffer):
            return None
        if not file.complete and (extent.end - 1) // file.chunk_bytes != index:
            return None
        data = self._buffer[: extent.size]
        if not self._staging.read_into_nowait(file, extent, data):
            return None
        handle.node.pushed = False  # the kernel has let its pages go: push them again at the next open
        if not file.complete:
            self._advise(handle, extent)
        self._count("staged", extent)
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
        handle.node.pushed = False  # the kernel has let its pages go: push them again at the next open
        try:
            pieces = split(extent, file.chunk_bytes)
            if len(pieces) == 1:
                return await self._piece(handle, pieces[0], advice)
            return await self._joined(handle, extent, pieces, advice)
        except VersionChanged:
            self._namespace.expire(handle.node)
            raise

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

    async def _piece(self, handle: FileHandle, piece: Piece, advice: Advice | None) -> bytes | bytearray | memoryview:
        file, index = handle.file, piece.index
        extent = Extent(piece.start, piece.end)
        if index in file.present:
            data: bytearray | None = self._staging.read_nowait(file, extent)
            if data is None:
                try:
                    data = await self._staging.read(file, extent)
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
        node = handle.node
        coming = self._fetcher.is_coming(file.version, index)
        decision = self._decide(handle, extent, advice)
        if decision.fetch is Fetch.ALONE:
            # Even if its chunk is on the way: that may be a fill, whose chunk takes a hundred times as long.
            return await self._alone(node, file, index, extent, decision)
        tier = "flight" if coming else "source"
        random = advice is not None and advice.kind is not Kind.SEQUENTIAL and file.size > self._chunk_bytes
        self._follow(node, file, index, decision)
        chunk = await self._fetcher.chunk(node, file, index, push=random)
        self.prefetch.demand_served_nowait()
        self._count(tier, extent)
        return chunk[piece.start - begin : piece.end - begin]

    async def _alone(self, node: Node, file: StagedFile, index: int, extent: Extent, decision: Decision) -> memoryview:
        wanted = alone_extent(extent, file.size)
        data = await self._fetcher.alone(node, file, wanted)
        self._count("alone", extent)
        self._follow(node, file, index, decision)  # behind the read: its reader must not share the bandwidth
        return data[extent.start - wanted.start : extent.end - wanted.start]

    def _decide(self, handle: FileHandle, extent: Extent, advice: Advice | None) -> Decision:
        file = handle.file
        # By version, not by handle: many data sets open their one large file anew for each sample.
        density = self._densities.get(file.version)
        if density is None:
            density = self._densities[file.version] = Density(file.size, file.chunk_bytes)
            if len(self._densities) > _MAX_DENSITIES:
                self._densities.popitem(last=False)
        return density.missed(
            extent,
            sequential=advice is not None and advice.kind is Kind.SEQUENTIAL,
            missing_chunks=file.present.count - len(file.present),
            can_stage=self._staging.admits_nowait(file, file.chunk_bytes),
        )

    def _follow(self, node: Node, file: StagedFile, index: int, decision: Decision) -> None:
        if decision.follow is Follow.NOTHING:
            return
        if decision.follow is Follow.CHUNK:
            self.prefetch.window_nowait(node, file, [index])
        else:
            self.prefetch.fill_nowait(node, file)

    def _advise(self, handle: FileHandle, extent: Extent) -> Advice:
        file = handle.file
        limits = self._limits.get(file.chunk_bytes)
        if limits is None:
            limits = Limits(file.chunk_bytes, max(file.chunk_bytes, self._window_bytes))
            self._limits[file.chunk_bytes] = limits
        advice = advise(handle.pattern, extent, file.size, limits)
        for window in advice.windows:
            indexes = [i for i in chunk_range(window, file.chunk_bytes) if i not in file.present]
            if not self._staging.admits_nowait(file, file.chunk_bytes):
                indexes = indexes[:1]  # what is not staged must not be far ahead: nobody keeps it
            if indexes:
                self.prefetch.window_nowait(handle.node, file, indexes)
        return advice

    def _count(self, tier: str, extent: Extent) -> None:
        self._metrics.add("reads_" + tier)
        self._metrics.add("bytes_" + tier, extent.size)

    # -- fetched ahead ------------------------------------------------------------------------------------------------

    async def prefetch_chunk(self, node: Node, file: StagedFile, index: int) -> None:
        """For `prefetch`: one chunk of an open or warmed file."""
        if index in file.present or self._fetcher.is_coming(file.version, index):
            return
        density = self._densities.get(file.version)
        random = density is not None and density.touches >= _PUSH_TOUCHES
        if await self._fetcher.ahead(node, file, index, push=random):
            self._metrics.add("prefetched_chunks")

    async def prefetch_sibling(self, directory: Node, name: bytes) -> int:
        """For `prefetch`: a small file whose siblings are being read."""
        try:
            (dentry,) = await self._namespace.children(directory, [name])
            node = dentry.node
            if node is not None and node.version is not None and node.version.size <= self._chunk_bytes:
                path = node.path
                file = self._staging.file_nowait(node.version, path) or await self._staging.file(node.version, path)
                wanted = 0 not in file.present and self._staging.admits_nowait(file, file.size)
                if wanted and self._siblings.admit(directory, name, file.size):
                    small = file.size <= SMALL_BYTES
                    return file.size if await self._fetcher.ahead(node, file, 0, push=small) else 0
        except HfsError:
            self._siblings.drop(directory, name)
            raise
        self._siblings.drop(directory, name)
        return 0

    def next_siblings(self, limit: int) -> list[tuple[Node, bytes]]:
        """For `prefetch`: what the sibling policy would fetch now."""
        return self._siblings.next(limit)

    def demand_waits(self) -> bool:
        """For `prefetch`."""
        return self._source.threads.demand_waits

    def worth_filling(self, file: StagedFile) -> bool:
        """For `prefetch`."""
        return self._staging.admits_nowait(file, file.chunk_bytes)

    async def stage_whole(self, node: Node, file: StagedFile) -> None:
        """For `warm`: every missing chunk of a file, some at a time.

        Raises as `read`, and StagingError when a chunk found no room or no place in the queue of the cache disk.
        """
        missing = file.present.missing()

        async def stream() -> None:
            for index in missing:
                if not self._staging.admits_nowait(file, file.chunk(index).size):
                    raise StagingError("no room in the cache")
                await self._fetcher.ahead(node, file, index)
                if index not in file.present and not self._fetcher.is_coming(file.version, index):
                    raise StagingError("the cache disk did not take all of it; see hfs status")

        try:
            async with trio.open_nursery() as nursery:
                for _ in range(min(_WARM_STREAMS, file.present.count)):
                    nursery.start_soon(stream)
        except* HfsError as group:
            raise _first(group) from None


def _first(group: BaseExceptionGroup[HfsError]) -> HfsError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
