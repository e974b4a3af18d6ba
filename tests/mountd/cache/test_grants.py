"""Room of a shared root: from the ledger, from caches without a daemon, from neighbours, and back again."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from hfs.mountd.cache.grants import CacheQuota
from hfs.mountd.cache.objects.context import Room
from hfs.mountd.cache.objects.disk import DiskSpace
from hfs.mountd.ledger import Ledger, Quota, QuotaRequest, Registration, ServedSource
from hfs.mountd.ledger.root import CacheRoot
from tests.conftest import Logs

SIZE = 900
take = Ledger.take
SPACE = DiskSpace(free_bytes=1 << 40, total_bytes=1 << 40)


def named(name: str) -> str:
    """As the ledger calls it: whose it is comes first."""
    return f"{os.geteuid()}-{name}"


def plain(name: str) -> str:
    return name.partition("-")[2]


async def at_once(sync_fn: Callable[..., Any], *args: Any, limiter: trio.CapacityLimiter | None = None) -> Any:
    await trio.lowlevel.checkpoint()
    return sync_fn(*args)


class Node:
    """Caches of one root. `evicted`: how much those without a daemon were to give up."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.rooms: dict[str, Room] = {}
        self.evicted: list[tuple[str, int]] = []
        self._registrations: list[Registration] = []

    async def cache(
        self, name: str, used_bytes: int = 0, size_bytes: int | None = SIZE, looks: bool = True
    ) -> CacheQuota:
        """A running one. `looks`: it goes on, and sees what others lack."""
        served = ServedSource(source=name.encode(), device=1, inode=len(self._registrations))
        registration = self.ledger.register(named(name), served, size_bytes)
        self._registrations.append(registration)
        grants = CacheQuota(registration, self.evict_idle, at_once)
        self.rooms[name] = room = Room(size_bytes, used_bytes, SPACE)
        await grants.begin(room)
        if looks:
            trio.lowlevel.spawn_system_task(self._look, grants, room)
        return grants

    async def _look(self, grants: CacheQuota, room: Room) -> None:
        async def evict() -> None:
            await trio.lowlevel.checkpoint()
            room.release(room.over_bytes())

        while True:
            await trio.sleep(1)
            if await grants.is_asked():
                await grants.keep(evict)

    async def evict_idle(self, name: str, wanted_bytes: int) -> None:
        await trio.lowlevel.checkpoint()
        self.evicted.append((plain(name), wanted_bytes))
        (entry,) = (found for found in self.ledger.listed() if found.name == name)
        with contextlib.closing(self.ledger.hold(name)) as hold:
            hold.settle(max(0, entry.grant.used_bytes - wanted_bytes))

    def idle(self, name: str, used_bytes: int, used_s: int = 0) -> None:
        """One without a daemon."""
        registration = self.ledger.register(named(name), ServedSource(source=b"/", device=1, inode=99), SIZE)
        registration.write(Quota(used_bytes, used_bytes, used_s))
        registration.close()

    def granted(self) -> dict[str, int]:
        found = {plain(entry.name): entry.grant.granted_bytes for entry in self.ledger.listed()}
        assert sum(found.values()) <= SIZE
        return found

    def lacking(self) -> dict[str, int]:
        """What they have said that they lack."""
        return {plain(entry.name): lacks for entry in self.ledger.listed() if (lacks := entry.claims.lacks_bytes)}

    def close(self) -> None:
        for registration in self._registrations:
            registration.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    (tmp_path / "root").mkdir(mode=0o700)
    with contextlib.closing(CacheRoot(str(tmp_path / "root"))) as root, contextlib.closing(Node(root.ledger)) as found:
        yield found


async def test_one_alone_takes_half_of_what_is_free_of_a_small_root_until_it_has_all(node: Node) -> None:
    grants = await node.cache("a", 100)
    assert node.granted() == {"a": 500}
    assert (node.rooms["a"].capacity_bytes, node.rooms["a"].limit_bytes()) == (500, SIZE)
    node.rooms["a"].charge(400)
    await grants.want(100)
    assert node.granted() == {"a": 700}
    node.rooms["a"].charge(200)
    await grants.want(200)
    assert node.granted() == {"a": SIZE}
    await grants.end(100)
    assert node.granted() == {"a": 100}


async def test_the_first_gives_up_what_it_uses_beyond_a_fair_share(node: Node) -> None:
    await node.cache("a", 900)
    second = await node.cache("b")
    assert node.rooms["b"].capacity_bytes == 0
    await second.want(450)
    assert node.granted() == {"a": 450, "b": 450}
    assert node.rooms["a"].used_bytes == 450
    node.rooms["b"].charge(450)
    began_s = trio.current_time()
    await second.want(50)
    assert trio.current_time() == began_s, "who has a fair share waits for no more"
    assert node.rooms["b"].shortfall_bytes(50) == 50


async def test_what_is_pinned_is_given_to_nobody(node: Node) -> None:
    await node.cache("a", 500)
    node.rooms["a"].pinned_bytes = 500
    second = await node.cache("b")
    await second.want(400)
    assert node.granted() == {"a": 500, "b": 400}
    assert node.rooms["a"].used_bytes == 500
    node.rooms["b"].charge(400)
    began_s = trio.current_time()
    await second.want(10)
    assert trio.current_time() < began_s + 2, "nobody has any to give"


