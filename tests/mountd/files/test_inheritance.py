"""A daemon that follows one that was killed: what the kernel holds goes on, and no node id ever means another version.

`Mount` is what outlives a daemon: the source, the cache, the journal's memory. `Mount.daemon` is the next daemon on it,
which finds what was noted at the moment of the kill. The last test plays a kernel against random events and kills.
"""

from __future__ import annotations

import errno
import math
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from hfs.mountd.core.attributes import Version
from hfs.mountd.core.errors import HfsError, SourceError, VersionChanged
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.files.handles import DirectoryHandle
from hfs.mountd.namespace.journal.facts import NodeFact
from hfs.mountd.namespace.journal.journal import Journal
from hfs.mountd.namespace.namespace import open_namespace
from hfs.mountd.namespace.nodes.node import Node
from hfs.policies.geometry import Extent
from tests.support.fake_source import ID, FakeSource, attributes
from tests.support.fake_staging import FakeStaging
from tests.support.journal_memory import Memory, memory_copy
from tests.support.read_parts import CHUNK, Parts, daemon

SIZE = 5000
RESENT = 1 << 63


class Mount:
    """See the file's story."""

    def __init__(self, ttl_s: float = 0.0) -> None:
        self.source = FakeSource()
        self.source.directory(b"d", 20)
        self.source.file(b"d/f", 21, SIZE)
        self.source.file(b"g", 22, SIZE)
        self.ttl_s = ttl_s
        self.memory = Memory()
        self.staging = FakeStaging(CHUNK)
        self.generation = -1

    @asynccontextmanager
    async def daemon(self) -> AsyncIterator[Parts]:
        """The next one. What it does after the kill, as it is taken down here, is not noted."""
        self.generation += 1
        journal = self.memory.journal(self.generation)
        staging = FakeStaging(CHUNK)
        staging.chunks = dict(self.staging.chunks)
        for version, index in staging.chunks:
            file = await staging.files.get(version, b"")
            file.present.add(index)
            file.object_id = 1
        self.staging = staging
        async with daemon(self.source, ttl_s=self.ttl_s, journal=journal, staging=staging) as parts:
            try:
                yield parts
            finally:
                self.memory = memory_copy(self.memory)

    def change(self, path: bytes) -> None:
        """Rewritten in place: same inode, same size."""
        before = self.source.tree[path]
        self.source.file(path, before.inode, before.size, before.mtime_ns + 1)


async def told(parts: Parts, path: bytes) -> Node:
    """The kernel looks each name of the path up."""
    node = parts.namespace.root
    for name in path.split(b"/"):
        found = (await parts.namespace.lookups.child(node, name)).node
        assert found is not None
        parts.namespace.holds.referenced(found)
        node = found
    return node


async def test_what_has_not_changed_keeps_its_node() -> None:
    mount = Mount()
    async with mount.daemon() as parts:
        await told(parts, b"d")
        number = await parts.open(b"d/f")
        ids = [(await told(parts, path)).id for path in (b"d", b"d/f")]
    async with mount.daemon() as parts:
        assert [(await told(parts, path)).id for path in (b"d", b"d/f")] == ids
        assert await parts.read(number, 0, 10) == mount.source.content(b"d/f", Extent(0, 10))
        assert (await told(parts, b"g")).id >= 1 << 62, "what was not noted gets a number never given out"


async def test_a_file_that_has_changed_gets_another_node_and_the_old_one_lives_on_for_its_handles() -> None:
    mount = Mount()
    async with mount.daemon() as parts:
        number = await parts.open(b"d/f")
        await parts.read(number, 0, 10)  # fetched whole
        await trio.testing.wait_all_tasks_blocked()
        old = (await told(parts, b"d/f")).id
        before = mount.source.content(b"d/f", Extent(0, SIZE))
    mount.change(b"d/f")
    async with mount.daemon() as parts:
        new = await told(parts, b"d/f")
        assert new.id not in (old, 21)
        assert parts.namespace.nodes.node(old).stale, "what is staged of it goes when it is closed"
        assert parts.metrics["version_changes"] == 1
        assert await parts.read(number, 0, SIZE) == before
        with pytest.raises(VersionChanged):
            await parts.opening.open(parts.namespace.nodes.node(old), 1)
        again = await parts.open(b"d/f")
        assert await parts.read(again, 0, SIZE) == mount.source.content(b"d/f", Extent(0, SIZE))


async def test_what_was_not_noted_is_stale() -> None:
    mount = Mount()
    async with mount.daemon() as parts:
        node = await told(parts, b"g")
    mount.memory = Memory()
    async with mount.daemon() as parts:
        for ask in (lambda: parts.namespace.nodes.node(node.id), lambda: parts.handles.file(1)):
            with pytest.raises(SourceError) as caught:
                ask()
            assert caught.value.errno == errno.ESTALE
        parts.opening.close(1)  # its RELEASE comes all the same
        parts.namespace.holds.forget(node.id, 1)


