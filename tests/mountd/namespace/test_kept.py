"""Names that the index knows, of a source that never changes: brought in a directory at a time, and not asked for."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import pytest
import trio

from mountd.base.seen import seen_as
from mountd.cache.table.kept_attributes import KeptPage
from mountd.namespace import Namespace
from tests.support.fake_leaves import FakeLeafTable
from tests.support.fake_source import FakeSource
from tests.support.small_namespace import looked_up, made

FILES = 10


class Pages:
    """As the index has them: `at_once` names a page."""

    def __init__(self, source: FakeSource, kept: range, at_once: int = 3) -> None:
        self.asked: list[tuple[bytes, int]] = []
        self._source = source
        self._kept = kept
        self._at_once = at_once

    async def __call__(self, folder: bytes, after_id: int) -> KeptPage | None:
        self.asked.append((folder, after_id))
        await trio.sleep(0.01)
        numbers = [number for number in self._kept if number + 1 > after_id][: self._at_once] if folder == b"d" else []
        if not numbers:
            return None
        seen = [seen_as(self._source.tree[b"d/%d" % number]) for number in numbers]
        return KeptPage([b"%d" % number for number in numbers], b"".join(seen), numbers[-1] + 1)


def tree() -> FakeSource:
    source = FakeSource()
    source.directory(b"d", 3)
    for number in range(FILES):
        source.file(b"d/%d" % number, 10 + number, 100 + number)
    return source


Make = Callable[..., Awaitable[tuple[Namespace, FakeSource, Pages]]]


@pytest.fixture(params=["leaves", "nodes"])
def make(request: pytest.FixtureRequest) -> Make:
    async def making(kept: range = range(FILES)) -> tuple[Namespace, FakeSource, Pages]:
        source = tree()
        pages = Pages(source, kept)
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
