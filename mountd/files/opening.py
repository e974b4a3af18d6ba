"""Opening files: what an open waits for, how it is answered, and what is remembered until the close.

An open asks for the version again past the time-to-live, chooses how the file will be read (policies/iomode.py: through
the page cache, or the staged file by the kernel itself), and has the bytes of a small file in the page cache before its
reader asks for them. `open_nowait` does so where nothing has to be waited for, `open` in any case. In stateless mode
the kernel opens without asking; then a handle is made at the first read.

Called by `fuse` and `fuse.at_once`. Event loop only; opens no path.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

import trio

from mountd.base.errors import HfsError, SourceError, StagingError, VersionChanged
from mountd.cache import Cache, StagedFile
from mountd.core.metrics import Metrics
from mountd.fetch import Fetcher, PrefetchQueue, Recorder, SiblingWatch, SmallDemand
from mountd.files.handles import FileHandle, Handles
from mountd.files.io_mode import IoMode
from mountd.files.passthrough import Passthrough
from mountd.hints import HintFollower
from mountd.namespace import Dentry, Namespace, Node, expire
from mountd.source import Source
from policies.geometry import Extent
from policies.iomode import SMALL_BYTES, Answer, answer

__all__ = ["Opening"]

_OPEN_WAIT_S = 2.0
"""How long an open may wait for the bytes of a small file; after that its reads wait. Also for a large one whose fill
is about to end: its handle is then passed through for as long as it lives."""

_VERIFIED_AT_OPEN_BYTES = 2 << 30
"""What is read and hashed in that time, by four threads from an NVMe drive."""

_LOOK_S = 0.02
"""How often it is looked meanwhile; a chunk takes about as long."""

_MAX_SENT_AWAY = 64
"""Threads remembered at a node; more are answered through the page cache, which is always allowed."""


class Opening:
    """Opens and closes. `only_looks`: whether a thread opens files without any use for them (see `residency`)."""

    def __init__(
        self,
        namespace: Namespace,
        handles: Handles,
        cache: Cache,
        fetcher: Fetcher,
        source: Source,
        metrics: Metrics,
        siblings: SiblingWatch,
        small_demand: SmallDemand,
        hints: HintFollower,
        recorder: Recorder,
        io_mode: IoMode,
        passthrough: Passthrough,
        prefetch: PrefetchQueue,
        *,
        only_looks: Callable[[int], bool],
        chunk_bytes: int,
    ) -> None:
        self._namespace = namespace
        self._handles = handles
        self._cache = cache
        self._fetcher = fetcher
        self._source = source
        self._metrics = metrics
        self._siblings = siblings
        self._small_demand = small_demand
        self._hints = hints
        self._recorder = recorder
        self._io_mode = io_mode
        self._passthrough = passthrough
        self._prefetch = prefetch
        self._only_looks = only_looks
        self._chunk_bytes = chunk_bytes
        # For a small file that is pushed before anything else happens.
        self._buffer = memoryview(bytearray(SMALL_BYTES))

    async def look_up(self, directory: Node, name: bytes, thread_id: int) -> Dentry:
        """What `name` in `directory` is, asked by thread `thread_id`; a small file that it will open comes with it."""
        return await self._small_demand.look_up(directory, name, thread_id)

    def open_nowait(self, node: Node, thread_id: int, unique: int = 0) -> tuple[int, int | None] | None:
        """As `open`, if nothing has to be waited for; None, and nothing has changed, if something has."""
        if node.version is None or not self._namespace.freshness.is_fresh_nowait(node):
            return None
        size = node.version.size
        file = self._cache.files.get_nowait(node.version, node.path)
        if file is None or self._is_about_to_pass(node, file):
            return None
        backing_id = None
        push: memoryview | None = None
        may_pass = self._passthrough.may(file)
        if node.passed and not may_pass:
            return None
        if may_pass and (node.passed or self._io_mode.passes(size, pushed=node.pushed)):
            if node.opens > node.passed:
                return None  # its mode stands in the way
            backing_id = self._passthrough.acquire_nowait(file)
            if backing_id is None:
                return None
        elif 0 < size <= self._chunk_bytes and not node.pushed:
            if node.opens or size > SMALL_BYTES or not self._fetcher.pushes:
                return None
            push = self._small_nowait(file)
            if push is None:
                return None
        self._learn(node)
        self._cache.files.pin(file)
        number = self._opened(node, file, backing_id, thread_id, unique)
        if push is not None:
            node.pushed = self._fetcher.push_nowait(node, push)
        if node.sent_away:
            node.sent_away.discard(thread_id)
        return number, backing_id

    def _small_nowait(self, file: StagedFile) -> memoryview | None:
        """All bytes of a small file if they are in memory, good until the next call; else None."""
        if 0 not in file.present:
            return self._fetcher.held_nowait(file.version, 0)
        data = self._buffer[: file.size]
        return data if self._cache.reader.read_into_nowait(file, Extent(0, file.size), data) else None

    async def open(self, node: Node, thread_id: int, unique: int = 0) -> tuple[int, int | None]:
        """Open `node` for a kernel that knows it, asked by thread `thread_id` in request `unique` (0: not known).

        The number of the handle, and the backing file that the kernel is to read instead of asking us, if any. Raises
        VersionChanged if the source has another version under its name, or if its I/O mode stands in the way of a
        better one: the kernel looks it up again.
        """
        if node.version is None:
            raise SourceError(errno.EINVAL, f"{node.path!r} is no regular file")
        again = self._handles.answered(unique)
        if again is not None and self._handles.has_file(again):
            return again, self._handles.file(again).backing_id
        self._learn(node)
        await self._namespace.freshness.fresh(node)
        path = node.path
        file = self._cache.files.get_nowait(node.version, path) or await self._cache.files.get(node.version, path)
        self._cache.files.pin(file)
        try:
            if self._is_about_to_pass(node, file):
                await self._fill_to_end(file)
            if self._passthrough.on and file.durable:
                await self._look(node, file)
            backing_id = await self._mode(node, file, thread_id)
        except BaseException:
            self._cache.files.unpin(file)
            raise
        # No checkpoint since the mode was chosen.
        number = self._opened(node, file, backing_id, thread_id, unique)
        if backing_id is None and 0 < file.size <= self._chunk_bytes:
            try:
                await self._open_small(node, file)
            except BaseException:
                self.close(number)
                raise
        if self.stateless and backing_id is None:
            self.close(number)  # the mount has become so meanwhile
        return number, backing_id

    def _learn(self, node: Node) -> None:
        """A file that is opened again says nothing new; and those are what `residency` opens."""
        if node.version is not None and not (node.pushed or node.opens):
            self._io_mode.opening(node.version.size)

    def _opened(self, node: Node, file: StagedFile, backing_id: int | None, thread_id: int, unique: int) -> int:
        self._namespace.holds.opened(node)
        backing_inode = self._passthrough.object_of(file) if backing_id is not None else 0
        number = self._handles.add_file(FileHandle(node, file, backing_id, backing_inode), unique)
        self._small_demand.opened(node, thread_id)
        if backing_id is None:
            self._metrics.add("opens_cached")
        else:
            self._metrics.add("opens_passed")
            node.passed += 1
        if 0 < file.size <= self._chunk_bytes and not self._only_looks(thread_id):
            self._noticed(node, file)
        return number

    def _is_about_to_pass(self, node: Node, file: StagedFile) -> bool:
        """Whether a large file will be all here, and durable, in a moment.

        The handle of an incomplete file is read through us until its reader closes it, which may be for days; two
        seconds now are cheaper. Where more is missing the reader starts at once, and later opens find it complete.
        """
        if file.durable or file.encoded or file.present.count < 2 or not self._passthrough.on:
            return False
        return file.complete or self._prefetch.fill_remaining_s(node) <= _OPEN_WAIT_S

    async def _fill_to_end(self, file: StagedFile) -> None:
        with trio.move_on_after(_OPEN_WAIT_S):
            while not file.complete:  # noqa: ASYNC110 - an event for each chunk of each file would serve only this
                await trio.sleep(_LOOK_S)
            await self._cache.committer.wait_committed()

    async def _look(self, node: Node, file: StagedFile) -> None:
        """See that what the kernel is about to read by itself is right: by its stamp, else by its checksums.

        Where those take longer than an open may wait, this open is read through us, by verified chunks.
        """
        if await self._cache.lender.is_sound(file) or not self._io_mode.passes(file.size, pushed=node.pushed):
            return
        with trio.move_on_after(_OPEN_WAIT_S if file.size <= _VERIFIED_AT_OPEN_BYTES else 0):
            await self._cache.verifying.wait_verified(file)

    async def _mode(self, node: Node, file: StagedFile, thread_id: int) -> int | None:
        """The backing file of an open that is passed through; None for one through the page cache."""
        passes = self._io_mode.passes(file.size, pushed=node.pushed)
        passable = (node.passed > 0 or passes) and self._passthrough.may(file)
        backing_id = None
        if node.passed or (passable and not node.opens):
            backing_id = await self._passthrough.acquire(file)
            passable = passable and backing_id is not None
        away = node.sent_away or set()
        chosen = answer(
            cached=node.opens - node.passed,
            passed=node.passed,
            passable=passable,
            sent_away=thread_id in away or len(away) >= _MAX_SENT_AWAY,
        )
        if chosen is Answer.PASSED:
            away.discard(thread_id)
            return backing_id
        if backing_id is not None:
            self._passthrough.release(file)
        if chosen is Answer.ANEW:
            self._metrics.add("opens_anew")
            node.sent_away = away | {thread_id}
            fresh = self._namespace.tree.renew(node)
            if fresh is not None:  # whatever happens until it is opened: the kernel looks a name up again only once
                fresh.sent_away = (fresh.sent_away or set()) | {thread_id}
            raise VersionChanged(f"{node.path!r} is read another way now")
        away.discard(thread_id)
        return None

    @property
    def stateless(self) -> bool:
        """Opens are not to be answered: the kernel reads without handles."""
        return self._io_mode.stateless

    def let_go(self) -> None:
        """Forget all open files: a kernel that opens without asking does not tell of any close, nor of those before.

        What is still open is read by its node. A backing file lives as long as the kernel reads it.
        """
        for number in self._handles.file_numbers():
            self.close(number)

    def stateless_handle_nowait(self, node_id: int, thread_id: int) -> FileHandle | None:
        """As `stateless_handle`, if that needs no waiting; else None."""
        handle = self._handles.without_open(node_id)
        if handle is not None:
            return handle
        node = self._namespace.nodes.node(node_id)
        file = self._cache.files.get_nowait(node.version, node.path) if node.version is not None else None
        return self._kept(FileHandle(node, file), thread_id) if file is not None else None

    async def stateless_handle(self, node_id: int, thread_id: int) -> FileHandle:
        """The handle for a read of node `node_id`, which the kernel has opened without us, by thread `thread_id`."""
        handle = self.stateless_handle_nowait(node_id, thread_id)
        if handle is not None:
            return handle
        node = self._namespace.nodes.node(node_id)
        if node.version is None:
            raise SourceError(errno.EINVAL, f"{node.path!r} is no regular file")
        return self._kept(FileHandle(node, await self._cache.files.get(node.version, node.path)), thread_id)

    def _kept(self, handle: FileHandle, thread_id: int) -> FileHandle:
        self._namespace.nodes.note(handle.node)
        self._handles.keep_without_open(handle)
        self._small_demand.opened(handle.node, thread_id)
        file = handle.file
        if 0 < file.size <= self._chunk_bytes:
            self._noticed(handle.node, file)
        return handle

    def _noticed(self, node: Node, file: StagedFile) -> None:
        """A small file is about to be read: what says so of others?"""
        self._recorder.touched(node, 0, file.size)
        staged = 0 in file.present
        if not self._hints.opened(node, staged=staged):
            self._siblings.opened(node, staged=staged)

    def close(self, number: int) -> None:
        """The kernel lets go of a handle."""
        if not self._handles.has_file(number):
            return  # see `let_go`; or opened when another daemon served the mount
        handle = self._handles.remove_file(number)
        node = handle.node
        self._hints.closed(node, handle.file)
        if handle.backing_id is not None:
            node.passed -= 1
            self._passthrough.release(handle.file)
        self._cache.files.unpin(handle.file)
        self._namespace.holds.closed(node)
        if not node.opens:
            self._prefetch.forget(node)
            if node.version is not None and node.version.size > self._chunk_bytes:
                self._source.idle_files.release(node.version)

    async def _open_small(self, node: Node, file: StagedFile) -> None:
        """Have the bytes of a small file in the page cache before its reader asks: no READ reaches us then.

        One push costs less than the two to five READs that the kernel's growing readahead makes of 110 KB, and the
        reader of a small file reads all of it.
        """
        if node.pushed:
            return
        if file.size > SMALL_BYTES or not self._fetcher.pushes:
            if 0 not in file.present and self._fetcher.held_nowait(file.version, 0) is None:
                self._prefetch.window_nowait(node, file, [0])
            return
        with trio.move_on_after(_OPEN_WAIT_S):
            try:
                data = await self._small(node, file)
            except VersionChanged:
                expire(node)
                raise  # the kernel looks the name up again, and its reader never notices
            except HfsError:
                return  # the first READ meets the same error and tells it to its reader
            await self._push_small(node, data)

    async def _push_small(self, node: Node, data: memoryview) -> None:
        if node.pushed:
            return  # by another open meanwhile
        if node.opens == 1 and not self.stateless:  # then nobody knows who else has it open
            node.pushed = self._fetcher.push_nowait(node, data)
        else:
            node.pushed = await self._fetcher.push(node, 0, data)

    async def _small(self, node: Node, file: StagedFile) -> memoryview:
        if 0 in file.present:
            extent = Extent(0, file.size)
            data = self._cache.reader.read_nowait(file, extent)
            if data is not None:
                return memoryview(data)
            try:
                return memoryview(await self._cache.reader.read_chunk(file, 0))
            except StagingError:
                pass  # counted there; the source has it
        held = self._fetcher.held_nowait(file.version, 0)
        return held if held is not None else await self._fetcher.chunk(node, file, 0)
