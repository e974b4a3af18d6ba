"""Opening files: what an open waits for, how it is answered, and what is remembered until the close.

An open asks for the version again past the time-to-live, chooses how the file will be read (`open_modes`), and has the
bytes of a small file in the page cache before its reader asks for them (`SmallOpens`). `open_nowait` does so where
nothing has to be waited for, `open` in any case. In stateless mode the kernel opens without asking; then a handle is
made at the first read. Opens no path.
"""

from __future__ import annotations

import contextlib
import errno
from dataclasses import dataclass

import trio

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.core.errors import HfsError, SourceError, VersionChanged, shown_path
from hfs.mountd.fetch import PagePusher, PrefetchQueue, Resolver
from hfs.mountd.files.delegations import Delegations
from hfs.mountd.files.handles import FileHandle, Handles
from hfs.mountd.files.io_mode import IoMode
from hfs.mountd.files.open_modes import OpenModes
from hfs.mountd.files.opened_files import OpenedFiles
from hfs.mountd.files.overlays import ChangedNames
from hfs.mountd.namespace import Dentry, Namespace, Node, expire
from hfs.policies.geometry import Extent
from hfs.policies.iomode import SMALL_BYTES

_OPEN_WAIT_S = 2.0
"""How long an open may wait for the bytes of a small file; after that its reads wait."""


class SmallOpens:
    """The bytes of a small file at its open: in the page cache before its reader asks, so that no READ follows.

    One push costs less than the two to five READs that the kernel's growing readahead makes of 110 KB, and the reader
    of a small file reads all of it. Bounded in time: past it the reads wait, not the open.
    """

    def __init__(self, resolver: Resolver, pusher: PagePusher, io_mode: IoMode, queue: PrefetchQueue) -> None:
        self._resolver = resolver
        self._pusher = pusher
        self._io_mode = io_mode
        self._queue = queue

    async def gives_bytes(self, node: Node) -> bool:
        """As that of `Unsized`."""
        return await self._resolver.unsized.gives_bytes(node)

    async def push(self, node: Node, file: StagedFile) -> None:
        """Have the bytes of a file of one chunk in the page cache, for an open that is not answered yet.

        Raises VersionChanged: the kernel looks the name up again, and its reader never notices.
        """
        if node.pushed:
            return
        if file.size > SMALL_BYTES or not self._pusher.on:
            if not self._resolver.is_here(file, 0):
                self._queue.window_nowait(node, file, [0])
            return
        with trio.move_on_after(_OPEN_WAIT_S):
            try:
                found = await self._resolver.get(node, file, Extent(0, file.size))
            except VersionChanged:
                expire(node)
                raise
            except HfsError:
                return  # the first READ meets the same error and tells it to its reader
            await self._push(node, memoryview(found.data))

    async def _push(self, node: Node, data: memoryview) -> None:
        if node.pushed:
            return  # by another open meanwhile
        if node.opens == 1 and not self._io_mode.stateless:  # then nobody knows who else has it open
            await self._pusher.push_whole(node, data)
        else:
            await self._pusher.push(node, 0, data)


