"""Opens in every I/O mode, by the real read path and namespace, against a kernel that keeps the rules of iomode.c.

Processes open by name, reopen descriptors below /proc, read and close; meanwhile the staged file becomes complete or is
given up, the source gets another version, the kernel forgets, backing files are refused. Whatever the order: no open
fails, the kernel never sees two modes or two backing files at one node, and every byte is of the handle's version.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from hfs.mountd.core.errors import VersionChanged
from hfs.policies.iomode import SMALL_BYTES
from tests.support.fake_source import FakeSource
from tests.support.pattern import pattern
from tests.support.read_parts import Parts, daemon

LARGE = 3 * SMALL_BYTES + 17
NAME = b"f"


@dataclass
class Open:
    """An open file of the kernel."""

    node_id: int
    number: int
    backing_id: int | None
    inode: int
    mtime_ns: int


class Kernel:
    """One mount: what it remembers of the name, and the mode of every inode."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.remembered: int | None = None
        self.handles: list[Open] = []
        self.lookups: dict[int, int] = {}
        self.reopening: set[int] = set()
        """Nodes opened again by a descriptor, now or before: that is told what its handle reads."""
        self.damages = 0
        """Times that chunks were given up. An open during which that happens may count as before it."""

    async def look_up(self) -> int:
        dentry = await self.parts.namespace.lookups.child(self.parts.namespace.root, NAME)
        node = dentry.node
        assert node is not None
        self.parts.namespace.holds.referenced(node)
        self.lookups[node.id] = self.lookups.get(node.id, 0) + 1
        self.remembered = node.id
        return node.id

    def forget(self) -> None:
        """Memory is short: every inode that nobody has open is dropped, and the name with it."""
        for node_id in [n for n in self.lookups if all(handle.node_id != n for handle in self.handles)]:
            if node_id == self.remembered:
                self.remembered = None
            self.parts.namespace.holds.forget(node_id, self.lookups.pop(node_id))

    async def open_by_name(self, thread_id: int) -> Open:
        """open(2): an ESTALE repeats the look-up, once."""
        node_id = self.remembered if self.remembered is not None else await self.look_up()
        damages = self.damages
        try:
            return await self._open(node_id, thread_id, damages)
        except VersionChanged:
            return await self._open(await self.look_up(), thread_id, damages)

    async def reopen(self, handle: Open, thread_id: int) -> Open:
        """open(2) of /proc/self/fd/N: an ESTALE repeats it, but no name leads anywhere else."""
        self.reopening.add(handle.node_id)  # by number: several at a time ask for the same
        try:
            return await self._open(handle.node_id, thread_id, self.damages)
        except VersionChanged:
            return await self._open(handle.node_id, thread_id, self.damages)

    async def _open(self, node_id: int, thread_id: int, damages: int) -> Open:
        node = self.parts.namespace.nodes.node(node_id)
        opened = self.parts.opening.open_nowait(node, thread_id)
        number, backing_id = opened if opened is not None else await self.parts.opening.open(node, thread_id)
        assert node.version is not None
        handle = Open(node_id, number, backing_id, node.version.inode, node.version.mtime_ns)
        file = self.parts.handles.file(number).file
        if backing_id is not None and not file.durable:
            assert node_id in self.reopening or self.damages > damages, "damaged bytes are handed out"
        for other in self.handles:
            if other.node_id == node_id:
                assert other.backing_id == backing_id, "the kernel answers EIO: another mode, or another backing file"
        self.handles.append(handle)
        return handle

    def close(self, handle: Open) -> None:
        self.handles.remove(handle)
        self.parts.opening.close(handle.number)

    async def read(self, handle: Open, offset: int, size: int) -> None:
        """Only of handles that are not passed through."""
        wanted = pattern(handle.inode * 1000 + handle.mtime_ns, offset, size)
        file = self.parts.handles.file(handle.number)
        at_once = self.parts.read_path.read_nowait(file, offset, size)
        assert at_once is None or bytes(at_once) == wanted
        assert bytes(await self.parts.read_path.read(file, offset, size)) == wanted


def large_file() -> FakeSource:
    source = FakeSource()
    source.file(NAME, 11, LARGE)
    return source


def complete(parts: Parts) -> None:
    """Whatever is known of the file is staged and durable."""
    for version, file in parts.staging.known.items():
        for index in range(file.present.count):
            content = pattern(version.inode * 1000 + version.mtime_ns, file.chunk(index).start, file.chunk(index).size)
            parts.staging.chunks[(version, index)] = content
            file.present.add(index)
            file.committed.add(index)
        file.object_id = 1


def give_up(parts: Parts) -> None:
    """The cache disk has lost a chunk of every file."""
    for file in parts.staging.known.values():
        if 0 in file.present:
            file.drop(0)


