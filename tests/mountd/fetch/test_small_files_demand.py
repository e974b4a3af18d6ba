"""A reader's look-up brings the small file that it is about to open, in one call of the source and once."""

from __future__ import annotations

import errno
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from hfs.mountd.base.errors import SourceError, SourceTimeout
from hfs.mountd.namespace.nodes.node import Dentry, Node
from hfs.policies.geometry import Extent
from tests.support.fake_source import FakeSource, attributes
from tests.support.small_parts import CHUNK, SIZE, Parts, names, parts_of, tree

READER = 7
HABIT = 2
"""Files that a thread has to open before it is believed."""


async def _nothing_to_wait_for(_directory: Node, _name: bytes) -> None:
    pass


class Desk:
    """`SmallDemand` over the parts, and a thread that opens what it looks up."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.demand = parts.fetch.small_demand
        self.wait_fetched = _nothing_to_wait_for

    async def look_up(self, path: bytes, thread_id: int = READER) -> Dentry:
        head, _, name = path.rpartition(b"/")
        directory = await self.parts.namespace.lookups.resolve(head)
        return await self.demand.look_up(directory, name, thread_id, self.wait_fetched)

    async def opens(self, path: bytes, thread_id: int = READER) -> None:
        node = (await self.look_up(path, thread_id)).node
        assert node is not None
        self.demand.opened(node, thread_id)

    def data(self, path: bytes) -> bytes | None:
        """What is in memory for an open."""
        version = self.parts.source.tree[path].version(self.parts.source.source_id)
        held = self.parts.held(version)
        staged = self.parts.staging.chunks.get((version, 0))
        return staged if held is None else bytes(held)

    def is_here(self, path: bytes) -> bool:
        size = self.parts.source.tree[path].size
        return self.data(path) == self.parts.source.content(path, Extent(0, size))

    def calls(self) -> list[tuple[str, bytes]]:
        """What has reached the source, since asked last."""
        found, self.parts.source.calls = self.parts.source.calls, []
        return found


@asynccontextmanager
async def desk_of(source: FakeSource, *, ttl_s: float = 60.0) -> AsyncIterator[Desk]:
    """A desk, and `READER` is believed."""
    for i in range(HABIT):
        source.file(b"h%d" % i, 10 + i, SIZE)
    async with parts_of(source, ttl_s=ttl_s) as parts:
        desk = Desk(parts)
        await parts.namespace.lookups.resolve(b"d")
        for i in range(HABIT):
            await desk.opens(b"h%d" % i)
        desk.calls()
        yield desk
        await trio.testing.wait_all_tasks_blocked()
        parts.rest()


async def test_the_look_up_of_a_reader_brings_the_file() -> None:
    async with desk_of(tree(3)) as desk:
        for name in names(3):
            await desk.opens(name)
            assert desk.is_here(name)
        assert desk.calls() == [("read small", name) for name in names(3)]
        await trio.testing.wait_all_tasks_blocked()
        assert all(map(desk.parts.is_right, names(3)))


async def test_who_only_looks_has_nothing_read() -> None:
    async with desk_of(tree(3)) as desk:
        for name in names(3):
            assert (await desk.look_up(name, 8)).node is not None
        assert [what for what, _ in desk.calls()] == ["stat"] * 3


async def test_what_the_data_plane_fetches_since_its_directory_was_lent_is_not_read_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with desk_of(tree(1)) as desk:
        leaves = desk.parts.namespace.leaves
        waits = 0

        async def wait_fetched(directory: Node, _name: bytes) -> None:
            nonlocal waits
            waits += 1
            if waits == 1:  # the look-up is on its way, and a hint has the directory lent and the file fetched
                directory.lent = True
                monkeypatch.setattr(leaves, "claim", lambda _directory, names: list(names))
            else:
                directory.lent = False

        desk.wait_fetched = wait_fetched
        assert (await desk.look_up(b"d/0")).node is not None
        assert waits == 2
        assert desk.calls() == [("stat", b"d/0")], "its bytes are the data plane's"


def _changes(source: FakeSource) -> Callable[[], object]:
    return lambda: source.file(b"d/0", 100, SIZE, time_ns=9)


async def test_what_changes_meanwhile_is_looked_up_the_usual_way() -> None:
    source = tree(1)
    async with desk_of(source) as desk:
        source.small_faults[b"d/0"] = _changes(source)
        node = (await desk.look_up(b"d/0")).node
        assert node is not None
        assert node.version == source.tree[b"d/0"].version(source.source_id)
        assert desk.calls() == [("read small", b"d/0"), ("stat", b"d/0")]
        assert await desk.parts.demand(b"d/0") == source.content(b"d/0", Extent(0, SIZE))


async def test_what_is_no_small_file_is_what_it_is() -> None:
    source = tree(0)
    source.directory(b"d/sub", 50)
    source.file(b"d/large", 51, CHUNK + 1)
    source.file(b"d/empty", 52, 0)
    source.tree[b"d/fifo"] = attributes(53, mode=stat.S_IFIFO | 0o644)
    async with desk_of(source) as desk:
        for name in (b"d/sub", b"d/large", b"d/empty", b"d/fifo"):
            node = (await desk.look_up(name)).node
            assert node is not None
            assert node.attributes == source.tree[name]
        assert ("stat", b"d/sub") not in desk.calls()  # its open has said what it is
        assert (
            desk.parts.staging.chunks.keys()
            == {(source.tree[b"h%d" % i].version(source.source_id), 0) for i in range(HABIT)}
            or not desk.parts.staging.chunks
        )
        assert (await desk.look_up(b"d/none")).node is None
        source.error = errno.EACCES
        with pytest.raises(SourceError) as caught:
            await desk.look_up(b"d/refused")
        assert caught.value.errno == errno.EACCES
        source.error = None


async def test_a_file_that_comes_with_a_batch_is_waited_for_and_read_once() -> None:
    async with desk_of(tree(16)) as desk:
        desk.parts.source.delay_s = 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(desk.parts.stage, *names(16))
            await trio.sleep(2.5)  # the third is being read
            start_s = trio.current_time()
            await desk.opens(b"d/2")
            assert trio.current_time() - start_s == pytest.approx(0.5)
            assert desk.is_here(b"d/2")
            await desk.opens(b"d/9")  # not begun
            assert trio.current_time() - start_s == pytest.approx(1.5)
        read = [path for what, path in desk.calls() if what.startswith("read")]
        assert sorted(read) == sorted(names(16))


async def test_two_who_look_the_same_name_up_read_it_once() -> None:
    async with desk_of(tree(1)) as desk:
        desk.parts.source.delay_s = 1
        for i in range(HABIT):
            node = await desk.parts.namespace.lookups.resolve(b"h%d" % i)
            desk.demand._followed.looked_up(8, node)
            desk.demand.opened(node, 8)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(desk.opens, b"d/0")
            nursery.start_soon(desk.opens, b"d/0", 8)
        assert desk.calls() == [("read small", b"d/0")]


async def test_the_fetch_of_a_reader_that_is_killed_goes_on_for_others() -> None:
    async with desk_of(tree(1)) as desk:
        desk.parts.source.delay_s = 1
        with trio.move_on_after(0.5):
            await desk.look_up(b"d/0")
        await desk.opens(b"d/0")
        assert desk.is_here(b"d/0")
        assert desk.calls() == [("read small", b"d/0")]


async def test_a_source_that_hangs_is_waited_for_once() -> None:
    async with desk_of(tree(1)) as desk:
        desk.parts.source.hang = True
        start_s = trio.current_time()
        with pytest.raises(SourceTimeout):
            await desk.look_up(b"d/0")
        assert trio.current_time() - start_s == pytest.approx(600)


async def test_what_an_earlier_run_has_staged_is_not_read() -> None:
    source = tree(200)
    async with desk_of(source) as desk:
        desk.parts.staging.all_in_memory = False
        for i in range(100, 200):
            version = source.tree[b"d/%d" % i].version(source.source_id)
            (await desk.parts.staging.files.get(version, b"d/%d" % i)).present.add(0)
        for name in names(100):
            await desk.opens(name)
        # Of the first nothing was staged, so the looking stops.
        assert [what for what, _ in desk.calls()] == ["stat"] * 64 + ["read small"] * 36
        for name in names(200)[100:]:
            await desk.opens(name)
        assert [what for what, _ in desk.calls()] == ["read small"] + ["stat"] * 99  # one vain read, and it goes on


async def test_what_was_staged_under_a_name_that_is_forgotten_is_not_read_again() -> None:
    async with desk_of(tree(1)) as desk:
        await desk.opens(b"d/0")
        await trio.sleep(61)
        assert await desk.parts.namespace.names.sweep() > 0
        await desk.parts.namespace.lookups.resolve(b"d")
        desk.calls()
        await desk.opens(b"d/0")
        assert desk.calls() == [("stat", b"d/0")]


async def test_a_name_that_was_known_is_asked_for_again() -> None:
    async with desk_of(tree(1)) as desk:
        await desk.look_up(b"d/0", 8)
        await trio.sleep(61)
        await desk.parts.namespace.lookups.resolve(b"d")
        desk.calls()
        await desk.opens(b"d/0")
        assert desk.calls() == [("stat", b"d/0")]


async def test_in_a_full_cache_the_file_is_held_for_its_open() -> None:
    async with desk_of(tree(1)) as desk:
        desk.parts.staging.room_bytes = 0
        await desk.opens(b"d/0")
        assert desk.is_here(b"d/0")
        assert not desk.parts.staging.queue


async def test_a_larger_file_has_its_buffer_the_second_time() -> None:
    source = tree(0)
    for i in range(2):
        source.file(b"d/%d" % i, 60 + i, 40_000)
    async with desk_of(source) as desk:
        desk.demand._bytes = 8192
        await desk.opens(b"d/0")
        assert desk.data(b"d/0") is None
        await desk.opens(b"d/1")
        assert desk.is_here(b"d/1")


@pytest.mark.parametrize("ttl_s", [0.0, 60.0])
async def test_without_a_time_to_live_the_look_up_brings_it_too(ttl_s: float) -> None:
    async with desk_of(tree(1), ttl_s=ttl_s) as desk:
        dentry = await desk.look_up(b"d/0")
        assert dentry.node is not None
        assert desk.is_here(b"d/0")
