"""Refreshing: what is known at and below a path is asked for anew, and nothing else is."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable
from typing import Any

import trio

from hfs.mountd.core.attributes import Attributes
from hfs.mountd.core.errors import SourceError
from hfs.mountd.namespace import Namespace, Node, Refreshed, Refreshing
from hfs.mountd.namespace.answers import Answers
from tests.support.fake_slots import FakeSlotTable
from tests.support.fake_source import FakeSource
from tests.support.small_namespace import looked_up, made

IMMUTABLE = math.inf


async def at_once(function: Callable[..., Any], *args: Any) -> Any:
    await trio.lowlevel.checkpoint()
    return function(*args)


async def refresh(namespace: Namespace, path: bytes) -> Refreshed:
    return await Refreshing(namespace).refresh(path, lambda _directories: None, at_once)


def tree() -> FakeSource:
    source = FakeSource()
    for number, directory in enumerate((b"d", b"d/e", b"other")):
        source.directory(directory, 3 + number)
        for index, name in enumerate((b"a", b"b", b"c")):
            source.file(directory + b"/" + name, 100 * (number + 1) + index, 50)
    return source


async def names_known(namespace: Namespace, directory: Node, *names: bytes) -> list[bytes]:
    unknown = namespace.names.unknown_nowait(directory, list(names))
    return [name for name in names if name not in unknown]


async def test_leaves_are_past_their_time_and_become_what_they_are_now() -> None:
    source = tree()
    table = FakeSlotTable()
    changed: list[Node] = []
    namespace, _ = await made(source, IMMUTABLE, slot_table=table, changed=changed.append)
    d, other = await looked_up(namespace, b"d"), await looked_up(namespace, b"other")
    for directory in (d, other):
        namespace.asking.ahead_nowait(directory, [b"a", b"b", b"c"])
    await trio.sleep(0.5)
    kept = table.look_up(d.id, b"a")
    assert kept is not None
    source.file(b"d/a", 100, 70, time_ns=9)
    refreshed = await refresh(namespace, b"d")
    assert refreshed.names[d.id] == [b"a"], "the only slot that the kernel holds"
    assert await names_known(namespace, d, b"a", b"b", b"c") == []
    assert await names_known(namespace, other, b"a", b"b", b"c") == [b"a", b"b", b"c"]
    now = (await namespace.lookups.child(d, b"a")).node
    assert now is not None
    assert now.attributes.size == 70
    assert [node.id for node in changed] == [kept.node_id]
    same = await namespace.lookups.child(d, b"b")
    assert same.node is not None
    assert namespace.names.known_nowait(d, b"b") is same, "asked for once, and good again for ever"


class Early(FakeSource):
    """Answers what was there when it was asked."""

    async def stat(self, directory: bytes, name: bytes, *, limit_s: float | None = None) -> Attributes:
        found = self.tree.get(directory + b"/" + name if directory else name)
        await self._answer("stat", name, limit_s)
        if found is None:
            raise SourceError(errno.ENOENT, "stat")
        return found


async def test_an_answer_on_its_way_is_asked_for_again() -> None:
    """It may be of before the change, and would be good for ever."""
    source = Early()
    source.tree = tree().tree
    namespace, _ = await made(source, IMMUTABLE)
    d = await looked_up(namespace, b"d")
    found: list[Node | None] = []
    source.delay_s = 5.0

    async def look() -> None:
        found.append((await namespace.lookups.child(d, b"a")).node)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        await trio.sleep(1)
        source.file(b"d/a", 100, 70, time_ns=9)
        await refresh(namespace, b"d")
        assert not await namespace.asking.wait_answered(1), "whoever holds a lock for it still does"
        assert await namespace.asking.wait_answered(10)
    (node,) = found
    assert node is not None
    assert node.attributes.size == 70


async def test_what_leaves_are_is_told_without_making_nodes_of_them() -> None:
    source = tree()
    table = FakeSlotTable()
    namespace, _ = await made(source, IMMUTABLE, slot_table=table)
    d = await namespace.lookups.resolve(b"d")
    assert d.id == 0
    answers = await namespace.lookups.attributes(d, [b"a", b"e", b"none", b"c"])
    assert [getattr(one, "attributes", one) for one in answers] == [
        source.tree[b"d/a"],
        source.tree[b"d/e"],
        None,
        source.tree[b"d/c"],
    ]
    assert {name for _, name in table.slots} == {b"a", b"c"}
    asked = len(source.calls)
    assert (await namespace.lookups.attributes(d, [b"a", b"c"])) == [source.tree[b"d/a"], source.tree[b"d/c"]]
    assert len(source.calls) == asked


async def test_what_is_said_of_who_may_open_it_is_not_kept_past_a_refresh() -> None:
    """A "yes" of before a chmod of the directory above, where no attribute of the file itself has changed."""
    source = tree()
    namespace, _ = await made(source, IMMUTABLE)
    a, d = await looked_up(namespace, b"d/a"), await looked_up(namespace, b"d")
    answers = Answers(namespace.silence, trio.current_time, ttl_s=IMMUTABLE)
    said = {"yes": True}

    async def ask(_limit_s: float | None) -> bool:
        answer = said["yes"]
        await trio.sleep(5)
        return answer

    for node in (a, d):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answers.ask, node, "who", ask)
            await trio.sleep(1)
            said["yes"] = False
            await refresh(namespace, b"d")
        assert not await answers.ask(node, "who", ask)
        said["yes"] = True
