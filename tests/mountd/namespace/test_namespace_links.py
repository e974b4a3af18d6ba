"""Names and nodes: random links, renames, removals and rewrites at the source, and random look-ups, forgets,
opens and sweeps of the daemon, held against what the source has shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from hfs.mountd.core.attributes import Attributes
from hfs.mountd.core.errors import VersionChanged
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.namespace.namespace import Namespace, open_namespace
from hfs.mountd.namespace.nodes.names import Names
from hfs.mountd.namespace.nodes.node import Dentry, Node, expire
from tests.support.fake_slots import no_slots
from tests.support.fake_source import ID, FakeSource
from tests.support.small_namespace import looked_up, made

TOP = [b"a", b"b", b"c", b"d", b"e"]
PATHS = [*TOP, *(b"%s/%s" % (directory, name) for directory in (b"d", b"e", b"moved") for name in (b"a", b"f", b"g"))]


async def test_a_directory_mounted_below_itself_is_a_directory_of_its_own() -> None:
    """Or its path would have no end."""
    source = FakeSource()
    source.directory(b"d", 20)
    source.directory(b"d/e", 20)
    source.directory(b"again", 2)
    namespace, _ = await made(source, ttl_s=0)
    inner = await looked_up(namespace, b"d/e")
    assert (inner.path, inner.parent is not inner) == (b"d/e", True)
    assert await namespace.lookups.resolve(b"d/e") is inner
    assert await namespace.lookups.resolve(b"again") is not namespace.root
    assert await namespace.lookups.resolve(b"again") is await namespace.lookups.resolve(b"again")


async def test_a_name_that_is_forgotten_while_others_are_asked_for_is_in_the_listing() -> None:
    source = FakeSource()
    names = [b"%d" % i for i in range(64)]
    for i, name in enumerate(names):
        source.file(name, 100 + i, 1)
    namespace, _ = await made(source, ttl_s=math.inf, names_at_most=3)
    dentries = await namespace.lookups.children(namespace.root, names)
    assert [d.node.attributes.inode for d in dentries if d.node] == list(range(100, 164))


# -- bounds ---------------------------------------------------------------------------------------------------------


async def test_names_that_the_kernel_does_not_hold_are_bounded_also_with_immutable() -> None:
    source = FakeSource()
    names = [b"%d" % i for i in range(5000)]
    for i, name in enumerate(names):
        source.file(name, 100 + i, 1)
    namespace, _ = await made(source, ttl_s=math.inf, names_at_most=100)
    held = [await looked_up(namespace, name) for name in names[:300]]
    for start in range(300, 5000, 100):
        await namespace.lookups.children(namespace.root, names[start : start + 100])
        assert len(namespace.names) <= 300 + 100 + 300 // 8 + 1
    assert [namespace.nodes.node(node.id) for node in held] == held
    calls = len(source.calls)
    assert [await namespace.lookups.resolve(name) for name in names[:300]] == held
    assert len(source.calls) == calls


async def test_names_that_are_asked_for_stay() -> None:
    source = FakeSource()
    for i in range(2000):
        source.file(b"%d" % i, 100 + i, 1)
    namespace, _ = await made(source, ttl_s=math.inf, names_at_most=100)
    for i in range(2000):
        await namespace.lookups.resolve(b"%d" % i)
        await namespace.lookups.resolve(b"0")
    assert source.calls.count(("stat", b"0")) == 1


@pytest.mark.parametrize("held", [0, 5])
async def test_a_sweep_goes_in_slices(held: int) -> None:
    """Each ends at the first look at the clock past 2 ms; what happens between two of them is seen by the next."""
    now_s = 0.0

    def stopwatch() -> float:
        nonlocal now_s
        now_s += 0.0015
        return now_s

    root = Node(FakeSource().tree[b""], None, None, b"")
    names = Names(
        lambda: 0,
        lambda _node: None,
        no_slots(),
        at_most=1 << 20,
        ttl_s=1,
        clock=trio.current_time,
        stopwatch=stopwatch,
    )
    dentries = [names.put(root, b"%d" % i, None, 1.0) for i in range(1000)]
    await trio.sleep(2)
    counts: list[int] = []

    async def watch() -> None:
        while len(names) > held:
            counts.append(len(names))
            await trio.sleep(0.001)

    for dentry in dentries[-held:] if held else []:
        dentry.expires_s = math.inf
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        assert await names.sweep() == 1000 - held
    assert max(before - after for before, after in pairwise(counts)) <= 2 * 64
    assert len(counts) >= 1000 // (2 * 64)


async def test_a_ring_does_not_grow_by_names_that_change() -> None:
    root = Node(FakeSource().tree[b""], None, None, b"")
    names = Names(lambda: 0, lambda _node: None, no_slots(), at_most=1 << 20, ttl_s=1, clock=trio.current_time)
    for i in range(20_000):
        names.drop(names.put(root, b"%d" % i, None, 1.0))
    assert names.gone < 2000


# -- the model --------------------------------------------------------------------------------------------------------


class World:
    """A source that changes, and all that it has ever shown: by path, and by directory and name."""

    def __init__(self) -> None:
        self.source = FakeSource()
        self.count = 100
        self.shown: dict[object, list[tuple[float, object]]] = {}
        self.source.directory(b"d", 20)
        self.source.directory(b"e", 21)
        for path in (b"a", b"d/a"):
            self.source.file(path, 30, 5)
        self.note()

    def note(self) -> None:
        """Something has changed."""
        tree, now_s = self.source.tree, trio.current_time()
        for path in (*PATHS, b"moved"):
            parent, _, name = path.rpartition(b"/")
            directory = tree.get(parent)
            for key in (path, (directory.inode if directory else None, name)):
                shown = self.shown.setdefault(key, [])
                shown.append((now_s, _what(tree.get(path))))

    def was(self, key: object, since_s: float) -> set[object]:
        """All that it was since then."""
        shown = self.shown.get(key, [(0.0, None)])
        ends = [*(began_s for began_s, _ in shown[1:]), math.inf]
        return {what for (_, what), end_s in zip(shown, ends, strict=True) if end_s >= since_s}

    def time(self) -> int:
        self.count += 1
        return self.count

    def touch(self, inode: int, size: int | None = None) -> None:
        """All names of a file show a new ctime."""
        time_ns = self.time()
        for path, found in self.source.tree.items():
            if found.inode == inode and found.is_file:
                self.source.tree[path] = found._replace(ctime_ns=time_ns, size=found.size if size is None else size)

    def link(self, path: bytes, other: bytes, counts: bool) -> None:
        tree = self.source.tree
        if path in tree and tree[path].is_file and other not in tree and other.rpartition(b"/")[0] in tree:
            tree[other] = tree[path]
            if counts:
                self.touch(tree[path].inode)

    def unlink(self, path: bytes, counts: bool) -> None:
        found = self.source.tree.get(path)
        if found is not None and found.is_file:
            del self.source.tree[path]
            if counts:
                self.touch(found.inode)

    def rename(self, path: bytes, other: bytes, counts: bool) -> None:
        tree = self.source.tree
        found, there = tree.get(path), tree.get(other)
        if found is None or not found.is_file or (there is not None and not there.is_file) or path == other:
            return
        if other.rpartition(b"/")[0] in tree:
            tree[other] = tree.pop(path)
            if counts:
                self.touch(found.inode)

    def create(self, path: bytes) -> None:
        tree = self.source.tree
        if path.rpartition(b"/")[0] in tree and (path not in tree or tree[path].is_file):
            self.source.file(path, 1000 + self.time(), 5, time_ns=self.time())

    def move(self, path: bytes) -> None:
        """A directory gets another name, with all that is in it."""
        tree = self.source.tree
        if path in (b"d", b"e") and b"moved" not in tree and path in tree and not tree[path].is_file:
            for known in list(tree):
                if known == path or known.startswith(path + b"/"):
                    tree[b"moved" + known[1:]] = tree.pop(known)

    def take_out(self, path: bytes) -> None:
        """A directory is moved out of SOURCE."""
        tree = self.source.tree
        if path in (b"d", b"e", b"moved") and path in tree and not tree[path].is_file:
            for known in list(tree):
                if known == path or known.startswith(path + b"/"):
                    del tree[known]


def _what(found: Attributes | None) -> object:
    if found is None:
        return None
    return found.version(ID) if found.is_file else found.inode


def _meant(dentry: Dentry) -> object:
    return None if dentry.node is None else _what(dentry.node.attributes)


class Daemon:
    """The namespace, and what its kernel holds."""

    def __init__(self, namespace: Namespace, world: World, ttl_s: float) -> None:
        self.namespace, self.world, self.ttl_s = namespace, world, ttl_s
        self.lookups: dict[Node, int] = {}
        self.ids: dict[Node, int] = {}
        self.opens: list[Node] = []
        self.holds: list[Node] = []

    def held(self) -> list[Node]:
        return sorted({*self.lookups, *self.opens, *self.holds}, key=lambda node: (node.path, node.id))

    async def look_up(self, path: bytes) -> Dentry | None:
        """As a kernel does, one name after the other."""
        node, dentry = self.namespace.root, None
        for name in path.split(b"/"):
            if node.children is None:
                return None
            began_s = trio.current_time()
            inode = node.attributes.inode
            seen_as = (node.path + b"/" + name).lstrip(b"/")
            dentry = await self.namespace.lookups.child(node, name)
            since_s = began_s - self.ttl_s
            allowed = self.world.was(seen_as, since_s) | self.world.was((inode, name), since_s)
            assert _meant(dentry) in allowed, (path, name, _meant(dentry), allowed)
            if dentry.node is None:
                return None
            node = dentry.node
        return dentry

    def reply(self, node: Node) -> None:
        self.namespace.holds.referenced(node)
        self.lookups[node] = self.lookups.get(node, 0) + 1
        assert self.ids.setdefault(node, node.id) == node.id, "a node that is held changes its id"

    def forget(self, node: Node) -> None:
        count = self.lookups.pop(node, 0)
        self.namespace.holds.forget(node.id, count)
        if not node.is_held:
            self.ids.pop(node, None)

    def check(self) -> None:
        """Names and nodes agree, and nothing is kept that nobody can find."""
        namespace = self.namespace
        names = list(_names(namespace.root))
        for directory, name, dentry in names:
            assert (dentry.directory, dentry.name) == (directory, name)
            if dentry.node is not None:
                assert dentry.node.dentry is dentry
                assert (dentry.node.parent, dentry.node.name) == (directory, name)
        for node, number in self.ids.items():
            assert namespace.nodes.node(number) is node
        for node in namespace.nodes.known():
            assert namespace.nodes.node(node.id) is node
        for version in namespace.nodes._by_version:
            nodes = namespace.nodes.of_version(version)
            assert len(set(nodes)) == len(nodes)
            assert {node.version for node in nodes} == {version}
            assert all(node.is_held or node.dentry for node in nodes)
        assert namespace.nodes._others.keys() <= namespace.nodes._by_version.keys()
        for directory in namespace.nodes._directories.values():
            assert directory.is_held or directory.children or directory.dentry


def _names(directory: Node) -> Iterator[tuple[Node, bytes, Dentry]]:
    for name, dentry in (directory.children or {}).items():
        yield directory, name, dentry
        if dentry.node is not None:
            yield from _names(dentry.node)


async def _play(steps: list[tuple[str, int, int, bool]], ttl_s: float, at_most: int) -> None:
    world = World()
    async with trio.open_nursery() as nursery:
        namespace = await open_namespace(
            world.source,  # type: ignore[arg-type]  # a fake
            Metrics(),
            nursery,
            ttl_s=ttl_s,
            strict=False,
            names_at_most=at_most,
        )
        daemon = Daemon(namespace, world, ttl_s)
        for step, first, second, flag in steps:
            await _step(daemon, step, first, second, flag)
            world.note()
            daemon.check()
        await _end(daemon)
        nursery.cancel_scope.cancel()


async def _step(daemon: Daemon, step: str, first: int, second: int, flag: bool) -> None:
    world, namespace = daemon.world, daemon.namespace
    path, other = PATHS[first % len(PATHS)], PATHS[second % len(PATHS)]
    held = daemon.held()
    node = held[first % len(held)] if held else namespace.root
    changes: dict[str, Callable[[], object]] = {
        "link": lambda: world.link(path, other, flag),
        "unlink": lambda: world.unlink(path, flag),
        "rename": lambda: world.rename(path, other, flag),
        "create": lambda: world.create(path),
        "rewrite": lambda: world.touch(30 + second % 3, 5 + second) if flag else world.touch(30),
        "move": lambda: world.move(path),
        "take out": lambda: world.take_out(path),
        "forget": lambda: daemon.forget(node) if node in daemon.lookups else None,
        "expire": lambda: expire(node) if node is not namespace.root else None,
    }
    if step in changes:
        changes[step]()
    elif step == "look up":
        dentry = await daemon.look_up(path)
        if dentry is not None and dentry.node is not None and flag:
            daemon.reply(dentry.node)
    elif step == "children":
        directory = await daemon.look_up(path)
        if directory is not None and directory.node is not None and directory.node.children is not None:
            for dentry in await namespace.lookups.children(directory.node, [b"a", b"f", b"g"]):
                if dentry.node is not None and flag:
                    daemon.reply(dentry.node)
    elif step == "open" and node in daemon.lookups and node.version is not None:
        await _open(daemon, node)
    elif step == "close" and daemon.opens:
        namespace.holds.closed(daemon.opens.pop(first % len(daemon.opens)))
    elif step == "hold" and node is not namespace.root:
        namespace.holds.hold(node)
        daemon.holds.append(node)
    elif step == "release" and daemon.holds:
        namespace.holds.release(daemon.holds.pop(first % len(daemon.holds)))
    elif step == "renew" and node in daemon.opens:
        namespace.tree.renew(node)
    elif step == "wait":
        await trio.sleep(second)
    elif step == "sweep":
        await namespace.names.sweep()
    for gone in [gone for gone in daemon.ids if not gone.is_held]:
        del daemon.ids[gone]


async def _open(daemon: Daemon, node: Node) -> None:
    """As an open does: refused only if the version has gone from its name."""
    tree, name = daemon.world.source.tree, node.path
    judged = node.dentry is not None and not (node.stale or node.retired)
    try:
        await daemon.namespace.freshness.fresh(node)
    except VersionChanged:
        lives = name in tree and _what(tree[name]) == node.version
        assert not (judged and lives), name
        return
    daemon.namespace.holds.opened(node)
    daemon.opens.append(node)


async def _end(daemon: Daemon) -> None:
    """Nothing is held any more, and everything is past its time: nothing is left."""
    namespace = daemon.namespace
    for node in daemon.opens:
        namespace.holds.closed(node)
    for node in daemon.holds:
        namespace.holds.release(node)
    for node in list(daemon.lookups):
        daemon.forget(node)
    await trio.sleep(1000)
    for _ in range(4):  # a directory goes once its names have gone
        await namespace.names.sweep()
    if daemon.ttl_s < math.inf:
        assert (list(namespace.nodes.known()), len(namespace.names)) == ([namespace.root], 0)
        assert (namespace.nodes._by_version, namespace.nodes._others) == ({}, {})
        assert list(namespace.nodes._directories.values()) == [namespace.root]


CHANGES = ("link", "unlink", "rename", "create", "rewrite", "move", "take out")
WORK = ("look up", "look up", "children", "forget", "open", "close", "hold", "release", "renew", "expire", "wait")


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from([*CHANGES, *WORK, "sweep"]), st.integers(0, 13), st.integers(0, 13), st.booleans()),
        min_size=5,
        max_size=60,
    ),
    ttl_s=st.sampled_from([0.0, 5.0, math.inf]),
    at_most=st.sampled_from([0, 4, 1000]),
)
def test_names_and_nodes_agree_whatever_happens(
    steps: list[tuple[str, int, int, bool]], ttl_s: float, at_most: int
) -> None:
    trio.run(_play, steps, ttl_s, at_most, clock=trio.testing.MockClock(autojump_threshold=0))
