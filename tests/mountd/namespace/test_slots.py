"""Slots: files that are no nodes here, whose names the table of the data plane answers by itself."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from hfs.mountd.core.attributes import Version, attributes_of
from hfs.mountd.core.errors import SourceError, VersionChanged
from hfs.mountd.namespace import Namespace
from hfs.mountd.namespace.nodes.node import Dentry, Node
from tests.support.examples import examples
from tests.support.fake_slots import FakeSlotTable, Kept
from tests.support.fake_source import FakeSource
from tests.support.small_namespace import looked_up, made

TTL_S = 10.0


async def with_slots(source: FakeSource, ttl_s: float = TTL_S) -> tuple[Namespace, FakeSlotTable, Node]:
    """A namespace, its table and the directory d, which the kernel knows."""
    table = FakeSlotTable()
    namespace, _ = await made(source, ttl_s, slot_table=table)
    return namespace, table, await looked_up(namespace, b"d")


def tree(*names: bytes) -> FakeSource:
    source = FakeSource()
    source.directory(b"d", 3)
    for number, name in enumerate(names):
        source.file(b"d/" + name, 10 + number, 100 + number)
    return source


async def ahead(namespace: Namespace, directory: Node, names: list[bytes], told: set[bytes] | None = None) -> None:
    namespace.asking.ahead_nowait(directory, names, told or set())
    await trio.sleep(0.5)


async def test_what_is_asked_for_ahead_becomes_leaves_and_what_is_opened_a_node() -> None:
    source = tree(b"a", b"b", b"c")
    namespace, table, d = await with_slots(source)
    await ahead(namespace, d, [b"a", b"b", b"c", b"none"], {b"c"})
    assert set(table.slots) == {(d.id, b"a"), (d.id, b"b")}
    assert d.children is not None
    assert set(d.children) == {b"c", b"none"}
    kept = table.look_up(d.id, b"a")
    assert kept is not None
    node = namespace.node(kept.node_id)
    assert (node.id, node.path, node.lookups, node.attributes) == (kept.node_id, b"d/a", 1, source.tree[b"d/a"])
    assert (await namespace.lookups.child(d, b"a")).node is node
    assert (await namespace.lookups.child(d, b"b")).node is not node
    assert not table.slots
    asked = len(source.calls)
    await namespace.freshness.fresh(node)
    assert len(source.calls) == asked, "what was known of the slot is known of the node"


async def test_a_leaf_that_was_renumbered_is_counted() -> None:
    source = tree(b"a", b"b", b"c")
    table = FakeSlotTable()
    namespace, metrics = await made(source, TTL_S, slot_table=table)
    d = await looked_up(namespace, b"d")
    await ahead(namespace, d, [b"a", b"b", b"c"])
    await trio.sleep(2 * TTL_S)
    source.file(b"d/a", 50, 100)
    source.file(b"d/b", 51, 101)
    await ahead(namespace, d, [b"a", b"c"])
    await looked_up(namespace, b"d/b")
    assert metrics["inodes_renumbered"] == 2


async def test_a_leaf_that_nobody_holds_has_no_id_as_a_node() -> None:
    namespace, table, d = await with_slots(tree(b"a"))
    await ahead(namespace, d, [b"a"])
    (kept,) = table.slots.values()
    node = (await namespace.lookups.child(d, b"a")).node
    assert node is not None
    assert node.id == 0
    with pytest.raises(SourceError):
        namespace.node(kept.node_id)
    namespace.holds.referenced(node)
    assert node.id not in (0, kept.node_id)


async def test_directories_and_others_are_no_leaves() -> None:
    source = tree(b"a", b"b")
    source.directory(b"d/sub", 40)
    source.tree[b"d/else"] = source.tree[b"d/b"]._replace(inode=50, device=7, file_system="another")
    namespace, table, d = await with_slots(source)
    await ahead(namespace, d, [b"a", b"b", b"sub", b"else", b"x" * 256])
    assert sorted(name for _, name in table.slots) == [b"a", b"b"]
    assert d.children is not None
    assert {name for name, dentry in d.children.items() if dentry.node is not None} == {b"sub", b"else"}


async def test_past_its_time_a_leaf_is_asked_for_and_stays_one() -> None:
    source = tree(b"a", b"b")
    namespace, table, d = await with_slots(source)
    await ahead(namespace, d, [b"a", b"b"])
    await trio.sleep(TTL_S)
    assert table.look_up(d.id, b"a") is None
    await ahead(namespace, d, [b"a", b"b"])
    assert table.look_up(d.id, b"a") is not None
    source.file(b"d/a", 10, 999, time_ns=5)
    await trio.sleep(TTL_S)
    changed = (await namespace.lookups.held(d, [b"a", b"b"]))[b"a"].node
    assert changed is not None
    assert changed.attributes.size == 999, "another version is a node of its own"
    assert [name for _, name in table.slots] == [b"b"]


async def test_a_node_past_its_time_stays_a_node() -> None:
    namespace, table, d = await with_slots(tree(b"a", b"b"))
    node = (await namespace.lookups.child(d, b"a")).node
    await trio.sleep(TTL_S)
    await ahead(namespace, d, [b"a", b"b"])
    assert [name for _, name in table.slots] == [b"b"]
    assert (await namespace.lookups.child(d, b"a")).node is node


async def test_a_change_of_a_leaf_makes_who_has_it_look_again() -> None:
    source = tree(b"a")
    namespace, table, d = await with_slots(source)
    await ahead(namespace, d, [b"a"])
    kept = table.look_up(d.id, b"a")
    assert kept is not None
    source.file(b"d/a", 10, 999, time_ns=5)
    await trio.sleep(TTL_S)
    await ahead(namespace, d, [b"a"])
    with pytest.raises(VersionChanged):
        await namespace.freshness.revalidate(namespace.node(kept.node_id))


async def test_a_file_that_was_renamed_is_a_node_of_its_own_and_its_old_name_ends_with_its_time() -> None:
    source = tree(b"a")
    namespace, table, d = await with_slots(source)
    await ahead(namespace, d, [b"a"])
    kept = table.look_up(d.id, b"a")
    assert kept is not None
    source.tree[b"d/b"] = source.tree.pop(b"d/a")
    node = (await namespace.lookups.child(d, b"b")).node
    assert node is not None
    old = namespace.node(kept.node_id)
    assert (old is not node, old.version) == (True, node.version)
    await trio.sleep(TTL_S)
    assert (await namespace.lookups.child(d, b"a")).node is None


async def test_a_directory_is_held_by_its_leaves() -> None:
    namespace, table, d = await with_slots(tree(b"a", b"b"))
    await ahead(namespace, d, [b"a", b"b"])
    kept = table.look_up(d.id, b"a")
    assert kept is not None
    namespace.holds.forget(d.id, 1)
    await namespace.sweep()
    assert namespace.node(kept.node_id).path == b"d/a", "a path needs the directories above"
    await trio.sleep(TTL_S)
    await namespace.sweep()
    assert not table.slots
    namespace.holds.forget(kept.node_id, 1)
    await namespace.sweep()
    await namespace.sweep()
    with pytest.raises(SourceError):
        namespace.node(d.id or 3)
    assert len(namespace.names) == 0


async def test_without_a_time_to_live_or_a_data_plane_there_are_none() -> None:
    for ttl_s, runs in ((0.0, True), (10.0, False)):
        namespace, table, d = await with_slots(tree(b"a"), ttl_s)
        table.runs = runs
        held = await namespace.lookups.held(d, [b"a"])
        assert held[b"a"].node is not None
        assert not table.slots


async def test_a_node_that_takes_the_place_of_a_leaf_is_the_later_one_to_the_next_daemon_too() -> None:
    namespace, table, d = await with_slots(tree(b"a"))
    await ahead(namespace, d, [b"a"])
    kept = table.look_up(d.id, b"a")
    assert kept is not None
    old = namespace.node(kept.node_id)
    namespace.holds.opened(old)
    fresh = namespace.tree.renew(old)
    assert fresh is not None
    namespace.holds.referenced(fresh)
    again = namespace.tree.renew(fresh)
    assert again is not None
    namespace.holds.referenced(again)
    assert old.id < fresh.id < again.id, "see namespace/namespace.py"


async def test_what_was_refuted_meanwhile_does_not_come_back() -> None:
    """Bytes of a version were of two states: its file has another identity, also where it was asked for before that."""
    source = tree(b"a", b"b", b"c")
    namespace, table, d = await with_slots(source)
    a = (await namespace.lookups.child(d, b"a")).node
    assert a is not None
    assert a.version is not None
    namespace.holds.referenced(a)
    await ahead(namespace, d, [b"b"])
    kept = table.look_up(d.id, b"b")
    assert kept is not None
    await trio.sleep(TTL_S)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(namespace.lookups.held, d, [b"a", b"c"])
        await trio.lowlevel.checkpoint()
        refuted = [a.version, *(source.tree[b"d/" + name].version("fs") for name in (b"b", b"c"))]
        for version in refuted:
            source.second_looks.rewritten.add(version._replace(source_id=source.source_id))
            namespace.tree.distrust(version)
    assert [name for _, name in table.slots] == [b"b"]
    for name in (b"a", b"c"):
        node = (await namespace.lookups.child(d, name)).node
        assert node is not None
        assert node is not a
        assert node.version not in source.second_looks.rewritten
    assert a.stale
    taken = namespace.node(kept.node_id)
    assert not namespace.freshness.is_fresh_nowait(taken), "it is asked for before anything is read"
    with pytest.raises(VersionChanged):
        await namespace.freshness.fresh(taken)


# -- a model ----------------------------------------------------------------------------------------------------------

NAMES = (b"a", b"b", b"c", b"d")


@dataclass
class World:
    """The kernel and the source. What each name was is remembered for as long as it may be told."""

    source: FakeSource
    namespace: Namespace
    table: FakeSlotTable
    directory: Node
    past: dict[bytes, list[tuple[float, Version | None]]] = field(default_factory=dict)
    """Of each name, from when on it was what."""
    held: Counter[int] = field(default_factory=Counter)
    ids: dict[int, Version] = field(default_factory=dict)
    opened: list[Node] = field(default_factory=list)
    inode: int = 100

    def note(self) -> None:
        for name in NAMES:
            found = self.source.tree.get(b"d/" + name)
            self.past.setdefault(name, []).append((trio.current_time(), found.version("fs") if found else None))

    def may_be(self, name: bytes, version: Version | None, asked_s: float) -> bool:
        """Whether that was told of a name not longer ago than the time-to-live."""
        told = self.past[name]
        for number, (since_s, what) in enumerate(told):
            until_s = told[number + 1][0] if number + 1 < len(told) else float("inf")
            if _same(what, version) and until_s >= asked_s - TTL_S - 1e-6 and since_s <= trio.current_time():
                return True
        return False

    async def look_up(self, name: bytes) -> None:
        asked_s = trio.current_time()
        kept = self.table.look_up(self.directory.id, name)
        if kept is not None:
            self._told(name, kept.node_id, _version(kept), asked_s)
            return
        node = (await self.namespace.lookups.child(self.directory, name)).node
        if node is None:
            assert self.may_be(name, None, asked_s)
            return
        self.namespace.holds.referenced(node)
        assert node.version is not None
        self._told(name, node.id, node.version, asked_s)

    def _told(self, name: bytes, node_id: int, version: Version, asked_s: float) -> None:
        assert self.may_be(name, version, asked_s), f"{name!r} is {version}"
        assert _same(self.ids.setdefault(node_id, version), version), "an id is one version for ever"
        self.held[node_id] += 1

    async def attributes(self, number: int) -> None:
        if not self.held:
            return
        node_id = sorted(self.held)[number % len(self.held)]
        kept = self.table.attributes(node_id)
        if kept is not None:
            assert _same(_version(kept), self.ids[node_id])
            return
        with contextlib.suppress(VersionChanged):
            found = await self.namespace.freshness.revalidate(self.namespace.node(node_id))
            assert _same(found.version("fs"), self.ids[node_id])

    def open(self, number: int) -> None:
        if self.held:
            node = self.namespace.node(sorted(self.held)[number % len(self.held)])
            self.namespace.holds.opened(node)
            self.opened.append(node)

    def close(self, number: int) -> None:
        if self.opened:
            self.namespace.holds.closed(self.opened.pop(number % len(self.opened)))

    def forget(self, number: int) -> None:
        if not self.held:
            return
        node_id = sorted(self.held)[number % len(self.held)]
        count = min(self.held[node_id], 1 + number % 2)
        self.held[node_id] -= count
        self.held = +self.held
        if not self.table.forget(node_id, count):
            self.namespace.holds.forget(node_id, count)

    async def list_whole(self) -> None:
        """As a READDIRPLUS."""
        asked_s = trio.current_time()
        held: dict[bytes, Dentry] = await self.namespace.lookups.held(self.directory, list(NAMES))
        for name in NAMES:
            dentry = held.get(name)
            kept = self.table.look_up(self.directory.id, name) if dentry is None else None
            if kept is not None:
                self._told(name, kept.node_id, _version(kept), asked_s)
            elif dentry is not None and dentry.node is not None and dentry.node.version is not None:
                self.namespace.holds.referenced(dentry.node)
                self._told(name, dentry.node.id, dentry.node.version, asked_s)

    def change(self, name: bytes, number: int) -> None:
        path, self.inode = b"d/" + name, self.inode + 1
        other = b"d/" + NAMES[number % len(NAMES)]
        match number % 4:
            case 0:
                self.source.file(path, self.inode, 5)
            case 1:
                self.source.tree.pop(path, None)
            case 2 if path in self.source.tree:
                found = self.source.tree[path]
                self.source.tree[path] = found._replace(mtime_ns=self.inode, ctime_ns=self.inode)
            case 3 if path in self.source.tree and other != path:
                self.source.tree[other] = self.source.tree.pop(path)  # some sources do not change its ctime
        self.note()

    def check(self) -> None:
        slots = [kept for kept in self.table.slots.values() if kept.directory_id == self.directory.id]
        children = self.directory.children or {}
        assert not {kept.name for kept in slots} & set(children), "a name is a slot's or a node's"
        for node_id, count in self.held.items():
            kept = self.table.by_id(node_id)
            known = kept.look_ups if kept is not None else self.namespace.nodes.node(node_id).lookups
            assert known == count, "the kernel's look-ups are counted once"


def _version(kept: Kept) -> Version:
    found = attributes_of(kept.seen, 0)
    assert found is not None
    return found.version("fs")


def _same(one: Version | None, other: Version | None) -> bool:
    if one is None or other is None:
        return one is other
    return one._replace(source_id="") == other._replace(source_id="")


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["look up", "attributes", "open", "close", "forget", "list", "ahead", "change", "change", "sleep", "sweep"]
        ),
        st.sampled_from(NAMES),
        st.integers(0, 7),
    ),
    max_size=50,
)


async def _run(steps: list[tuple[str, bytes, int]]) -> None:
    source = tree(*NAMES[:3])
    namespace, table, directory = await with_slots(source)
    world = World(source, namespace, table, directory)
    world.note()
    for step, name, number in steps:
        match step:
            case "look up":
                await world.look_up(name)
            case "attributes":
                await world.attributes(number)
            case "open":
                world.open(number)
            case "close":
                world.close(number)
            case "forget":
                world.forget(number)
            case "list":
                await world.list_whole()
            case "ahead":
                await ahead(namespace, directory, list(NAMES), set(NAMES[: number // 4]))
            case "change":
                world.change(name, number)
            case "sleep":
                await trio.sleep(number * 2.0)
            case "sweep":
                await namespace.sweep()
        world.check()


@settings(max_examples=examples(150), deadline=None)
@given(steps=STEPS)
def test_the_kernel_is_told_what_was_there_and_counted_once(steps: list[tuple[str, bytes, int]]) -> None:
    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_run, steps)

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
