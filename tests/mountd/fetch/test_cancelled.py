"""Each operation of a reader, given up at each of its checkpoints in turn: nothing of it stays, and others get theirs.

The readers of a hung source are killed where they wait (mountd/fuse/boundary.py), which may be anywhere.
"""

from __future__ import annotations

import errno
import threading
import typing
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from hfs.mountd.fuse import fuse  # before pyfuse3: it loads the extension in front of libfuse
from hfs.mountd.kernel import fastpath

# isort: split
import pyfuse3

from hfs.mountd.fetch.resolver import SparseFiles
from hfs.mountd.files.handles import DirectoryHandle
from hfs.mountd.files.readers import Readers
from hfs.mountd.fuse.boundary import Boundary, Interrupts, RequestQuota
from hfs.mountd.fuse.directories import DirectoryReplies, EntryReplies
from hfs.mountd.fuse.fast_handlers import FastHandlers
from hfs.mountd.fuse.fuse import KernelPageCache
from hfs.mountd.fuse.handlers import FileReplies, Handlers, XattrReplies
from hfs.mountd.namespace.answers import Answers
from hfs.mountd.namespace.permissions import Permissions, Xattrs
from hfs.mountd.source.as_user import SourceAsUser
from hfs.policies.geometry import Extent
from hfs.policies.prefetch.miss_policy import BLOCK_BYTES
from tests.support.fake_source import FakeSource
from tests.support.read_parts import CHUNK, Parts, daemon

SMALL, LARGE = 5000, 40 * CHUNK


class CancelAtStep(trio.abc.Instrument):
    """Cancels `scope` when its task stops for the n-th time, or, for odd steps, when it is about to go on after that:
    then the answer has come, and the next checkpoint raises.
    """

    def __init__(self, scope: trio.CancelScope, step: int) -> None:
        self.task = trio.lowlevel.current_task()
        self.scope, self.left = scope, step

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._count(task)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._count(task)

    def _count(self, task: trio.lowlevel.Task) -> None:
        if task is self.task:
            if self.left == 0:
                self.scope.cancel()
            self.left -= 1


async def open_small(parts: Parts) -> None:
    parts.opening.close(await parts.open(b"d/small"))


async def open_large(parts: Parts) -> None:
    parts.opening.close(await parts.open(b"large"))


async def look_up(parts: Parts) -> None:
    await parts.namespace.lookups.child(parts.namespace.root, b"d")


async def list_names(parts: Parts) -> None:
    root = parts.namespace.root
    await parts.namespace.lookups.children(root, list(await parts.namespace.listings.whole(root)))


def reading(*extents: Extent) -> Callable[[Parts], Awaitable[None]]:
    async def read(parts: Parts) -> None:
        number = await parts.open(b"large")
        try:
            for extent in extents:
                assert await parts.read(number, extent.start, extent.size) == parts.source.content(b"large", extent)
        finally:
            parts.opening.close(number)

    return read


OPERATIONS = {
    "open of a small file": open_small,
    "open of a large file": open_large,
    "look-up": look_up,
    "listing": list_names,
    "sequential read": reading(Extent(0, 100_000), Extent(100_000, 300_000)),
    "read alone": reading(Extent(20 * CHUNK + 5000, 20 * CHUNK + 9000)),
    "read across chunks": reading(Extent(CHUNK - 50, 2 * CHUNK + 50)),
}


@pytest.mark.parametrize("staged", [False, True], ids=["from the source", "staged, not in memory"])
@pytest.mark.parametrize("what", OPERATIONS)
async def test_given_up_at_any_checkpoint_an_operation_leaves_nothing(what: str, staged: bool) -> None:
    operation = OPERATIONS[what]
    for step in range(200):
        source = FakeSource()
        source.directory(b"d", 12)
        source.file(b"d/small", 13, SMALL)
        source.file(b"large", 14, LARGE)
        async with daemon(source, push=True, workers=2) as parts:
            parts.staging.would_block = staged
            if staged:
                await operation(parts)
                await trio.sleep(100)  # past the time-to-live
            with trio.CancelScope() as scope:
                cancel = CancelAtStep(scope, step)
                trio.lowlevel.add_instrument(cancel)
                try:
                    await operation(parts)
                finally:
                    trio.lowlevel.remove_instrument(cancel)
            await trio.sleep(10)  # what goes on for others comes to its end
            assert parts.handles.statistics() == {"files": 0, "directories": 0}
            assert (parts.staging.pins, parts.buffers.waiting) == (0, 0)
            # Blocks of what was read alone stay for their neighbours.
            assert parts.buffers.used_bytes in (
                (0,) if what == "sequential read" else (0, BLOCK_BYTES, 2 * BLOCK_BYTES)
            )
            assert not any(node.opens or node.holds or node.passed for node in parts.namespace.nodes.files())
            await operation(parts)  # for who comes next
        if not scope.cancel_called:
            break
    assert not scope.cancel_called
    assert step > 1, "it never waited: nothing was tested"


