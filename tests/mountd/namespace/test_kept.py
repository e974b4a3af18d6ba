"""Names that the index knows, of a source that never changes: brought in a directory at a time, and not asked for."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import pytest
import trio

from hfs.mountd.cache import StoredPage
from hfs.mountd.core.attributes import Attributes, seen_as
from hfs.mountd.core.errors import SourceError
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.namespace import Namespace, open_namespace
from hfs.mountd.namespace.journal import NodeFact
from hfs.mountd.namespace.nodes.node import Dentry
from tests.support.fake_slots import FakeSlotTable
from tests.support.fake_source import FakeSource
from tests.support.small_namespace import looked_up, made

FILES = 10


class Kept:
    """As the index has them: `at_once` names a page."""

    identity = 5

    def __init__(self, source: FakeSource, kept: range, at_once: int = 3) -> None:
        self.page_s = 0.01
        self.asked: list[tuple[int, bytes]] = []
        self.asked_by_name: list[bytes] = []
        self.tree = dict(source.tree)
        self._source = source
        self._kept = [b"%d" % number for number in kept]
        self._at_once = at_once

    def _has(self, directory: Attributes) -> bool:
        now = self._source.tree[b"d"]
        return (directory.inode, directory.mtime_ns) == (now.inode, now.mtime_ns)

    async def page(self, directory: Attributes, after_name: bytes, /) -> StoredPage | None:
        self.asked.append((directory.inode, after_name))
        await trio.sleep(self.page_s)
        names = [name for name in self._kept if name > after_name][: self._at_once] if self._has(directory) else []
        if not names:
            return None
        seen = [seen_as(self.tree[b"d/" + name]) for name in names]
        return StoredPage(names, b"".join(seen), [int(name) + 1 for name in names], names[-1])

    def named_nowait(self, directory: Attributes, name: bytes, /) -> Attributes | None:
        self.asked_by_name.append(name)
        return self._source.tree[b"d/" + name] if self._has(directory) and name in self._kept else None


def tree() -> FakeSource:
    source = FakeSource()
    source.directory(b"d", 3)
    for number in range(FILES):
        source.file(b"d/%d" % number, 10 + number, 100 + number)
    return source


Make = Callable[..., Awaitable[tuple[Namespace, FakeSource, Kept]]]


@pytest.fixture(params=["slots", "nodes"])
def make(request: pytest.FixtureRequest) -> Make:
    async def making(kept: range = range(FILES)) -> tuple[Namespace, FakeSource, Kept]:
        source = tree()
        pages = Kept(source, kept)
        table = FakeSlotTable() if request.param == "slots" else None
        namespace, _ = await made(source, math.inf, slot_table=table, kept=pages)
        return namespace, source, pages

    return making


async def test_a_name_whose_page_has_not_come_is_asked_for_by_itself(make: Make) -> None:
    namespace, source, pages = await make()
    d = await looked_up(namespace, b"d")
    asked = list(source.calls)
    found = namespace.lookups.child_nowait(d, b"9")
    assert found is not None
    assert found.node is not None
    assert (pages.asked_by_name[-1], source.calls) == (b"9", asked)
    assert namespace.lookups.may_be_kept(d)
    await trio.sleep(1)
    assert not namespace.lookups.may_be_kept(d)
    by_name = len(pages.asked_by_name)
    assert (await namespace.lookups.child(d, b"3")).node is not None
    assert (len(pages.asked_by_name), source.calls) == (by_name, asked), "it has come meanwhile"


async def test_nothing_is_asked_ahead_of_who_finds_what_is_kept(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    namespace, source, pages = await make()
    pages.page_s = 3600
    told: list[bytes] = []
    monkeypatch.setattr(namespace.stat_ahead, "looked_up", lambda _directory, name: told.append(name))
    d = await looked_up(namespace, b"d")
    asked = list(source.calls)
    for number in range(FILES):
        look = namespace.lookups.child_nowait if number % 2 else namespace.lookups.child
        found = look(d, b"%d" % number)
        assert (found if isinstance(found, Dentry) else await found).node is not None  # type: ignore[misc]  # it is known
        await trio.sleep(0.01)
    assert (source.calls, told) == (asked, [b"d"])


async def test_many_who_look_bring_it_in_once(make: Make) -> None:
    namespace, source, pages = await make()
    d = await looked_up(namespace, b"d")
    asked = len(source.calls)
    async with trio.open_nursery() as nursery:
        for number in range(FILES):
            nursery.start_soon(namespace.lookups.child, d, b"%d" % number)
    assert len(source.calls) == asked
    await trio.sleep(1)
    assert len([inode for inode, _ in pages.asked if inode == d.attributes.inode]) == 5


async def test_a_listing_waits_for_what_is_kept_but_not_for_long(make: Make) -> None:
    namespace, source, pages = await make()
    d = await looked_up(namespace, b"d")
    asked = list(source.calls)
    names = [b"%d" % number for number in range(6)]
    assert len(await namespace.lookups.children(d, names)) == 6
    assert source.calls == asked
    assert (d.attributes.inode, b"8") not in pages.asked, "all that it needs was there"


async def test_a_listing_asks_the_source_where_the_index_is_slow(make: Make) -> None:
    namespace, source, pages = await make()
    pages.page_s = 3600
    d = await looked_up(namespace, b"d")
    asked = len(source.calls)
    began_s = trio.current_time()
    assert len(await namespace.lookups.children(d, [b"%d" % number for number in range(6)])) == 6
    assert trio.current_time() < began_s + 60
    assert len(source.calls) > asked


# -- the next daemon -------------------------------------------------------------------------------------------------


async def with_table(kept_files: range = range(FILES)) -> tuple[Namespace, FakeSlotTable, Kept, FakeSource]:
    source, table = tree(), FakeSlotTable()
    kept = Kept(source, kept_files)
    namespace, _ = await made(source, math.inf, slot_table=table, kept=kept)
    return namespace, table, kept, source


async def test_the_next_daemon_finds_a_leaf_by_its_id() -> None:
    namespace, table, _, source = await with_table()
    d = await looked_up(namespace, b"d")
    await namespace.lookups.child(d, b"0")
    await trio.sleep(1)
    told = table.look_up(d.id, b"6")
    assert told is not None
    facts = ((node, node.parent.id if node.parent is not None else 0) for node in (namespace.root, d))
    inherited = [NodeFact(node.id, above, node.name, node.attributes, None) for node, above in facts]
    left = dict(table.slots)
    nursery = trio.lowlevel.current_task().parent_nursery
    assert nursery is not None
    again = await open_namespace(
        source,  # type: ignore[arg-type]  # a fake
        Metrics(),
        nursery,
        ttl_s=math.inf,
        strict=False,
        slot_table=table,
        inherited=inherited,
    )
    table.slots = left
    again.slots.attached({d.id: len(left), 4711: 1}, frozenset())
    held = again.nodes.node(d.id).holds
    node = again.node(told.node_id)
    assert (node.path, node.attributes, node.id) == (b"d/6", source.tree[b"d/6"], told.node_id)
    assert (await again.lookups.child(again.nodes.node(d.id), b"6")).node is node
    again.holds.forget(node.id, 1)
    with pytest.raises(SourceError):
        again.nodes.node(node.id)  # it is not held for ever
    for kept in left.values():
        kept.look_ups = 0
        kept.until_s = -math.inf
    await again.sweep()
    assert again.nodes.node(d.id).holds == held - 1, "of no slot any more"
    for unknown in (told.node_id + 1024 * 50, told.node_id + (1 << 40), 1 << 62):
        with pytest.raises(SourceError):
            again.node(unknown)
