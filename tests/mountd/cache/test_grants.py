"""Room of a shared root: from the ledger, from caches without a daemon, from neighbours, and back again."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from hfs.mountd.cache.grants import Grants
from hfs.mountd.cache.objects import DiskSpace, Room
from hfs.mountd.ledger import Grant, Ledger, Listed, Registration, ServedSource
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


class Neighbours:
    """Others that give what they have; `asked` and `evicted` say how much of whom."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.running: dict[str, Grants] = {}
        self.starting: set[str] = set()
        """Those that cannot be asked yet."""
        self.asked: list[tuple[str, int]] = []
        self.evicted: list[tuple[str, int]] = []

    async def evict_idle(self, name: str, wanted_bytes: int) -> None:
        await trio.lowlevel.checkpoint()
        self.evicted.append((plain(name), wanted_bytes))
        (entry,) = (found for found in self._ledger.listed() if found.name == name)
        with contextlib.closing(self._ledger.hold(name)) as hold:
            hold.settle(max(0, entry.grant.used_bytes - wanted_bytes))

    async def ask(self, entry: Listed, wanted_bytes: int) -> int | None:
        self.asked.append((plain(entry.name), wanted_bytes))
        if plain(entry.name) in self.starting:
            await trio.lowlevel.checkpoint()
            return None

        async def evict() -> None:
            await trio.lowlevel.checkpoint()
            room = self.rooms[plain(entry.name)]
            assert room.capacity_bytes is not None
            room.release(room.over_bytes())

        return await self.running[plain(entry.name)].yield_room(wanted_bytes, evict)

    rooms: dict[str, Room]