async def test_a_small_file_that_lies_in_the_page_cache_is_left_there() -> None:
    source = FakeSource()
    source.file(NAME, 11, SMALL_BYTES)
    async with daemon(source, push=True) as parts:
        parts.passthrough.on = True
        kernel = Kernel(parts)
        kernel.close(await kernel.open_by_name(1))
        assert parts.pushed == [(NAME, 0, SMALL_BYTES)]
        complete(parts)
        again = await kernel.open_by_name(1)
        assert again.backing_id is None
        await kernel.read(again, 0, 100)  # the kernel has let its pages go
        kernel.close(again)
        assert (await kernel.open_by_name(1)).backing_id is not None
        assert len(parts.pushed) == 1


EVENTS = st.lists(st.sampled_from(["open", "open", "open", "reopen", "close", "close", "read", "forget"]), max_size=12)
CHANGES = st.lists(
    st.sampled_from(["complete", "complete", "give up", "change", "later", "refuse", "pause"]), max_size=10
)


@pytest.mark.slow
@given(
    processes=st.lists(EVENTS, min_size=1, max_size=4), changes=CHANGES, seed=st.integers(0, 999), rm=st.random_module()
)
def test_no_open_ever_fails_because_of_a_mode(
    processes: list[list[str]], changes: list[str], seed: int, rm: object
) -> None:
    chance = random.Random(seed)

    async def main() -> None:
        source = large_file()
        async with daemon(source, ttl_s=1.0) as parts:
            parts.passthrough.on = True
            parts.passthrough.checkpoints = chance.randrange(3)
            kernel = Kernel(parts)

            async def process(thread_id: int, events: list[str]) -> None:
                mine: list[Open] = []
                for event in events:
                    await trio.sleep(chance.random() / 100)
                    await step(thread_id, event, mine)
                for handle in mine:
                    kernel.close(handle)

            async def step(thread_id: int, event: str, mine: list[Open]) -> None:
                if event == "open":
                    mine.append(await kernel.open_by_name(thread_id))
                elif event == "reopen" and mine:
                    handle = chance.choice(mine)
                    try:
                        mine.append(await kernel.reopen(handle, thread_id))
                    except VersionChanged:  # no name leads to that version any more
                        assert handle.mtime_ns != parts.source.tree[NAME].mtime_ns
                elif event == "close" and mine:
                    kernel.close(mine.pop(chance.randrange(len(mine))))
                elif event == "read" and mine:
                    handle = chance.choice(mine)
                    current = parts.source.tree[NAME].mtime_ns
                    if handle.backing_id is None and handle.mtime_ns == current:
                        await read_or_changed(handle)
                elif event == "forget":
                    kernel.forget()

            async def read_or_changed(handle: Open) -> None:
                try:
                    await kernel.read(handle, chance.randrange(LARGE - 5000), 5000)
                except VersionChanged:
                    assert handle.mtime_ns != parts.source.tree[NAME].mtime_ns

            async def change() -> None:
                for what in changes:
                    await trio.sleep(chance.random() / 100)
                    if what == "change":
                        source.file(NAME, 11, LARGE, source.tree[NAME].mtime_ns + 1)
                    elif what == "later":
                        await trio.sleep(2)
                    elif what == "refuse":
                        parts.passthrough.refuse = not parts.passthrough.refuse
                    else:
                        kernel.damages += what == "give up"
                        {"complete": complete, "give up": give_up}.get(what, lambda _: None)(parts)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(change)
                for number, events in enumerate(processes):
                    nursery.start_soon(process, number, events)
            kernel.forget()
            assert parts.passthrough.backings == {}
            assert all(file.passed == 0 for file in parts.staging.known.values())
            assert parts.staging.pins == 0

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_an_open_waits_for_a_fill_that_is_about_to_end() -> None:
    async with daemon(large_file()) as parts:
        parts.passthrough.on = True
        kernel = Kernel(parts)
        await kernel.open_by_name(1)
        (file,) = parts.staging.known.values()
        node = parts.namespace.nodes.node(kernel.handles[0].node_id)
        parts.prefetch.fill_nowait(node, file)
        await trio.sleep(1)
        file.present.add(0)  # one chunk of four in a second: three seconds more
        started = trio.current_time()
        early = await kernel.open_by_name(2)
        assert early.backing_id is None
        assert trio.current_time() == started
        file.present.add(1)
        file.present.add(2)  # a third of a second more
        async with trio.open_nursery() as nursery:
            nursery.start_soon(finish_later, parts)
            late = await kernel.open_by_name(3)
        assert late.backing_id is not None


async def finish_later(parts: Parts) -> None:
    await trio.sleep(0.3)
    complete(parts)
