"""Names that the index knows, of a source that never changes: brought in a directory at a time, and not asked for."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import pytest
import trio

from mountd.base.attributes import Attributes
from mountd.base.errors import SourceError
from mountd.base.kept_page import KeptPage
from mountd.base.seen import seen_as
from mountd.core.metrics import Metrics
from mountd.namespace import Namespace, open_namespace
from mountd.namespace.journal import NodeFact
from tests.support.fake_leaves import FakeLeafTable
from tests.support.fake_source import FakeSource
from tests.support.small_namespace import looked_up, made

FILES = 10


class Kept:
    """As the index has them: `at_once` names a page."""

    identity = 5

    def __init__(self, source: FakeSource, kept: range, at_once: int = 3) -> None:
        self.right_objects: set[int] = set()
        self.asked: list[tuple[bytes, int]] = []
        self._source = source
        self._kept = kept
        self._at_once = at_once

    async def page(self, folder: bytes, after_id: int, /) -> KeptPage | None:
        self.asked.append((folder, after_id))
        await trio.sleep(0.01)
        numbers = [number for number in self._kept if number + 1 > after_id][: self._at_once] if folder == b"d" else []
        if not numbers:
            return None
        seen = [seen_as(self._source.tree[b"d/%d" % number]) for number in numbers]
        objects = [number + 1 for number in numbers]
        return KeptPage([b"%d" % number for number in numbers], b"".join(seen), objects, objects[-1])

    async def right(self, page: KeptPage, begin: int, /) -> tuple[list[tuple[bytes, tuple[int, int]]], int]:
        await trio.sleep(0.01)
        is_right = page.objects[begin] in self.right_objects
        return ([(page.names[begin], (page.objects[begin], 77))] if is_right else []), begin + 1

    def find_nowait(self, object_id: int, /) -> tuple[bytes, Attributes] | None:
        path = b"d/%d" % (object_id - 1)
        found = self._source.tree.get(path) if object_id - 1 in self._kept else None
        return (path, found) if found is not None else None


def tree() -> FakeSource:
    source = FakeSource()
    source.directory(b"d", 3)
    for number in range(FILES):
        source.file(b"d/%d" % number, 10 + number, 100 + number)
    return source


Make = Callable[..., Awaitable[tuple[Namespace, FakeSource, Kept]]]


@pytest.fixture(params=["leaves", "nodes"])
def make(request: pytest.FixtureRequest) -> Make:
    async def making(kept: range = range(FILES)) -> tuple[Namespace, FakeSource, Kept]:
        source = tree()
        pages = Kept(source, kept)
        table = FakeLeafTable() if request.param == "leaves" else None
        namespace, _ = await made(source, math.inf, leaf_table=table, kept=pages)
        return namespace, source, pages

    return making


async def test_what_is_kept_is_not_asked_for(make: Make) -> None:
    namespace, source, pages = await make()
    d = await looked_up(namespace, b"d")
    asked = list(source.calls)
    for number in (7, 0, 9):
        assert namespace.lookups.child_nowait(d, b"%d" % number) is None or number != 7
        node = (await namespace.lookups.child(d, b"%d" % number)).node
        assert node is not None
        assert node.attributes == source.tree[b"d/%d" % number]
        await namespace.freshness.fresh(node)
    assert len(await namespace.lookups.children(d, [b"%d" % number for number in range(FILES)])) == FILES
    assert source.calls == asked
    assert [asked for asked in pages.asked if asked[0] == b"d"] == [
        (b"d", 0),
        (b"d", 3),
        (b"d", 6),
        (b"d", 9),
        (b"d", 10),
    ]


async def test_who_looks_a_name_up_waits_for_its_page_only(make: Make) -> None:
    namespace, _, pages = await make()
    d = await looked_up(namespace, b"d")
    assert (await namespace.lookups.child(d, b"1")).node is not None
    assert [after for folder, after in pages.asked if folder == b"d"] in ([0], [0, 3])
    assert namespace.lookups.may_be_kept(d)


async def test_what_is_not_kept_is_asked_for_once_all_is_known(make: Make) -> None:
    namespace, source, _ = await make(range(4))
    d = await looked_up(namespace, b"d")
    assert (await namespace.lookups.child(d, b"9")).node is not None
    assert source.calls[-1] == ("stat", b"d/9")
    assert (await namespace.lookups.child(d, b"none")).node is None
    assert not namespace.lookups.may_be_kept(d)


async def test_many_who_look_bring_it_in_once(make: Make) -> None:
    namespace, source, pages = await make()
    d = await looked_up(namespace, b"d")
    asked = len(source.calls)
    async with trio.open_nursery() as nursery:
        for number in range(FILES):
            nursery.start_soon(namespace.lookups.child, d, b"%d" % number)
    assert len(source.calls) == asked
    assert len([asked for asked in pages.asked if asked[0] == b"d"]) == 5


# -- reads without Python, and the next daemon ------------------------------------------------------------------------


async def with_table(kept_files: range = range(FILES)) -> tuple[Namespace, FakeLeafTable, Kept, FakeSource]:
    source, table = tree(), FakeLeafTable()
    kept = Kept(source, kept_files)
    namespace, _ = await made(source, math.inf, leaf_table=table, kept=kept)
    return namespace, table, kept, source


async def test_objects_are_found_right_once_the_kernel_reads_without_opening() -> None:
    namespace, table, kept, _ = await with_table()
    kept.right_objects = {2, 4, 9}
    d = await looked_up(namespace, b"d")
    await namespace.lookups.child(d, b"0")
    await trio.sleep(1)
    assert not [leaf for leaf in table.leaves.values() if leaf.object]
    namespace.becomes_stateless()
    await trio.sleep(1)
    assert {leaf.name: leaf.object for leaf in table.leaves.values() if leaf.object} == {
        b"1": (2, 77),
        b"3": (4, 77),
        b"8": (9, 77),
    }
    assert table.look_up(d.id, b"5") is not None, "the next daemon finds it by its id"


async def test_who_comes_to_a_directory_later_has_its_objects_found_right_too() -> None:
    namespace, table, kept, _ = await with_table()
    kept.right_objects = {1}
    namespace.becomes_stateless()
    d = await looked_up(namespace, b"d")
    await namespace.lookups.child(d, b"9")
    await trio.sleep(1)
    assert [leaf.name for leaf in table.leaves.values() if leaf.object] == [b"0"]


async def test_the_next_daemon_finds_a_leaf_by_its_id() -> None:
    namespace, table, _, source = await with_table()
    d = await looked_up(namespace, b"d")
    await namespace.lookups.child(d, b"0")
    await trio.sleep(1)
    told = table.look_up(d.id, b"6")
    assert told is not None
    facts = ((node, node.parent.id if node.parent is not None else 0) for node in (namespace.root, d))
    inherited = [NodeFact(node.id, above, node.name, node.attributes, None) for node, above in facts]
    nursery = trio.lowlevel.current_task().parent_nursery
    assert nursery is not None
    again = await open_namespace(
        source,  # type: ignore[arg-type]  # a fake
        Metrics(),
        nursery,
        ttl_s=math.inf,
        strict=False,
        leaf_table=FakeLeafTable(),
        kept=Kept(source, range(FILES)),
        inherited=inherited,
    )
    node = again.node(told.node_id)
    assert (node.path, node.attributes, node.id) == (b"d/6", source.tree[b"d/6"], told.node_id)
    assert (await again.lookups.child(again.nodes.node(d.id), b"6")).node is node
    for unknown in (told.node_id + 1024 * 50, told.node_id + (1 << 40), 1 << 62):
        with pytest.raises(SourceError):
            again.node(unknown)
