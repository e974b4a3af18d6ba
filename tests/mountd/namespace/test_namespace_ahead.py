"""Listings that grow, look-ups that join what is asked for, and names asked for because others were looked up."""

from __future__ import annotations

import errno

import pytest
import trio
import trio.testing

from hfs.mountd.core.errors import SourceError
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.namespace.namespace import Namespace, open_namespace
from tests.support.fake_source import FakeSource


async def made(count: int, *, ttl_s: float = 60.0, delay_s: float = 0.001) -> tuple[FakeSource, Namespace, list[bytes]]:
    """A source with a directory of `count` files, and its names in the order of its listing."""
    source = FakeSource()
    source.delay_s = delay_s
    names = [b"%06d" % (number * 7919 % count) for number in range(count)]
    for number, name in enumerate(names):
        source.file(name, 100 + number, number)
    nursery = trio.lowlevel.current_task().parent_nursery  # the run's own: what is left in it is waited for
    assert nursery is not None
    namespace = await open_namespace(source, Metrics(), nursery, ttl_s=ttl_s, strict=False)  # type: ignore[arg-type]  # a fake
    source.calls.clear()
    return source, namespace, names


def kinds(source: FakeSource) -> dict[str, int]:
    return {what: sum(call[0] == what for call in source.calls) for what in {call[0] for call in source.calls}}


async def test_who_asks_while_a_directory_is_listed_follows_the_same_listing() -> None:
    source, namespace, names = await made(300)
    source.listing_block = 100
    first = namespace.listings.get(namespace.root)
    assert await first.reaches(0)
    assert not first.complete
    assert namespace.listings.get(namespace.root) is first
    assert list(await namespace.listings.whole(namespace.root)) == names
    assert kinds(source) == {"listing": 1, "listing more": 2}


async def test_listings_are_dropped_when_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hfs.mountd.namespace.tree._KEPT_BYTES", 200)
    source = FakeSource()
    for number in range(5):
        source.directory(b"d%d" % number, 10 + number)
        source.file(b"d%d/%s" % (number, b"x" * 50), 100 + number, 1)
    nursery = trio.lowlevel.current_task().parent_nursery
    assert nursery is not None
    namespace = await open_namespace(source, Metrics(), nursery, ttl_s=60, strict=False)  # type: ignore[arg-type]  # a fake
    for _ in range(2):
        for number in (3, 4):
            await namespace.listings.whole(await namespace.lookups.resolve(b"d%d" % number))
    assert kinds(source)["listing"] == 2
    for number in range(5):
        await namespace.listings.whole(await namespace.lookups.resolve(b"d%d" % number))
    assert kinds(source)["listing"] == 7  # the first three pushed the two out


async def test_look_ups_in_the_order_of_the_names_are_asked_for_ahead_too() -> None:
    """Programs sort what they list. It takes some look-ups until the names are sorted here."""
    source, namespace, names = await made(2000, delay_s=0)
    await namespace.listings.whole(namespace.root)
    ordered = sorted(names)
    watched, before = None, 0
    while watched is None or not watched.sorting:
        await namespace.lookups.child(namespace.root, ordered[before])
        watched = namespace.stat_ahead._directories[namespace.root]
        before += 1
    assert before <= 8
    await trio.sleep(1)
    for name in [b"before all", *ordered[before:], b"zz behind all"]:
        await namespace.lookups.child(namespace.root, name)
    assert kinds(source)["stat"] == before + 3 + 2
    assert sum(len(asked) for _, asked in source.asked) == 2000 - before - 3


async def test_a_look_up_of_a_name_on_its_way_waits_for_it() -> None:
    source, namespace, names = await made(40, delay_s=1.0)
    namespace.asking.ahead_nowait(namespace.root, names)
    namespace.asking.ahead_nowait(namespace.root, names)
    start = trio.current_time()
    assert (await namespace.lookups.child(namespace.root, names[-1])).node is not None
    dentries = await namespace.lookups.children(namespace.root, names)
    assert all(dentry.node is not None for dentry in dentries)
    assert trio.current_time() - start == 1
    assert "stat" not in kinds(source)
    assert sum(len(asked) for _, asked in source.asked) == 40


async def test_without_a_time_to_live_every_look_is_its_own() -> None:
    source, namespace, names = await made(5, ttl_s=0)
    await namespace.listings.whole(namespace.root)
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            for name in names:
                nursery.start_soon(namespace.lookups.child, namespace.root, name)
    namespace.asking.ahead_nowait(namespace.root, names)
    await trio.testing.wait_all_tasks_blocked()
    assert kinds(source) == {"listing": 1, "stat": 10}


async def test_who_waits_for_an_answer_that_fails_asks_himself() -> None:
    source, namespace, names = await made(30, delay_s=1.0)
    namespace.asking.ahead_nowait(namespace.root, names)
    source.error = errno.EIO
    with pytest.raises(SourceError):
        await namespace.lookups.child(namespace.root, names[0])
    assert kinds(source)["stat"] == 1
    source.error = None
    assert (await namespace.lookups.child(namespace.root, names[0])).node is not None
    source.error = errno.EIO
    namespace.asking.ahead_nowait(namespace.root, names)
    await trio.sleep(0.5)
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mend, source)
            dentries = await namespace.lookups.children(namespace.root, names)
    assert all(dentry.node is not None for dentry in dentries)


async def mend(source: FakeSource) -> None:
    """After those under way have failed, before they are asked for again."""
    await trio.sleep(0.75)
    source.error = None


async def test_a_known_file_waits_two_seconds_for_an_answer_on_its_way() -> None:
    source, namespace, names = await made(20, ttl_s=10)
    node = await namespace.lookups.resolve(names[0])
    await trio.sleep(11)
    source.hang = True
    namespace.asking.ahead_nowait(namespace.root, names)
    await trio.testing.wait_all_tasks_blocked()
    start = trio.current_time()
    assert (await namespace.lookups.child(namespace.root, names[0])).node is node
    assert trio.current_time() - start == 2
    assert "stat" not in {call[0] for call in source.calls[2:]}


async def test_several_readers_in_parts_of_one_directory_are_all_foreseen() -> None:
    source, namespace, names = await made(4000, delay_s=0.01)
    await namespace.listings.whole(namespace.root)

    async def read(part: list[bytes]) -> None:
        for name in part:
            await namespace.lookups.child(namespace.root, name)

    async with trio.open_nursery() as nursery:
        for start in range(0, 4000, 1000):
            nursery.start_soon(read, names[start : start + 1000])
    assert kinds(source)["stat"] <= 4 * 4


async def test_names_that_have_gone_and_are_looked_up_all_the_same() -> None:
    source, namespace, names = await made(200)
    await namespace.listings.whole(namespace.root)
    for name in names[50:60]:
        del source.tree[name]
    found = [(await namespace.lookups.child(namespace.root, name)).node is not None for name in names]
    assert found == [True] * 50 + [False] * 10 + [True] * 140
    assert (await namespace.lookups.child(namespace.root, b"never there")).node is None


async def test_a_listing_past_its_time_still_tells_the_order() -> None:
    source, namespace, names = await made(500, ttl_s=10)
    await namespace.listings.whole(namespace.root)
    await trio.sleep(11)
    for name in names:
        await namespace.lookups.child(namespace.root, name)
    assert kinds(source)["stat"] == 3
