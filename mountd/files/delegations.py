"""Delegations: opens and reads of nodes that the data plane answers by itself, until they are called back.

A file that nobody has open any more, and whose next open would be answered as the last one was, is delegated: until its
attributes are past their time, opens and closes of it cost no Python. What they are answered by may change at any
moment, so whoever changes it calls them back first: `namespace` where a version, a name or the pages change
(`Node.delegation`), `cache` where bytes go or are in doubt (`StagedFile.recall`), an open that comes to us all the
same. Meanwhile the handle is kept, with its pin and its backing file, also while nobody has it open.

Reads that come to us although the file is complete, durable and sound are delegated as well: of whoever has no
passthrough, or has opened the file before it was complete.

Who wants to hear of opens (plans, recordings) is told of them a moment later, by `tell`; while there is anybody, reads
come to us. Not delegated are opens of files that some users have to be asked for. Event loop only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import trio

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.core.background import Slices
from hfs.mountd.core.errors import SourceError
from hfs.mountd.files.handles import FileHandle, Handles
from hfs.mountd.files.opened_files import OpenedFiles
from hfs.mountd.kernel import Backing, DataPlane, Opened, StagedObject
from hfs.mountd.namespace import Namespace, Node, Permissions
from hfs.policies.iomode import SMALL_BYTES

_OUT_AT_MOST = 32_768
"""Half of the files that the journal notes; each takes a kilobyte, 40 MB in all."""

_TURNOVER = 16
"""When there is no room, each so many files that are closed let the oldest go, which may be of a job that has ended."""

_READS_AT_MOST = 512
"""Each holds a descriptor; they end with the file's last close."""

_TELL_S = 0.02
"""How late those who want to hear of opens do: a plan looks some seconds ahead."""

_TOLD_AT_ONCE = 8
"""Opens in a step. To look at the clock after each took a quarter of what Python does for a cold file."""

_SLICE = 128

_THREAD = (1 << 63) - 1
"""Of an open's thread id, which says besides whether the bytes of a slot were here."""


class Delegated:
    """Requests for one node; implements `base.delegation.Delegation`."""

    __slots__ = ("_call_back", "_plane", "counter", "file", "node_id", "number", "passes", "pins", "reads")

    def __init__(self, plane: DataPlane, node_id: int, file: StagedFile, call_back: Callable[[], None]) -> None:
        self._plane = plane
        self._call_back = call_back
        self.node_id = node_id
        self.file = file
        self.counter: int | None = None
        """Where opens are counted; None: they come to us."""
        self.number = 0
        """The handle of those who open it."""
        self.pins = 0
        self.passes = False
        self.reads = False
        """Reads are answered too."""

    @property
    def opens(self) -> int:
        """Handles that are open now, beside our own."""
        return self._plane.count(self.counter) if self.counter is not None else 0

    def recall(self) -> None:
        """Requests come to us again."""
        self._call_back()