async def test_idle_caches_go_first_and_the_oldest_of_them(node: Node) -> None:
    node.idle("old", 300, used_s=1)
    node.idle("older", 200, used_s=0)
    await node.cache("a", 300)
    second = await node.cache("b")
    await second.want(150)
    assert [name for name, _ in node.evicted] == ["older"]
    assert node.lacking() == {}
    assert node.rooms["b"].fits(150)
    node.rooms["b"].charge(200)
    await second.want(250)
    assert [name for name, _ in node.evicted] == ["older", "older", "old"]  # what is left of it first
    assert node.rooms["b"].fits(200)


async def test_an_idle_cache_gives_more_if_others_used_up_what_it_gave(node: Node) -> None:
    """What was free before is filled while it is evicted there."""
    node.idle("old", 700)
    grants = await node.cache("a")
    room = node.rooms["a"]
    evict_idle = node.evict_idle

    async def while_we_go_on(name: str, wanted_bytes: int) -> None:
        await evict_idle(name, wanted_bytes)
        if len(node.evicted) == 1:
            room.charge(200)

    grants._evict_idle = while_we_go_on
    await grants.want(250)
    assert len(node.evicted) > 1
    assert room.fits(250)


async def test_what_nobody_gives_is_waited_for_seconds_and_not_again_at_once(node: Node) -> None:
    """The first has a daemon that has stopped."""
    await node.cache("a", SIZE, looks=False)
    second = await node.cache("b")
    began_s = trio.current_time()
    await second.want(50)
    assert 3 <= trio.current_time() - began_s < 5
    assert node.lacking() == {}
    assert not second.lacks(10)
    began_s = trio.current_time()
    await second.want(10)
    assert trio.current_time() == began_s


async def test_who_is_cancelled_while_it_waits_lacks_nothing_any_more(node: Node) -> None:
    await node.cache("a", SIZE, looks=False)
    second = await node.cache("b", looks=False)
    with trio.move_on_after(1):
        await second.want(50)
    assert node.lacking() == {"b": 450}
    await second.keep(trio.lowlevel.checkpoint)
    assert node.lacking() == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("running", [True, False])
async def test_nobody_heeds_what_the_records_of_others_say(node: Node, tmp_path: Path, running: bool) -> None:
    """They say themselves what they hold, and what they lack; and ours give up room all the same."""
    theirs = f"4242-{0:016x}"
    registration = node.ledger.register(theirs, ServedSource(source=b"/", device=1, inode=2, control=b"/s"), SIZE)
    registration.write(Quota(1 << 62, 1 << 62, 0))
    registration.claim(QuotaRequest(0, 1 << 62))
    os.chown(tmp_path / "root" / "ledger" / theirs, 4242, 4242)
    if not running:
        registration.close()
    first = await node.cache("a", SIZE)
    await trio.sleep(5)
    assert not await first.is_asked()
    assert node.rooms["a"].used_bytes == SIZE
    second = await node.cache("b")
    await second.want(50)
    assert node.rooms["a"].used_bytes < SIZE
    assert node.evicted == []
    if running:
        registration.close()


async def test_who_finds_no_room_at_every_file_asks_the_ledger_now_and_then(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.cache("a", 450, looks=False)
    second = await node.cache("b", 450, looks=False)
    await second.want(50)
    asked = []
    monkeypatch.setattr(Ledger, "take", lambda *arguments: asked.append(arguments) or take(*arguments))
    for _ in range(50):
        await second.want(50, again=True)
        await trio.sleep(0.02)
    assert len(asked) <= 11
    await second.want(50)
    assert len(asked) <= 12


async def test_without_a_size_idle_caches_go_before_the_disk_is_full(node: Node) -> None:
    node.idle("old", 300)
    grants = await node.cache("a", 100, size_bytes=None)
    room = node.rooms["a"]
    assert room.capacity_bytes is None
    room.measured(DiskSpace(free_bytes=0, total_bytes=1 << 40))
    await grants.want(10)
    assert [name for name, _ in node.evicted] == ["old"]


async def test_without_a_size_a_neighbour_gives_up_what_it_has_beyond_a_fair_share(node: Node) -> None:
    """The disk is full of what the first has staged."""
    await node.cache("a", 1 << 39, size_bytes=None)
    second = await node.cache("b", size_bytes=None)
    for room in node.rooms.values():
        room.measured(DiskSpace(free_bytes=0, total_bytes=1 << 40))
    await second.want(10)
    assert node.rooms["a"].used_bytes < 1 << 39
    assert node.rooms["a"].capacity_bytes is None


async def test_a_cache_whose_room_cannot_be_written_down_fills_none(
    node: Node, monkeypatch: pytest.MonkeyPatch, logs: Logs
) -> None:
    logs.expect("the ledger of the cache")

    def broken(*_arguments: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Ledger, "take", broken)
    await node.cache("a", 100)
    assert node.rooms["a"].capacity_bytes == 100


async def test_a_ledger_that_fails_costs_room_and_nothing_else(
    node: Node, monkeypatch: pytest.MonkeyPatch, logs: Logs
) -> None:
    """It is told once."""
    logs.expect("the ledger of the cache")
    grants = await node.cache("a", 100)

    def broken(*_arguments: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Ledger, "take", broken)
    await grants.want(SIZE)
    await grants.keep(trio.lowlevel.checkpoint)
    assert node.rooms["a"].capacity_bytes == 500
    assert len(logs.records) == 1