async def test_a_listing_that_fails_half_way_goes_on_with_names_and_loses_no_lookup_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error in place of entries that were collected would lose their counts, which the kernel never gave back."""
    source = FakeSource()
    for i in range(700):
        source.file(b"%03d" % i, 100 + i, 1)
    whole: list[int] = []
    names: list[int] = []

    def reply(_token: object, name: bytes, _entry: object, next_id: int) -> bool:
        whole.extend([next_id] if name else [])
        return True

    monkeypatch.setattr(pyfuse3, "readdir_reply", reply)
    monkeypatch.setattr(
        fastpath, "answer_with_names", lambda _r, _s, begin, end, _next, **_how: names.append(end - begin)
    )
    monkeypatch.setattr(fastpath, "names_answered", lambda: names[-1])
    async with daemon(source) as parts, trio.open_nursery() as nursery:
        handlers = _handlers(parts, nursery)
        number = parts.handles.add_directory(DirectoryHandle(parts.namespace.root, whole=True))
        token = typing.cast("pyfuse3.ReaddirToken", None)
        await handlers.readdir(pyfuse3.FileHandleT(number), 0, token)
        assert names == [2], "the dots"
        source.error = errno.EACCES
        await handlers.readdir(pyfuse3.FileHandleT(number), whole[-1], token)
        shown_whole = whole[-1] - 2  # the dots are no references
        assert sum(node.lookups for node in parts.namespace.nodes.files()) == shown_whole < 700
        assert sum(names) == 2 + 700 - shown_whole


async def test_a_killed_reader_leaves_its_fetch_to_the_others() -> None:
    source = FakeSource()
    source.file(b"f", 11, CHUNK)
    source.delay_s = 5
    async with daemon(source) as parts:
        number = await parts.open(b"f")
        with trio.move_on_after(1):
            await parts.read(number, 0, 100)
        assert await parts.read(number, 50, 100) == source.content(b"f", Extent(50, 150))
        assert len(source.reads) == 1


@pytest.fixture
def pushing(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Semaphore, threading.Event]:
    """(the kernel has begun to take bytes, it may go on)"""
    begun, go = threading.Semaphore(0), threading.Event()

    def store(number: int, offset: int, data: memoryview) -> None:
        begun.release()
        assert go.wait(30)

    monkeypatch.setattr(fuse, "_store", store)
    return begun, go


async def test_a_node_is_held_as_long_as_a_push_to_it_goes_on(
    pushing: tuple[threading.Semaphore, threading.Event], real_clock: None
) -> None:
    """Else its number could be another file's when the bytes arrive; whoever waited for the push may have left."""
    begun, go = pushing
    source = FakeSource()
    source.file(b"f", 11, SMALL)
    async with daemon(source) as parts:
        page_cache = _page_cache(parts)
        node = await parts.namespace.lookups.resolve(b"f")
        parts.namespace.holds.referenced(node)
        data = memoryview(bytes(SMALL))
        async with trio.open_nursery() as readers:
            for _ in range(3):  # two push, the third has no thread
                readers.start_soon(page_cache.push, node, 0, data)
            for _ in range(2):
                await trio.to_thread.run_sync(begun.acquire)
            assert node.holds == 3
            readers.cancel_scope.cancel()
        assert node.holds == 2
        parts.namespace.holds.forget(node.id, 1)
        assert parts.namespace.nodes.node(node.id) is node
        go.set()
        while node.holds:
            await trio.sleep(0.001)
        assert len(parts.namespace.nodes) == 1


async def test_without_a_kill_a_push_holds_its_node_no_longer(
    pushing: tuple[threading.Semaphore, threading.Event], real_clock: None
) -> None:
    pushing[1].set()
    source = FakeSource()
    source.file(b"f", 11, SMALL)
    async with daemon(source) as parts:
        page_cache = _page_cache(parts)
        node = await parts.namespace.lookups.resolve(b"f")
        parts.namespace.holds.referenced(node)
        assert await page_cache.push(node, 0, memoryview(bytes(SMALL)))
        assert node.holds == 0


def _handlers(parts: Parts, nursery: trio.Nursery) -> Handlers:
    """The adapter without a mount."""
    source: typing.Any = parts.source
    namespace, handles, opening, metrics = parts.namespace, parts.handles, parts.opening, parts.metrics
    answers = Answers(namespace.silence, trio.current_time, ttl_s=60)
    permissions = Permissions(source, SourceAsUser(-1, source.threads), answers, namespace.root, metrics, others=False)
    xattrs = Xattrs(source, answers, trio.current_time, ttl_s=60)
    interrupts, readers = Interrupts(nursery, metrics), Readers()
    quota = RequestQuota(interrupts, metrics)
    boundary = Boundary(interrupts, quota, metrics)
    sparse_files = SparseFiles(source, namespace, nursery)
    tunnels: typing.Any = None  # nobody asks for one, nor for overlays
    entries = EntryReplies(namespace, permissions, opening)
    return Handlers(
        boundary,
        FastHandlers(parts.read_path, opening, namespace, handles, readers, permissions, tunnels, quota),
        entries,
        DirectoryReplies(namespace, permissions, handles, entries),
        FileReplies(namespace, permissions, opening, handles, parts.read_path, readers, sparse_files, boundary),
        XattrReplies(namespace, permissions, xattrs, lambda node, name: None, tunnels, lambda: None, metrics),
        source,
    )


def _page_cache(parts: Parts) -> KernelPageCache:
    loop = trio.lowlevel.current_trio_token()
    return KernelPageCache(parts.namespace, parts.metrics, trio.to_thread.run_sync, loop.run_sync_soon)