class Node:
    """Caches of one root."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.others = Neighbours(ledger)
        self.others.rooms = self.rooms = {}
        self._registrations: list[Registration] = []

    async def cache(self, name: str, used_bytes: int = 0, size_bytes: int | None = SIZE) -> Grants:
        """A running one."""
        served = ServedSource(source=name.encode(), device=1, inode=len(self._registrations))
        registration = self.ledger.register(named(name), served, size_bytes)
        self._registrations.append(registration)
        grants = Grants(registration, self.others, at_once)
        room = Room(size_bytes, used_bytes, SPACE)
        self.rooms[name] = room
        self.others.running[name] = grants
        await grants.begin(room)
        return grants

    def idle(self, name: str, used_bytes: int, used_s: int = 0) -> None:
        """One without a daemon."""
        registration = self.ledger.register(named(name), ServedSource(source=b"/", device=1, inode=99), SIZE)
        registration.write(Grant(used_bytes, used_bytes, used_s))
        registration.close()

    def granted(self) -> dict[str, int]:
        found = {plain(entry.name): entry.grant.granted_bytes for entry in self.ledger.listed()}
        assert sum(found.values()) <= SIZE
        return found

    def close(self) -> None:
        for registration in self._registrations:
            registration.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    (tmp_path / "root").mkdir(mode=0o700)
    root = CacheRoot(str(tmp_path / "root"))
    found = Node(root.ledger)
    yield found
    found.close()
    root.close()


async def test_one_alone_has_all_of_a_small_root(node: Node) -> None:
    grants = await node.cache("a", 100)
    assert node.granted() == {"a": SIZE}
    assert (node.rooms["a"].capacity_bytes, node.rooms["a"].limit_bytes()) == (SIZE, SIZE)
    await grants.end(100)
    assert node.granted() == {"a": 100}


async def test_a_second_one_has_its_share_of_what_the_first_does_not_use(node: Node) -> None:
    await node.cache("a", 100)
    second = await node.cache("b")
    assert node.rooms["b"].capacity_bytes == 0
    await second.want(50)
    assert node.others.asked == [("a", 450)]
    assert node.granted() == {"a": 450, "b": 450}
    assert node.rooms["a"].used_bytes == 100


async def test_the_first_gives_up_what_it_uses_beyond_a_fair_share(node: Node) -> None:
    await node.cache("a", 900)
    second = await node.cache("b")
    await second.want(50)
    assert node.granted() == {"a": 450, "b": 450}
    assert node.rooms["a"].used_bytes == 450
    node.rooms["b"].charge(450)
    await second.want(50)
    assert node.others.asked == [("a", 450)]  # who has a fair share asks for no more
    assert node.rooms["b"].shortfall_bytes(50) == 50


async def test_idle_caches_go_first_and_the_oldest_of_them(node: Node) -> None:
    node.idle("old", 300, used_s=1)
    node.idle("older", 200, used_s=0)
    await node.cache("a", 300)
    second = await node.cache("b")
    await second.want(150)
    assert [name for name, _ in node.others.evicted] == ["older"]
    assert node.others.asked == []
    assert node.rooms["b"].fits(150)
    node.rooms["b"].charge(200)
    await second.want(250)
    assert [name for name, _ in node.others.evicted] == ["older", "older", "old"]  # what is left of it first
    assert node.rooms["b"].fits(200)


async def test_an_idle_cache_gives_more_if_others_used_up_what_it_gave(node: Node) -> None:
    """What was free before is filled while it is evicted there."""
    node.idle("old", 700)
    grants = await node.cache("a")
    room = node.rooms["a"]
    evict_idle = node.others.evict_idle

    async def while_we_go_on(name: str, wanted_bytes: int) -> None:
        await evict_idle(name, wanted_bytes)
        if len(node.others.evicted) == 1:
            room.charge(200)

    node.others.evict_idle = while_we_go_on  # type: ignore[method-assign]  # of a fake
    await grants.want(250)
    assert len(node.others.evicted) > 1
    assert room.fits(250)


async def test_what_cannot_be_had_is_not_asked_for_again_at_once(node: Node) -> None:
    await node.cache("a", 450)
    second = await node.cache("b")
    await second.want(450)
    node.rooms["b"].charge(450)
    asked = len(node.others.asked)
    for _ in range(3):
        await second.want(10)
    assert not second.lacks(10)
    assert len(node.others.asked) == asked
    await trio.sleep(11)
    await second.want(10)
    assert len(node.others.asked) == asked  # a fair share is all that one asks for


async def test_a_neighbour_that_only_starts_is_asked_again_at_once(node: Node) -> None:
    """Two come at a time: the first has taken all, and does not hear yet."""
    await node.cache("a")
    node.others.starting = {"a"}
    second = await node.cache("b")
    began_s = trio.current_time()
    while not node.rooms["b"].fits(50):
        if trio.current_time() > began_s + 1:
            node.others.starting = set()
        await second.want(50)
        await trio.sleep(0.02)  # as files come for which there is no room
    assert 1 < trio.current_time() - began_s < 1.2
    assert len(node.others.asked) <= 12
    assert node.granted() == {"a": 450, "b": 450}


async def test_all_who_do_not_answer_cost_the_time_of_one(node: Node) -> None:
    for number in range(8):
        await node.cache(f"a{number}", SIZE // 8)
    second = await node.cache("b")

    async def ask(entry: Listed, wanted_bytes: int) -> int | None:
        node.others.asked.append((entry.name, wanted_bytes))
        await trio.sleep_forever()

    node.others.ask = ask  # type: ignore[method-assign]  # of a fake
    began = trio.current_time()
    await second.want(SIZE // 9)
    assert node.others.asked
    assert trio.current_time() - began < 25


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("running", [True, False])
async def test_nobody_goes_where_the_records_of_others_lead(node: Node, tmp_path: Path, running: bool) -> None:
    """They say themselves what they hold, and where they listen; and ours are asked all the same."""
    theirs = f"4242-{0:016x}"
    registration = node.ledger.register(theirs, ServedSource(source=b"/", device=1, inode=2, control=b"/s"), SIZE)
    registration.write(Grant(1 << 62, 1 << 62, 0))
    os.chown(tmp_path / "root" / "ledger" / theirs, 4242, 4242)
    if not running:
        registration.close()
    await node.cache("a", SIZE)
    second = await node.cache("b")
    await second.want(50)
    assert {name for name, _ in node.others.asked} == {"a"}
    assert node.others.evicted == []
    if running:
        registration.close()


async def test_who_finds_no_room_at_every_file_asks_the_ledger_now_and_then(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.cache("a", 450)
    second = await node.cache("b", 450)
    await second.want(50)
    asked = []
    monkeypatch.setattr(Ledger, "take", lambda *arguments: asked.append(arguments) or take(*arguments))
    for _ in range(50):
        await second.want(50, again=True)
        await trio.sleep(0.02)
    assert len(asked) <= 11
    await second.want(50)
    assert len(asked) <= 12


async def test_a_lowered_size_takes_room_away(node: Node) -> None:
    grants = await node.cache("a", 800)
    second = await node.cache("b", size_bytes=SIZE // 2)
    await grants.keep()
    assert node.rooms["a"].over_bytes() == 800 - SIZE // 2
    await second.keep()


async def test_without_a_size_idle_caches_go_before_the_disk_is_full(node: Node) -> None:
    node.idle("old", 300)
    grants = await node.cache("a", 100, size_bytes=None)
    room = node.rooms["a"]
    assert room.capacity_bytes is None
    room.measured(DiskSpace(free_bytes=0, total_bytes=1 << 40))
    await grants.want(10)
    assert [name for name, _ in node.others.evicted] == ["old"]


async def test_without_a_size_a_neighbour_gives_up_what_it_has_beyond_a_fair_share(node: Node) -> None:
    """The disk is full of what the first has staged."""
    await node.cache("a", 1 << 39, size_bytes=None)
    second = await node.cache("b", size_bytes=None)
    for room in node.rooms.values():
        room.measured(DiskSpace(free_bytes=0, total_bytes=1 << 40))
    await second.want(10)
    assert [name for name, _ in node.others.asked] == ["a"]
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
    await grants.keep()
    assert await grants.yield_room(10, trio.lowlevel.checkpoint) == 0
    assert node.rooms["a"].capacity_bytes == SIZE
    assert len(logs.records) == 1