async def test_a_source_that_is_silent_does_not_hold_what_was_known() -> None:
    """Not even the start: the root is noted too."""
    mount = Mount()
    async with mount.daemon() as parts:
        await parts.open(b"d/f")
        node = (await told(parts, b"d/f")).id
    mount.source.hang = True
    async with mount.daemon() as parts:
        assert trio.current_time() < 1
        assert (await told(parts, b"d/f")).id == node
        assert trio.current_time() < 6


async def test_a_close_is_told_to_the_next_daemon() -> None:
    mount = Mount()
    async with mount.daemon() as parts:
        number = await parts.open(b"d/f")
    async with mount.daemon() as parts:
        node = parts.handles.file(number).node
        assert (node.opens, parts.staging.pins) == (1, 1)
        parts.opening.close(number)
        assert (node.opens, parts.staging.pins) == (0, 0)
    async with mount.daemon() as parts:
        assert parts.handles.statistics() == {"files": 0, "directories": 0}


async def test_a_file_passed_through_keeps_its_backing_file_until_the_last_close() -> None:
    mount = Mount()
    async with mount.daemon() as parts:
        number = await parts.open(b"d/f")
        node = parts.handles.file(number).node
    mount.memory.journal().handles.opened(number, node.id, 7, 99, unique=0)  # as if it had been passed
    mount.memory = memory_copy(mount.memory)
    async with mount.daemon() as parts:
        node = parts.handles.file(number).node
        file = parts.handles.file(number).file
        assert (node.passed, file.passed) == (1, 1), "no hole is made in it"
        parts.passthrough.on = True
        file.committed.add(0)
        file.present.add(0)
        file.object_id = 1
        other, backing_id = await parts.opening.open(node, 1)
        assert backing_id == 7
        parts.opening.close(number)
        assert parts.passthrough.backings == {file: 7}
        parts.opening.close(other)
        assert not parts.passthrough.backings
        assert file.passed == 0


async def test_an_open_that_was_noted_and_not_answered_is_answered_with_the_same_handle() -> None:
    """The kernel sends the request again under its old number; a handle more would never be closed."""
    mount = Mount()
    async with mount.daemon() as parts:
        node = await told(parts, b"d/f")
        number, _ = await parts.opening.open(node, 1, 88)
        directory = await told(parts, b"d")
        listed = parts.handles.add_directory(DirectoryHandle(directory, unique=90))
    async with mount.daemon() as parts:
        node = parts.namespace.nodes.node(node.id)
        assert parts.handles.answered(90 | RESENT) == listed
        assert await parts.opening.open(node, 1, 88 | RESENT) == (number, None)
        other, _ = await parts.opening.open(node, 1, 92 | RESENT)  # nothing was noted of it
        third, _ = await parts.opening.open(node, 1, 88)  # another request, long after
        assert len({number, other, third}) == 3


async def test_an_inherited_node_is_not_let_go_by_its_count() -> None:
    """Of the look-ups of an earlier daemon the kernel may give back one, while it holds the others."""
    mount = Mount()
    async with mount.daemon() as parts:
        for _ in range(3):
            node_id = (await told(parts, b"d/f")).id
        parts.opening.close(await parts.open(b"d/f"))
    async with mount.daemon() as parts:
        parts.namespace.holds.forget(node_id, 1)
        await told(parts, b"d/f")
        parts.namespace.holds.forget(node_id, 2)
        parts.namespace.holds.forget(20, 9)
        await parts.namespace.names.sweep()
        assert [parts.namespace.nodes.node(number).path for number in (node_id, 20)] == [b"d/f", b"d"]
        fresh = (await told(parts, b"g")).id
        parts.namespace.holds.forget(fresh, 1)
        with pytest.raises(SourceError):
            parts.namespace.nodes.node(fresh)
    async with mount.daemon() as parts:
        assert parts.namespace.nodes.node(node_id).path == b"d/f"


async def test_two_versions_under_one_name_are_asked_for() -> None:
    """Which of them the name leads to is not noted."""
    mount = Mount()
    async with mount.daemon() as parts:
        old = await parts.open(b"d/f")
        await parts.read(old, 0, 10)
        mount.change(b"d/f")
        new = await parts.open(b"d/f")
        ids = [parts.handles.file(number).node.id for number in (old, new)]
    async with mount.daemon() as parts:
        with pytest.raises(VersionChanged):
            await parts.opening.open(parts.namespace.nodes.node(ids[0]), 1)
        assert (await told(parts, b"d/f")).id == ids[1]
        await parts.opening.open(parts.namespace.nodes.node(ids[1]), 1)
        with pytest.raises(VersionChanged):
            await parts.opening.open(parts.namespace.nodes.node(ids[0]), 1)