@dataclass(eq=False, repr=False)
class Opening:
    """Opens and closes. Event loop only."""

    _namespace: Namespace
    _handles: Handles
    _cache: Cache
    _modes: OpenModes
    _small: SmallOpens
    _opened_files: OpenedFiles
    _delegations: Delegations

    async def look_up(self, directory: Node, name: bytes) -> Dentry:
        """What `name` in `directory` is; a file that the data plane is fetching is waited for."""
        await self._opened_files.looking_up(directory, name)
        return await self._namespace.lookups.child(directory, name)

    def open_nowait(self, node: Node, thread_id: int, unique: int = 0) -> tuple[int, int | None] | None:
        """As `open`, if nothing has to be waited for; None, and nothing has changed, if something has."""
        self._delegations.recall(node)
        if node.version is None or not self._namespace.freshness.is_fresh_nowait(node):
            return None
        file = self._cache.files.get_nowait(node.version, node.path)
        if node.gives_bytes is not False:
            return None
        passes = self._modes.passes_nowait(node, file) if file is not None else None
        if file is None or passes is None:
            return None
        backing_id = None
        if passes:
            backing_id = self._modes.acquire_nowait(file)
            if backing_id is None:
                return None
        elif 0 < file.size <= file.chunk_bytes and not node.pushed:
            return None  # its bytes are pushed first
        self._modes.opening(node, file)
        self._cache.files.pin(file)
        return self._opened_files.opened(node, file, backing_id, thread_id, unique), backing_id

    async def open(self, node: Node, thread_id: int, unique: int = 0) -> tuple[int, int | None]:
        """Open `node` for a kernel that knows it, asked by thread `thread_id` in request `unique` (0: not known).

        The number of the handle, and the backing file that the kernel is to read instead of asking us, if any. Raises
        VersionChanged if the source has another version under its name, or if its I/O mode stands in the way of a
        better one: the kernel looks it up again.
        """
        if node.version is None:
            raise SourceError(errno.EINVAL, f"{shown_path(node.path)} is no regular file")
        again = self._handles.answered(unique)
        if again is not None and self._handles.has_file(again):
            return again, self._handles.file(again).backing_id
        await self._namespace.freshness.fresh(node)
        await self._small.gives_bytes(node)
        path = node.path
        file = self._cache.files.get_nowait(node.version, path) or await self._cache.files.get(node.version, path)
        self._modes.opening(node, file)
        self._cache.files.pin(file)
        self._delegations.recall(node)
        try:
            backing_id = await self._modes.choose(node, file, thread_id)
        except BaseException:
            self._cache.files.unpin(file)
            raise
        # No checkpoint since the mode was chosen.
        number = self._opened_files.opened(node, file, backing_id, thread_id, unique)
        if backing_id is None and 0 < file.size <= file.chunk_bytes:
            try:
                await self._small.push(node, file)
            except BaseException:
                self.close(number)
                raise
        if self.stateless and backing_id is None:
            self.close(number)  # the mount has become so meanwhile
        return number, backing_id

    @property
    def changed(self) -> ChangedNames:
        """Names that lead elsewhere now, by which somebody may come."""
        return self._modes.changed

    def stale(self, thread_id: int) -> None:
        """As `OpenModes.stale`."""
        self._modes.stale(thread_id)

    def close(self, number: int) -> None:
        """The kernel lets go of a handle."""
        if not self._handles.has_file(number):
            with contextlib.suppress(SourceError):
                self._namespace.node(number)  # of a slot that nobody has needed yet: the close was sent again
        if self._opened_files.close_slot(number):
            return
        if not self._handles.has_file(number):
            return  # see `let_go`; or opened when another daemon served the mount
        self._delegations.recall(self._handles.file(number).node)  # this close was read before it was delegated
        if self._opened_files.closed(number) and (self.stateless or not self._delegations.offer(number)):
            self._opened_files.let_go_unused(number)

    async def attach(self, number: int) -> None:
        """Have a handle that the data plane has given out by itself read as all others are; nothing, if it is none."""
        if self._handles.has_file(number):
            return
        with contextlib.suppress(SourceError):
            self._namespace.node(number)  # of a slot that nobody has needed yet
        await self._handles.slots.attach(number, self._cache)

    # -- without opens ------------------------------------------------------------------------------------------------

    @property
    def stateless(self) -> bool:
        """Opens are not to be answered: the kernel reads without handles."""
        return self._modes.stateless

    async def see_unopened(self, node: Node) -> None:
        """Somebody is about to read it, perhaps without an open. Raises SourceError where that would give nothing of
        what it has."""
        if self.stateless and await self._small.gives_bytes(node):
            raise SourceError(errno.EIO, f"{shown_path(node.path)} gives more bytes than it says")

    def is_tried(self, node: Node) -> bool:
        """The kernel may read it without asking us for attributes."""
        return node.gives_bytes is False or not self._modes.may_be_stateless

    def let_go(self) -> None:
        """Forget all open files: a kernel that opens without asking does not tell of any close, nor of those before.

        What is still open is read by its node. A backing file lives as long as the kernel reads it.
        """
        for number in self._handles.file_numbers():
            self._delegations.recall(self._handles.file(number).node)
            self._opened_files.let_go(number)

    def stateless_handle_nowait(self, node_id: int, thread_id: int) -> FileHandle | None:
        """As `stateless_handle`, if that needs no waiting; else None."""
        handle = self._handles.without_open(node_id)
        if handle is not None:
            return handle
        node = self._namespace.node(node_id)
        file = self._cache.files.get_nowait(node.version, node.path) if node.version is not None else None
        return self._kept(FileHandle(node, file), thread_id) if file is not None else None

    async def stateless_handle(self, node_id: int, thread_id: int) -> FileHandle:
        """The handle for a read of node `node_id`, which the kernel has opened without us, by thread `thread_id`."""
        handle = self.stateless_handle_nowait(node_id, thread_id)
        if handle is not None:
            return handle
        node = self._namespace.node(node_id)
        if node.version is None:
            raise SourceError(errno.EINVAL, f"{shown_path(node.path)} is no regular file")
        return self._kept(FileHandle(node, await self._cache.files.get(node.version, node.path)), thread_id)

    def _kept(self, handle: FileHandle, thread_id: int) -> FileHandle:
        self._opened_files.read_without_open(handle, thread_id)
        return handle
