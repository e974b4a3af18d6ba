"""Opens that the data plane answers: when they are delegated, and that each is called back before it would be wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from hfs.mountd.cache.objects.file import is_open
from hfs.mountd.cache.objects.file import recall as recall_file
from hfs.mountd.core.attributes import Version
from hfs.mountd.core.errors import VersionChanged
from hfs.mountd.kernel.plane import Served, StagedObject
from hfs.mountd.namespace import Node, pages_lost
from hfs.policies.geometry import Extent
from tests.support.examples import examples
from tests.support.fake_plane import FakePlane
from tests.support.fake_source import FakeSource
from tests.support.fake_staging import FakeStaging
from tests.support.journal_memory import Memory, memory_copy
from tests.support.read_parts import CHUNK, THREAD, Parts, daemon, read_once

SIZE = 5000


@asynccontextmanager
async def served(plane: FakePlane, *, ttl_s: float = 60.0) -> AsyncIterator[tuple[Parts, Node]]:
    """A daemon whose kernel has read the small file `f` once, and closed it."""
    source = FakeSource()
    source.file(b"f", 21, SIZE)
    async with daemon(source, push=True, plane=plane, ttl_s=ttl_s) as parts:
        parts.opening.close(await parts.open(b"f"))
        await trio.testing.wait_all_tasks_blocked()
        number = await parts.open(b"f")
        node = parts.handles.file(number).node
        parts.opening.close(number)
        yield parts, node


async def test_what_was_closed_is_opened_again_without_us() -> None:
    plane = FakePlane()
    async with served(plane) as (parts, node):
        handle = plane.open(node.id)
        assert handle is not None
        assert plane.open(node.id) == handle
        assert node.opens == 2
        assert plane.release(node.id, handle)
        assert node.opens == 1
        assert await parts.read(handle, 0, SIZE) == parts.source.content(b"f", Extent(0, SIZE))
        assert not plane.release(node.id, handle), "the kernel had lost pages: the next open pushes them again"
        parts.opening.close(handle)
        assert node.opens == 0


@pytest.mark.parametrize("still_open", [0, 1])
async def test_what_changes_is_called_back_first(still_open: int) -> None:
    plane = FakePlane()
    async with served(plane, ttl_s=1) as (parts, node):
        handles = [plane.open(node.id) for _ in range(still_open)]
        parts.source.file(b"f", 21, SIZE, time_ns=2)
        await trio.sleep(2)
        new = (await parts.namespace.lookups.child(parts.namespace.root, b"f")).node
        assert new is not node
        assert plane.open(node.id) is None
        assert (node.opens, parts.staging.pins) == (still_open, still_open)
        for handle in handles:
            assert handle is not None
            parts.opening.close(handle)
        assert (node.opens, parts.staging.pins) == (0, 0)


@pytest.mark.parametrize("why", ["bytes go", "pages go", "an open comes to us", "the kernel forgets it", "renewed"])
async def test_who_calls_it_back(why: str) -> None:
    plane = FakePlane()
    async with served(plane) as (parts, node):
        file = parts.handles.file(plane.open(node.id) or 0).file
        assert plane.release(node.id, next(iter(plane.entries.values())).handle)
        if why == "bytes go":
            recall_file(file)
        elif why == "pages go":
            pages_lost(node)
        elif why == "an open comes to us":
            await parts.opening.open(node, THREAD)
        elif why == "renewed":
            parts.namespace.tree.renew(node)
        else:
            parts.namespace.holds.forget(node.id, node.lookups)
        assert not plane.entries
        assert len(parts.delegations) == 0
        assert file.delegation is None
        assert parts.staging.pins == (1 if why == "an open comes to us" else 0)


async def test_an_open_without_us_is_a_use() -> None:
    plane = FakePlane()
    async with served(plane) as (parts, node):
        handle = plane.open(node.id)
        assert handle is not None
        file = parts.handles.file(handle).file
        file.last_use_ns = 0
        recall_file(file)
        assert file.last_use_ns > 0


async def test_a_full_table_costs_nothing() -> None:
    plane = FakePlane()
    plane.full = True
    async with served(plane) as (parts, node):
        assert (len(parts.delegations), node.opens, parts.staging.pins) == (0, 0, 0)
        assert not plane.counts
        parts.opening.close(await parts.open(b"f"))


# -- reads ------------------------------------------------------------------------------------------------------------


async def test_reads_of_what_is_staged_are_answered_without_us() -> None:
    plane = FakePlane()
    async with read_once(plane) as (parts, handle):
        assert plane.reads == {handle.node.id: StagedObject(-1, 7, 2 * CHUNK, 8)}
        assert not is_open(handle.file) or parts.staging.pins == 1, "it is pinned by its reader alone"
        recall_file(handle.file)
        assert not plane.reads
        assert parts.read_path.read_nowait(handle, 0, 10) is not None
        assert plane.reads, "and delegated again"
        handle.file.suspect()
        assert not plane.reads


async def test_a_close_ends_the_delegation_of_reads() -> None:
    plane = FakePlane()
    async with read_once(plane) as (parts, _handle):
        (number,) = parts.handles.file_numbers()
        parts.opening.close(number)
        assert not plane.reads
        assert (parts.staging.pins, len(parts.delegations)) == (0, 0)


async def test_who_wants_to_hear_of_reads_hears_of_them() -> None:
    plane = FakePlane()
    async with read_once(plane) as (parts, handle), trio.open_nursery() as nursery:
        heard: list[tuple[int, int, int]] = []
        nursery.start_soon(parts.delegations.tell, lambda *served: heard.append(served))
        plane.served.append(Served(THREAD, 3, 30))
        await trio.sleep(1)
        assert heard == [(THREAD, 3, 30)]
        assert plane.staged_in == parts.staging.directory_fd
        parts.recorder.start()
        await trio.sleep(1)
        assert not plane.reads
        assert plane.staged_in == -1, "reads of slots come to us too"
        assert parts.read_path.read_nowait(handle, 0, 10) is not None
        assert not plane.reads, "a recording goes on"
        nursery.cancel_scope.cancel()


async def test_an_open_is_told_of_though_its_delegation_was_called_back_since() -> None:
    plane = FakePlane()
    async with served(plane) as (parts, node), trio.open_nursery() as nursery:
        nursery.start_soon(parts.delegations.tell, lambda *_: None)
        recording = parts.recorder.start()
        await trio.sleep(1)
        assert plane.open(node.id) is not None
        pages_lost(node)
        touches, lost = await recording.take()
        assert ([touch.path for touch in touches], lost) == ([b"f"], 0)
        nursery.cancel_scope.cancel()


# -- a kernel, any events, any kills ----------------------------------------------------------------------------------

PATHS = (b"f", b"g")
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["open", "close", "close here", "read", "forget", "change", "doubt", "pages", "wait", "kill"]),
        st.integers(0, 1),
    ),
    min_size=12,
    max_size=40,
)


@settings(max_examples=examples(60), deadline=None)
@given(EVENTS)
def test_what_is_open_is_counted_whatever_happens(events: list[tuple[str, int]]) -> None:
    trio.run(_play, events, clock=trio.testing.MockClock(autojump_threshold=0), strict_exception_groups=True)


async def _play(events: list[tuple[str, int]]) -> None:
    source, plane, memory, chunks = FakeSource(), FakePlane(), Memory(), dict[tuple[Version, int], bytes]()
    for number, path in enumerate(PATHS):
        source.file(path, 21 + number, SIZE)
    opened: list[tuple[int, Node, Version, bytes]] = []
    """Handle, node, version and contents of each open of the kernel."""
    left, generation = list(events), 0
    while left or opened:
        journal, staging = memory.journal(generation), await _staged(chunks)
        generation += 1
        async with daemon(source, push=True, plane=plane, ttl_s=5, journal=journal, staging=staging) as parts:
            while left or opened:
                event, which = left.pop(0) if left else ("close", 0)
                if event == "kill":
                    break
                plane.now_s = trio.current_time()
                await _one(event, which, parts, plane, opened)
                for _, node, _, _ in opened:
                    known = parts.namespace.nodes.node(node.id)
                    assert known.opens == sum(other.id == node.id for _, other, _, _ in opened)
            await trio.testing.wait_all_tasks_blocked()
            memory, chunks = memory_copy(memory), staging.chunks
            if not (left or opened):
                await parts.delegations.recall_all()
                assert not staging.pins
    assert not plane.counts


async def _staged(chunks: dict[tuple[Version, int], bytes]) -> FakeStaging:
    """What a daemon finds that starts."""
    staging = FakeStaging(CHUNK)
    staging.chunks = dict(chunks)
    for version, index in chunks:
        file = await staging.files.get(version, b"")
        file.present.add(index)
        file.object_id = 1
    return staging


async def _one(
    event: str, which: int, parts: Parts, plane: FakePlane, opened: list[tuple[int, Node, Version, bytes]]
) -> None:
    path = PATHS[which]
    if event == "open":
        node = (await parts.namespace.lookups.child(parts.namespace.root, path)).node
        assert node is not None
        assert node.version is not None
        parts.namespace.holds.referenced(node)
        handle = plane.open(node.id)
        if handle is None:
            handle, _ = await parts.opening.open(node, THREAD)
        opened.append((handle, node, node.version, parts.source.content(path, Extent(0, SIZE))))
    elif event.startswith("close") and opened:
        handle, node, _, _ = opened.pop(which % len(opened))
        if event == "close here" or not plane.release(node.id, handle):
            parts.opening.close(handle)
    elif event == "read" and opened:
        handle, _, version, contents = opened[which % len(opened)]
        assert parts.handles.file(handle).node.version == version
        try:
            assert await parts.read(handle, 0, SIZE) == contents
        except VersionChanged:
            pass  # nobody has its bytes any more
    elif event == "change":
        before = parts.source.tree[path]
        parts.source.file(path, before.inode, before.size, before.mtime_ns + 1)
    elif event == "doubt":
        for file in list(parts.staging.known.values()):
            recall_file(file)
    elif event == "pages":
        for node in list(parts.namespace.nodes.files()):
            pages_lost(node)
    elif event == "forget":
        held = {node.id for _, node, _, _ in opened}
        for node in [node for node in parts.namespace.nodes.files() if node.id not in held][:1]:
            parts.namespace.holds.forget(node.id, node.lookups)
    else:
        await trio.sleep(3)