@pytest.mark.parametrize("newest_first", [False, True])
async def test_which_of_two_versions_was_noted_first_does_not_matter(*, newest_first: bool) -> None:
    found = [attributes(21, SIZE, time_ns=time_ns) for time_ns in (1, 2)]
    facts = [NodeFact(30 + n, 1, b"f", of, of.version(ID)) for n, of in enumerate(found)]
    root = NodeFact(1, 0, b"", attributes(2, mode=stat.S_IFDIR | 0o755), None)
    source = FakeSource()
    source.file(b"f", 21, SIZE, time_ns=2)
    async with trio.open_nursery() as nursery:
        inherited = [root, *(reversed(facts) if newest_first else facts)]
        namespace = await open_namespace(
            source,  # type: ignore[arg-type]  # a fake
            Metrics(),
            nursery,
            ttl_s=60,
            strict=False,
            journal=Journal(None, 1),
            inherited=inherited,
        )
        old = namespace.nodes.node(30)
        namespace.holds.opened(old)  # with a handle it would go on being what it was
        with pytest.raises(VersionChanged):
            await namespace.freshness.fresh(old)
        assert (await namespace.lookups.child(namespace.root, b"f")).node is namespace.nodes.node(31)
        await namespace.freshness.fresh(namespace.nodes.node(31))


async def test_of_two_nodes_of_one_version_the_name_leads_to_the_later() -> None:
    mount = Mount(ttl_s=60)
    async with mount.daemon() as parts:
        number = await parts.open(b"d/f")
        old = parts.handles.file(number).node
        fresh = parts.namespace.tree.renew(old)
        assert fresh is not None
        assert await told(parts, b"d/f") is fresh
        await parts.opening.open(fresh, 1)
    async with mount.daemon() as parts:
        assert (await told(parts, b"d/f")).id == fresh.id
        assert parts.namespace.nodes.node(old.id).retired
        assert parts.namespace.tree.renew(parts.namespace.nodes.node(old.id)) is parts.namespace.nodes.node(fresh.id)


async def test_a_renamed_directory_is_where_it_was_seen_last() -> None:
    mount = Mount()
    async with mount.daemon() as parts:
        directory = await told(parts, b"d")
        mount.source.tree[b"e"] = mount.source.tree.pop(b"d")
        mount.source.tree[b"e/f"] = mount.source.tree.pop(b"d/f")
        await parts.namespace.lookups.child(parts.namespace.root, b"e")  # asked for ahead; the kernel is told nothing
    async with mount.daemon() as parts:
        found = (await parts.namespace.lookups.child(parts.namespace.nodes.node(directory.id), b"f")).node
        assert found is not None
        assert found.path == b"e/f"


# -- a kernel, any events, any kills ----------------------------------------------------------------------------------

PATHS = (b"d/f", b"g")
EVENTS = st.lists(
    st.tuples(st.sampled_from(["open", "close", "read", "look", "forget", "change", "kill"]), st.integers(0, 1)),
    min_size=12,
    max_size=40,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(EVENTS, st.integers(0, 1))
def test_a_kernel_never_sees_another_version_under_a_node_or_a_handle(events: list[tuple[str, int]], lost: int) -> None:
    """`lost`: FORGETs are lost in a kill, or come afterwards."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(_play, events, bool(lost), clock=clock, strict_exception_groups=True)


async def _play(events: list[tuple[str, int]], lost: bool) -> None:
    mount = Mount()
    nodes: dict[int, tuple[Version, int]] = {}
    """What the kernel knows: version, look-ups."""
    handles: dict[int, tuple[int, Version, bytes]] = {}
    """Handle -> node id, version, contents."""
    left = list(events)
    while left:
        async with mount.daemon() as parts:
            while left:
                event, which = left.pop(0)
                path = PATHS[which]
                if event == "kill":
                    break
                if event == "change":
                    mount.change(path)
                elif event in ("look", "open"):
                    node = await told(parts, path)
                    assert node.version is not None
                    version, count = nodes.get(node.id, (node.version, 0))
                    assert version == node.version, "a node id stands for two versions"
                    nodes[node.id] = version, count + 1
                    if event == "open":
                        number, _ = await parts.opening.open(node, 1)
                        assert number not in handles
                        handles[number] = node.id, version, mount.source.content(path, Extent(0, SIZE))
                elif event == "close" and handles:
                    number = sorted(handles)[which % len(handles)]
                    parts.opening.close(number)
                    del handles[number]
                elif event == "read" and handles:
                    number = sorted(handles)[which % len(handles)]
                    node_id, version, contents = handles[number]
                    assert parts.handles.file(number).node.id == node_id
                    try:
                        assert await parts.read(number, 0, SIZE) == contents
                    except VersionChanged:
                        pass  # nobody has its bytes any more
                elif event == "forget":
                    free = [node_id for node_id in nodes if node_id not in [held[0] for held in handles.values()]]
                    if free:
                        node_id = sorted(free)[which % len(free)]
                        _, count = nodes.pop(node_id)
                        if not (lost and left and left[0][0] == "kill"):
                            parts.namespace.holds.forget(node_id, count)
            await trio.testing.wait_all_tasks_blocked()
    async with mount.daemon() as parts:
        assert parts.handles.statistics()["files"] == len(handles)
        for number, (node_id, version, _) in handles.items():
            node = parts.handles.file(number).node
            assert (node.id, node.version) == (node_id, version)
            assert node.expires_s == -math.inf
        for node_id, (version, _) in nodes.items():
            try:
                assert parts.namespace.nodes.node(node_id).version == version
            except HfsError:
                assert node_id not in [held[0] for held in handles.values()]
