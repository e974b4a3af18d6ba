"""Delegations: opens of nodes that the data plane answers by itself, until they are called back.

A file that nobody has open any more, and whose next open would be answered as the last one was, is delegated: until its
attributes are past their time, opens and closes of it cost no Python. What they are answered by may change at any
moment, so whoever changes it calls them back first: `namespace` where a version, a name or the pages change
(`Node.delegation`), `cache` where bytes go or are in doubt (`StagedFile.recall`), an open that comes to us all the
same. Meanwhile the handle is kept, with its pin and its backing file, also while nobody has it open.

Who wants to hear of opens (plans, recordings) is told of them a moment later, by `tell`. Not delegated are files that
some users have to be asked for. Event loop only.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import trio

from mountd.base.errors import SourceError
from mountd.cache import Cache, StagedFile
from mountd.files.handles import FileHandle, Handles
from mountd.files.opened_files import OpenedFiles
from mountd.kernel import Backing, DataPlane
from mountd.namespace import Namespace, Node, Permissions
from policies.iomode import SMALL_BYTES

_OUT_AT_MOST = 32_768
"""Half of the files that the journal notes; each takes a kilobyte, 40 MB in all."""

_BACKED_AT_MOST = 512
"""Each holds a descriptor of its object, and one of the kernel's backing files."""

_TELL_S = 0.02
"""How late those who want to hear of opens do: a plan looks some seconds ahead."""

_IDLE_TELL_S = 0.5
"""How often it is looked whether there are any."""


class DelegatedOpens:
    """Opens of one node; implements `base.delegation.Delegation`."""

    __slots__ = ("_call_back", "_plane", "_slot", "node_id", "number", "passes")

    def __init__(
        self, plane: DataPlane, slot: int, node_id: int, number: int, *, passes: bool, call_back: Callable[[], None]
    ) -> None:
        self._plane = plane
        self._slot = slot
        self.node_id = node_id
        self.number = number
        self.passes = passes
        self._call_back = call_back

    @property
    def opens(self) -> int:
        """Handles that are open now, beside our own."""
        return self._plane.count(self._slot)

    def recall(self) -> None:
        """Opens come to us again."""
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
    ) -> None:
        """`is_heard()`: somebody wants to hear of opens now."""
        self._plane = plane
        self._namespace = namespace
        self._permissions = permissions
        self._handles = handles
        self._opened_files = opened_files
        self._cache = cache
        self._is_heard = is_heard
        self._out: OrderedDict[Node, DelegatedOpens] = OrderedDict()
        self._backed: OrderedDict[Node, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._out)

    def idle_backing_files(self) -> int:
        """Backing files that are kept for opens to come."""
        return sum(not node.opens for node in self._backed)

    def offer(self, number: int) -> bool:
        """Nobody has this handle open any more: delegate the next opens of its node, if they may be.

        True: it is kept for them, under another number.
        """
        handle = self._handles.file(number)
        if not self._may(handle):
            return False
        node, file = handle.node, handle.file
        number = self._opened_files.delegate(number)
        handle = self._handles.file(number)
        handle.slot = self._put(number, handle)
        if handle.slot is None:
            self._opened_files.let_go_unused(number)
            return True
        passes = handle.backing_id is not None
        call_back = partial(self.recall, node)
        out = DelegatedOpens(self._plane, handle.slot, node.id, number, passes=passes, call_back=call_back)
        self._out[node] = out
        self._namespace.holds.delegated(node, out)
        file.delegation = out
        if passes:
            self._backed[node] = None
        self._bound()
        return True

    def _may(self, handle: FileHandle) -> bool:
        node, file = handle.node, handle.file
        if not self._plane.runs or file.delegation is not None or not file.complete:
            return False
        if node.stale or node.retired or node.opens or not node.lookups:
            return False
        small = file.size <= min(SMALL_BYTES, file.chunk_bytes)  # of a large one each reader's reads have a pattern
        is_here = handle.backing_id is not None or (small and (node.pushed or not file.size))
        return is_here and self._permissions.all_may_open(node)

    def _put(self, number: int, handle: FileHandle) -> int | None:
        valid_s = self._namespace.freshness.valid_s(handle.node.expires_s)
        if handle.backing_id is None:
            return self._plane.put_opens(handle.node.id, number, valid_s=valid_s, backing=None)

        def with_object(object_fd: int) -> int | None:
            stamp = handle.file.stamp
            if stamp is None or handle.backing_id is None or stamp.inode != handle.backing_inode:
                return None
            backing = Backing(handle.backing_id, object_fd, stamp.inode, handle.file.size, stamp.ctime_ns)
            return self._plane.put_opens(handle.node.id, number, valid_s=valid_s, backing=backing)

        return self._cache.lender.lend_nowait(handle.file, with_object)

    def _bound(self) -> None:
        if len(self._backed) > _BACKED_AT_MOST:
            self.recall(next(iter(self._backed)))
        if len(self._out) > _OUT_AT_MOST:
            self.recall(next(iter(self._out)))

    def recall(self, node: Node) -> None:
        """Opens of `node` come to us from now on; those of its handles that are open are ours to count."""
        out = self._out.pop(node, None)
        if out is None:
            return
        self._backed.pop(node, None)
        handle = self._handles.file(out.number)
        handle.file.delegation = None
        counts = self._plane.take_opens(out.node_id)
        self._namespace.holds.delegated(node, None)
        self._namespace.holds.counted(node, counts.open, passed=out.passes)
        if counts.last_ns:
            _used(handle.file, counts.last_ns)
        self._opened_files.let_go_unused(out.number)

    def recall_all(self) -> None:
        """All opens come to us from now on."""
        for node in list(self._out):
            self.recall(node)

    async def tell(self) -> None:
        """Tell of opens that were answered without us, for ever. Those before anybody listened are told to nobody."""
        heard = False
        while True:
            heard_before, heard = heard, self._is_heard()
            opened, _lost = self._plane.take_events()
            if heard and heard_before:
                for node_id, thread_id in opened:
                    self._tell_of(node_id, thread_id)
            if len(opened) < self._plane.events_at_most:
                await trio.sleep(_TELL_S if heard else _IDLE_TELL_S)
            else:
                await trio.lowlevel.checkpoint()

    def _tell_of(self, node_id: int, thread_id: int) -> None:
        try:
            node = self._namespace.nodes.node(node_id)
        except SourceError:
            return  # it has gone meanwhile
        out = self._out.get(node)
        if out is not None:
            handle = self._handles.file(out.number)
            self._opened_files.told(node, handle.file, thread_id)
            self._opened_files.told_closed(handle)


def _used(file: StagedFile, when_ns: int) -> None:
    """It was opened at this `time.monotonic_ns()` last."""
    file.last_use_ns = max(file.last_use_ns, time.time_ns() - (time.monotonic_ns() - when_ns))