class Delegations:
    """All that are out. `len()`: how many."""

    def __init__(
        self,
        plane: DataPlane,
        namespace: Namespace,
        permissions: Permissions,
        handles: Handles,
        opened_files: OpenedFiles,
        cache: Cache,
        *,
        is_heard: Callable[[], bool],
        slot_opened: Callable[[int, int, int], bool],
    ) -> None:
        """`is_heard()`: somebody wants to hear of opens and reads now; its `news.wake` says that it may have changed.
        `slot_opened(node_id, thread_id, at_ns)` is told of all opens first: whether it is a slot's."""
        self._plane = plane
        self._namespace = namespace
        self._permissions = permissions
        self._handles = handles
        self._opened_files = opened_files
        self._cache = cache
        self._is_heard = is_heard
        self._slot_opened = slot_opened
        self._slices = Slices()
        self._out: dict[Node, Delegated] = {}
        """The oldest first."""
        self._reads: set[Node] = set()
        """Those of them whose reads are answered."""
        self._large: set[Node] = set()
        """And those of them that are large."""
        self._more_large = trio.Event()
        self._refused = 0

    def __len__(self) -> int:
        return len(self._out)

    def idle_backing_files(self) -> int:
        """Backing files that are kept for opens to come."""
        return sum(out.passes and not node.opens for node, out in self._out.items())

    # -- opens --------------------------------------------------------------------------------------------------------

    def offer(self, number: int) -> bool:
        """Nobody has this handle open any more: delegate the next opens of its node, if they may be.

        True: it is kept for them, under another number.
        """
        handle = self._handles.file(number)
        if not self._may(handle) or not self._has_room():
            return False
        node = handle.node
        number = self._opened_files.delegate(number)
        handle = self._handles.file(number)
        handle.counter = self._put(number, handle)
        if handle.counter is None:
            self._opened_files.let_go_unused(number)
            return True
        out = Delegated(self._plane, node.id, handle.file, partial(self.recall, node))
        out.counter, out.number, out.pins, out.passes = handle.counter, number, 1, handle.backing_id is not None
        self._add(node, out)
        return True

    def _may(self, handle: FileHandle) -> bool:
        node, file = handle.node, handle.file
        if not self._plane.runs or file.delegation is not None or node.delegation is not None or not file.complete:
            return False
        if node.stale or node.retired or node.opens or not node.lookups or node.gives_bytes:
            return False
        small = file.size <= min(SMALL_BYTES, file.chunk_bytes)  # of a large one each reader's reads have a pattern
        is_here = handle.backing_id is not None or (small and (node.pushed or not file.size))
        return is_here and self._permissions.all_may_open(node)

    def _has_room(self) -> bool:
        """Of more files than fit some are answered without us, and the others cost no more than they did."""
        if len(self._out) < _OUT_AT_MOST:
            return True
        self._refused += 1
        if self._refused % _TURNOVER == 0:
            self.recall(next(iter(self._out)))
        return False

    def _put(self, number: int, handle: FileHandle) -> int | None:
        valid_s = self._namespace.freshness.valid_s(handle.node.expires_s)
        node_id, backing_id = handle.node.id, handle.backing_id
        if backing_id is None:
            return self._plane.put_opens(node_id, number, size=handle.file.size, valid_s=valid_s, backing=None)
        place, stamp = self._cache.publisher.place(handle.file), handle.file.stamp
        if place is None or stamp is None or stamp.inode != handle.backing_inode:
            return None
        size = handle.file.size
        backing = Backing(backing_id, *place, stamp.inode, size, stamp.ctime_ns)
        return self._plane.put_opens(node_id, number, size=size, valid_s=valid_s, backing=backing)

    # -- reads --------------------------------------------------------------------------------------------------------

    def offer_reads(self, node: Node, file: StagedFile) -> None:
        """Bytes of `file` were in memory: delegate further reads of `node`, if they may be."""
        if node.delegation is not None or file.delegation is not None or not (file.durable and file.sound):
            return
        if not self._plane.runs or not node.is_held or self._is_heard():
            return
        if len(self._reads) >= _READS_AT_MOST:
            return

        def put(fd: int) -> bool:
            stamp = file.stamp
            staged = StagedObject(fd, stamp.inode, file.size, stamp.ctime_ns) if stamp is not None else None
            return staged is not None and self._plane.put_reads(node.id, staged)

        if self._cache.publisher.publish_nowait(file, put):
            out = Delegated(self._plane, node.id, file, partial(self.recall, node))
            out.reads = True
            self._reads.add(node)
            if file.size > SMALL_BYTES:
                self._large.add(node)
                self._more_large.set()
            self._add(node, out)

    async def wait_large_reads(self) -> None:
        """Until reads of any large file are answered without us."""
        if not self._large:
            self._more_large = trio.Event()
            await self._more_large.wait()

    def large_reads(self) -> list[tuple[Node, StagedFile]]:
        """The large files whose reads are answered without us."""
        return [(node, self._out[node].file) for node in self._large]

    def is_read(self, node: Node, file: StagedFile) -> bool:
        """Whether reads of `node` are still answered without us, from this file."""
        return node in self._reads and self._out[node].file is file

    # -- all ----------------------------------------------------------------------------------------------------------

    def _add(self, node: Node, out: Delegated) -> None:
        self._out[node] = out
        self._namespace.holds.delegated(node, out)
        out.file.delegation = out

    def recall(self, node: Node) -> None:
        """Requests for `node` come to us from now on; those of its handles that are open are ours to count."""
        out = self._out.pop(node, None)
        if out is None:
            return
        self._reads.discard(node)
        self._large.discard(node)
        out.file.delegation = None
        self._namespace.holds.delegated(node, None)
        if out.reads:
            self._plane.take_reads(out.node_id)
        if out.counter is not None:
            counts = self._plane.take_opens(out.node_id)
            self._namespace.holds.counted(node, counts.open, passed=out.passes)
            if counts.last_ns:
                _used(out.file, counts.last_ns)
            self._opened_files.let_go_unused(out.number)

    async def recall_all(self) -> None:
        """All requests come to us from now on. In slices: thousands take a second."""
        for number, node in enumerate(list(self._out)):
            self.recall(node)
            if number % _SLICE == 0:
                await trio.lowlevel.checkpoint()

    def _recall_reads(self) -> None:
        for node in list(self._reads):
            self.recall(node)

    # -- telling ------------------------------------------------------------------------------------------------------

    async def tell(self, served: Callable[[int, int, int], None]) -> None:
        """Tell of what was answered without us, for ever: of opens those who want to hear of them now; and `served` of
        threads, with how many reads and bytes they were answered."""
        heard = False
        self._plane.read_staged(self._cache.publisher.directory_fd)
        while True:
            heard_before, heard = heard, self._is_heard()
            if heard != heard_before:
                self._plane.read_staged(-1 if heard else self._cache.publisher.directory_fd)
            if heard and not heard_before:
                self._recall_reads()
            for reader in self._plane.take_served():
                served(*reader)
            opened, _lost = self._plane.take_events()
            for thread_id in {one.thread_id & _THREAD for one in opened}:
                served(thread_id, 0, 0)  # a reader too, if the kernel answers all of its reads
            # What was opened before is told to nobody.
            await self._slices.carry_out(self._told_of(opened, all_files=heard and heard_before))
            if len(opened) < self._plane.events_at_most:
                await trio.sleep(_TELL_S)  # many at a time
                await self._plane.news.wait()
            else:
                await trio.lowlevel.checkpoint()

    def _told_of(self, opened: Sequence[Opened], *, all_files: bool) -> Iterator[None]:
        """In steps: each is told to all who have given an order."""
        for number, (node_id, thread_id, object_id, at_ns) in enumerate(opened):
            if object_id:
                self._cache.updates.used(object_id)
            if not self._slot_opened(node_id, thread_id, at_ns) and all_files:
                self._tell_of(node_id, thread_id & _THREAD)
            if number % _TOLD_AT_ONCE == 0:
                yield

    def _tell_of(self, node_id: int, thread_id: int) -> None:
        try:
            node = self._namespace.node(node_id)
        except SourceError:
            return  # it has gone meanwhile
        # It may have been called back since.
        file = self._cache.files.get_nowait(node.version) if node.version is not None else None
        if file is not None:
            self._opened_files.told(node, file, thread_id)
            self._opened_files.told_closed(FileHandle(node, file))


def _used(file: StagedFile, when_ns: int) -> None:
    """It was opened at this `time.monotonic_ns()` last."""
    file.last_use_ns = max(file.last_use_ns, time.time_ns() - (time.monotonic_ns() - when_ns))
