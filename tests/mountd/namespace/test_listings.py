"""Listings past their time while the source hangs, or says that it is away: as it was with names and attributes."""

from __future__ import annotations

import errno
import math

import pytest
import trio

from hfs.mountd.core.errors import SourceAway, SourceError, SourceTimeout
from hfs.mountd.namespace.namespace import Namespace
from hfs.mountd.namespace.refreshing import Refreshing
from hfs.mountd.source.listing import Listing
from tests.support.fake_slots import FakeSlotTable
from tests.support.fake_source import FakeSource
from tests.support.small_namespace import looked_up, made


class Away(FakeSource):
    """`number`: what it answers."""

    number: int | None = None

    async def _answer(self, what: str, path: bytes, limit_s: float | None = None) -> None:
        await super()._answer(what, path, limit_s)
        if self.number is not None:
            raise SourceAway(self.number, what)


def tree() -> Away:
    source = Away()
    source.directory(b"d", 3)
    source.directory(b"other", 4)
    for number in range(20):
        source.file(b"d/%d" % number, 10 + number, 50)
    return source


async def names_of(namespace: Namespace, path: bytes) -> list[bytes]:
    listing: Listing = await namespace.listings.shown(await namespace.lookups.resolve(path))
    await listing.whole()
    return list(listing)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EHOSTDOWN, None])
@pytest.mark.parametrize("ttl_s", [0, 10])
async def test_a_known_listing_is_shown_past_its_time(number: int | None, ttl_s: float) -> None:
    """`None`: it hangs, and is waited for two seconds, once in five."""
    source = tree()
    namespace, metrics = await made(source, ttl_s)
    held = await looked_up(namespace, b"d")
    assert len(await names_of(namespace, b"d")) == 20
    await trio.sleep(11)
    source.number, source.hang = number, number is None
    del source.tree[b"d/7"]
    begin_s = trio.current_time()
    for _ in range(3):
        listing = await namespace.listings.shown(held)
        await listing.whole()
        assert len(listing) == 20
        assert metrics["stale_served"]
    assert trio.current_time() - begin_s <= 2.1
    asked = source.calls.count(("listing", b"d"))
    assert asked == 2, "for some seconds nothing is asked"
    await trio.sleep(6)
    await namespace.listings.shown(held)
    assert source.calls.count(("listing", b"d")) == asked + (number is not None or not ttl_s)
    with pytest.raises(SourceTimeout):
        await names_of(namespace, b"other")
    source.number, source.hang = None, False
    await trio.sleep(1300)
    assert len(await names_of(namespace, b"d")) == 19
    assert len(await names_of(namespace, b"d")) == 19


async def test_what_was_known_before_a_refresh_is_shown_while_the_source_is_away() -> None:
    source = tree()
    namespace, _ = await made(source, math.inf)
    held = await looked_up(namespace, b"d")
    await names_of(namespace, b"d")
    del source.tree[b"d/7"]
    source.number = errno.EIO
    await Refreshing(namespace).refresh(b"d", lambda _directories: None, trio.to_thread.run_sync)
    listing = await namespace.listings.shown(held)
    assert len(listing) == 20
    source.number = None
    await trio.sleep(6)
    assert len(await names_of(namespace, b"d")) == 19


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOENT])
async def test_what_the_source_says_of_a_directory_is_said(number: int) -> None:
    source = tree()
    namespace, metrics = await made(source)
    held = await looked_up(namespace, b"d")
    await names_of(namespace, b"d")
    await trio.sleep(11)
    source.error = number
    for _ in range(2):
        with pytest.raises(SourceError) as caught:
            await (await namespace.listings.shown(held)).whole()
        assert caught.value.errno == number
    source.error, source.number = None, errno.EIO
    with pytest.raises(SourceAway):
        await (await namespace.listings.shown(held)).whole()
    assert metrics["stale_served"] == 0


async def test_who_is_strict_waits_and_hears_it() -> None:
    source = tree()
    namespace, _ = await made(source, strict=True)
    held = await looked_up(namespace, b"d")
    await names_of(namespace, b"d")
    await trio.sleep(11)
    source.hang = True
    begin_s = trio.current_time()
    with pytest.raises(SourceTimeout):
        await (await namespace.listings.shown(held)).whole()
    assert trio.current_time() - begin_s > 500
    source.number = errno.ESTALE
    with pytest.raises(SourceTimeout):
        await namespace.lookups.children(held, [b"1", b"2"])


@pytest.mark.parametrize("slots", [True, False])
async def test_many_names_past_their_time_are_served_as_one_is(slots: bool) -> None:
    """Readers that have entries with their attributes ask for many at a time."""
    source = tree()
    namespace, metrics = await made(source, slot_table=FakeSlotTable() if slots else None)
    held = await looked_up(namespace, b"d")
    names = [b"%d" % number for number in range(20)]
    await namespace.lookups.attributes(held, names)
    await trio.sleep(11)
    source.number = errno.EHOSTDOWN
    for _ in range(2):
        found = await namespace.lookups.held(held, names)
        assert all(dentry.node is not None for dentry in found.values())
        assert len(await namespace.lookups.children(held, names)) == 20
    assert metrics["stale_served"] == 4
    with pytest.raises(SourceAway):
        await namespace.lookups.children(held, [b"1", b"never heard of"])
