"""What an open file holds until it is closed: its node, its staged file, its backing file, its place in the journal.

Never waits, never decides how a file is opened. Event loop only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.fetch import DirectoryDelegations, PrefetchQueue, SiblingWatch
from hfs.mountd.files.handles import FileHandle, Handles
from hfs.mountd.files.open_modes import OpenModes
from hfs.mountd.files.readers import Recorder
from hfs.mountd.files.unused_pages import UnusedPages
from hfs.mountd.hints import FollowedPlans
from hfs.mountd.kernel import DataPlane
from hfs.mountd.namespace import Namespace, Node
from hfs.mountd.source import Source


@dataclass(eq=False, repr=False)
class OpenObservers:
    """Who is told of opens and closes: recorder, hints, siblings; and the source, whose descriptors then close.

    Each is told once for each file that a reader opens; of a thread that opens files without any use for them
    (`only_looks`; `residency` does) nobody is told.
    """

    _recorder: Recorder
    _plans: FollowedPlans
    _siblings: SiblingWatch
    _source: Source
    directory_delegations: DirectoryDelegations
    _pages: UnusedPages
    _only_looks: Callable[[int], bool]

    def opened(self, node: Node, file: StagedFile, thread_id: int) -> None:
        """Thread `thread_id` has opened a file; if it is small, it is about to be read."""
        if not 0 < file.size <= file.chunk_bytes or self._only_looks(thread_id):
            return
        self._recorder.touched(node, 0, file.size, thread_id)
        staged = 0 in file.present
        if node.parent is not None:
            self.directory_delegations.delegate_soon(node.parent)
        if not self._plans.opened(node, staged=staged):
            self._siblings.opened(node, staged=staged)

    def closed(self, handle: FileHandle) -> None:
        """A handle was closed, and its node says so."""
        if handle.backing_id is None:
            self._pages.read(handle.node.id)
        self._plans.closed(handle.node, handle.file)
        version = handle.node.version
        if not handle.node.opens and version is not None and version.size > handle.file.chunk_bytes:
            self._source.idle_files.release(version)


@dataclass(eq=False, repr=False)
class OpenedFiles:
    """The files that are open."""

    _namespace: Namespace
    _handles: Handles
    _cache: Cache
    _modes: OpenModes
    _observers: OpenObservers
    _queue: PrefetchQueue
    _plane: DataPlane

    def opened(self, node: Node, file: StagedFile, backing_id: int | None, thread_id: int, unique: int) -> int:
        """`node` is open once more; the number of its handle. The caller has pinned `file` and acquired the backing
        file for it."""
        self._namespace.holds.opened(node, passed=backing_id is not None)
        backing_inode = self._modes.opened(node, file, backing_id, thread_id)
        number = self._handles.add_file(FileHandle(node, file, backing_id, backing_inode, opener=thread_id), unique)
        self.told(node, file, thread_id)
        return number

    async def looking_up(self, directory: Node, name: bytes) -> None:
        """A name in `directory` is asked for."""
        if directory.delegated:
            await self._observers.directory_delegations.wait_fetched(directory, name)

    def close_slot(self, number: int) -> bool:
        """As `SlotHandles.close`."""
        return self._handles.slots.close(number, self._namespace, self._plane)

    def told(self, node: Node, file: StagedFile, thread_id: int) -> None:
        """Those who want to know of opens hear of one, by thread `thread_id`."""
        if node.parent is not None and not node.parent.changes:
            self._cache.attributes.note(file, node.parent.attributes, node.name, node.attributes)
        self._observers.opened(node, file, thread_id)

    def told_closed(self, handle: FileHandle) -> None:
        """The same of a close."""
        self._observers.closed(handle)

    def read_without_open(self, handle: FileHandle, thread_id: int) -> None:
        """A file is read that the kernel has opened without us."""
        self._namespace.nodes.note(handle.node)
        self._handles.keep_without_open(handle)
        self.told(handle.node, handle.file, thread_id)

    def closed(self, number: int) -> bool:
        """One of those who have the handle has closed it. True: it was the last."""
        handle = self._handles.file(number)
        left = self._plane.closed(handle.counter) if handle.counter is not None else 0
        self._namespace.holds.closed(handle.node, passed=handle.backing_id is not None)
        self.told_closed(handle)
        return left <= 0

    def let_go(self, number: int) -> None:
        """Let go of the handle, however many have it open."""
        while self._handles.has_file(number):
            if self.closed(number):
                self.let_go_unused(number)

    def delegate(self, number: int) -> int:
        """Nobody has this handle open any more: the data plane may give it out, under a number of its own."""
        handle = self._handles.file(number)
        delegated = self._handles.add_file(replace(handle, counter=None), delegated=True)  # before the node is let go
        self._handles.remove_file(number)
        if handle.counter is not None:
            self._plane.free_counter(handle.counter)
        return delegated

    def let_go_unused(self, number: int) -> None:
        """Let go of the handle, if nobody has it open."""
        handle = self._handles.file(number)
        if handle.counter is not None and self._plane.count(handle.counter) > 0:
            return
        self._handles.remove_file(number)
        if handle.counter is not None:
            # Last: in the journal, and not counted, it would have been kept for nobody.
            self._plane.free_counter(handle.counter)
        self._let_go(handle.file, handle.backing_id)
        if not handle.node.opens:
            self._queue.forget(handle.node)

    def _let_go(self, file: StagedFile, backing_id: int | None) -> None:
        self._modes.closed(file, backing_id)
        self._cache.files.unpin(file)
