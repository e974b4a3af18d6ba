"""Who is here is found from a few addresses, and known again in a moment, whoever dies, hangs, comes late or lies."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio

from hfs.mountd.peers import roster
from hfs.mountd.peers.roster import Member, Roster
from hfs.mountd.peers.wires import HELLO, REFUSAL
from tests.conftest import Logs

TIMEOUT_S = 10.0
LIVES = itertools.count()
STRANGE = {"name": "n9", "since_ns": 5, "to": "", "echo": "", "wants": False, "others": [], "info": b"info"}


class FakeWires:
    """In place of `Wires`: to rosters of a network within the test, in order."""

    def __init__(self, network: Network, address: str) -> None:
        self.id, self.members = b"life%d" % next(LIVES), frozenset[bytes]()
        self.network, self.address = network, address
        self.lines, self.refusals = set[str](), list[str]()

    def post(self, endpoint: str, *words: bytes, now_or_never: bool = False) -> None:
        self.lines.add(endpoint)
        self.refusals += [word.decode() for word in words[1:] if words[0] == REFUSAL]
        self.network.send(self.address, self.id, endpoint, words)

    def drop(self, endpoint: str, member: bytes = b"") -> None:
        self.lines.discard(endpoint)


class Network:
    """Nodes by their numbers, which look for each other at addresses that follow from these."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._lives: dict[str, trio.CancelScope] = {}
        self._under_way: defaultdict[tuple[str, str], deque[tuple[bytes, tuple[bytes, ...]]]] = defaultdict(deque)
        self.nodes: dict[str, Roster] = {}
        self.cut = set[tuple[int, int]]()  # (from, to): nothing gets through
        self.changes: list[tuple[str, str, bool, float]] = []  # (who knows, of whom, here, when)
        self.messages = 0

    def send(self, sender: str, ident: bytes, endpoint: str, words: tuple[bytes, ...]) -> None:
        self.messages += 1
        self._under_way[sender, endpoint].append((ident, words))
        self._nursery.start_soon(self._deliver, sender, endpoint)

    async def _deliver(self, sender: str, endpoint: str) -> None:
        await trio.sleep(0.001)
        ident, words = self._under_way[sender, endpoint].popleft()
        node = self.nodes.get(endpoint)
        is_cut = any((sender, endpoint) == (address_of(one), address_of(other)) for one, other in self.cut)
        if node is not None and not is_cut and (words[0] in (HELLO, REFUSAL) or ident in node._wires.members):
            node.came(ident, words[0], words[1:], sender.rpartition(":")[0])

    def start(self, number: int, *seeds: int, info: bytes = b"info", name: str = "") -> Roster:
        address = address_of(number)

        async def addresses() -> list[str]:
            return [address_of(seed) for seed in seeds]

        def differs(other: bytes) -> str:
            return "" if other == info else f"{other!r} is not {info!r}"

        def changed(member: Member, here: bool) -> None:
            self.changes.append((address, member.name, here, trio.current_time()))

        wires = FakeWires(self, address)
        node = Roster(name or f"n{number}", "0.0.0.0:7", wires, addresses, differs, changed, TIMEOUT_S)
        self.nodes[address] = node
        node.announce(info)
        self._lives[address] = trio.CancelScope()
        self._nursery.start_soon(self._live, node, self._lives[address])
        return node

    async def _live(self, node: Roster, life: trio.CancelScope) -> None:
        with life:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(node.look)
                nursery.start_soon(node.run)

    def node(self, number: int) -> Roster:
        return self.nodes[address_of(number)]

    def kill(self, number: int) -> None:
        self._lives[address_of(number)].cancel()
        del self.nodes[address_of(number)]

    def knows(self, number: int, *others: int) -> bool:
        """Whether these and no others are here for a node."""
        here = {member.name for member in self.node(number).members.values() if member.here}
        return here == {f"n{other}" for other in others if other != number}


def address_of(number: int) -> str:
    return f"10.0.{number // 250}.{number % 250 + 1}:7"


@asynccontextmanager
async def network_of(*numbers: int) -> AsyncIterator[Network]:
    """All look for all of them, and have had a second for it."""
    async with trio.open_nursery() as nursery:
        network = Network(nursery)
        for number in numbers:
            network.start(number, *numbers)
        await trio.sleep(1)
        yield network
        nursery.cancel_scope.cancel()


async def test_all_find_all_and_one_address_is_enough() -> None:
    """As torchrun gives it: nodes learn of each other from the one that all know."""
    async with network_of(*range(5)) as network:
        assert all(network.knows(number, *range(5)) for number in range(5))
        assert not any(node.searching for node in network.nodes.values())
    async with network_of(0) as network:
        for number in (1, 2, 3):
            network.start(number, 0)
        await trio.sleep(3)
        assert all(network.knows(number, *range(4)) for number in range(4))


async def test_a_killed_one_that_starts_again_is_here_at_once() -> None:
    async with network_of(0, 1, 2) as network:
        network.kill(1)
        await trio.sleep(0.5)
        network.changes.clear()
        network.start(1, 0, 1, 2)
        again_s = trio.current_time()
        await trio.sleep(5)
        assert all(network.knows(number, 0, 1, 2) for number in range(3))
        of_it = [(here, when_s) for who, name, here, when_s in network.changes if (who, name) == (address_of(0), "n1")]
        assert [here for here, _ in of_it] == [False, True], "its former life ends first"
        assert of_it[-1][1] - again_s < 1


async def test_a_killed_one_is_gone_once_it_is_silent_for_long_and_one_that_leaves_at_once() -> None:
    async with network_of(0, 1, 2) as network:
        network.kill(1)
        await trio.sleep(TIMEOUT_S - 3)
        assert network.knows(0, 1, 2)
        await trio.sleep(4)
        assert network.knows(0, 2)
        network.node(2).leave()
        await trio.sleep(0.1)
        assert network.knows(0)
        await trio.sleep(2 * TIMEOUT_S)
        assert network.knows(0), "though its daemon still writes what it holds"


@pytest.mark.parametrize("cut", [{(0, 1)}, {(0, 1), (1, 0)}], ids=["one way", "both"])
@pytest.mark.parametrize("away_s", [2 * TIMEOUT_S, 1000])
async def test_who_does_not_hear_is_not_here_and_is_when_it_does(cut: set[tuple[int, int]], away_s: float) -> None:
    async with network_of(0, 1, 2) as network:
        network.cut = cut
        await trio.sleep(away_s)
        assert network.knows(0, 2)
        assert network.knows(1, 2)
        assert network.knows(2, 0, 1)
        network.cut = set()
        await trio.sleep(3)
        assert all(network.knows(number, 0, 1, 2) for number in range(3))


async def test_a_name_moves_and_addresses_that_nobody_gave_are_forgotten() -> None:
    """A pod that comes back has another address."""
    async with network_of(0) as network:
        network.start(1, 0)
        await trio.sleep(3)
        network.kill(1)
        network.start(7, 0, name="n1")
        await trio.sleep(3)
        assert network.knows(0, 1)
        (member,) = network.node(0).members.values()
        assert member.endpoint == address_of(7)
        network.kill(7)
        await trio.sleep(200)
        assert network.node(0)._wires.lines == set()


@pytest.mark.parametrize(
    ("started", "said"), [({"name": "n0"}, "another daemon is called n0"), ({"info": b"x"}, "b'x' is not b'info'")]
)
async def test_who_does_not_fit_is_refused_and_disturbs_nobody(
    started: dict[str, object], said: str, logs: Logs
) -> None:
    logs.expect("refused by")
    async with network_of(0, 1) as network:
        other = network.start(2, 0, 1, **started)
        await trio.sleep(3)
        assert said in other.refusals[0]
        assert network.knows(0, 1)
        assert network.knows(1, 0)


@pytest.mark.parametrize(
    "change", [{"others": ["x"]}, {"others": ["10.0.0.1:0"]}, {"since_ns": "no"}, {"name": b"\xff"}]
)
async def test_what_means_nothing_is_refused_and_another_release_too(change: dict[str, object]) -> None:
    async with network_of(0) as network:
        node, body = network.node(0), msgspec.msgpack.encode([*(STRANGE | change).values()])
        for words in ((roster._RELEASE, b"host:5", body), (roster._RELEASE, b"", body), (roster._RELEASE,), ()):
            node.came(b"stranger", HELLO, words, "10.9.9.9")
        assert node._wires.refusals == []
        node.came(b"stranger", HELLO, (roster._RELEASE, b"7", body), "10.9.9.9")
        node.came(b"stranger", HELLO, (b"99.9", b"7", b"\xff"), "10.9.9.9")
        assert node._wires.refusals[0] == "a hello that means nothing"
        assert "install the same release" in node._wires.refusals[1]
        assert not node.members
        assert not node.searching


async def test_liars_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster, "_MOST", 64)
    async with network_of(0) as network:
        node = network.node(0)
        for number in range(300):
            others = [f"10.9.{number % 250}.{other}:7" for other in range(1, 5)]
            body = msgspec.msgpack.encode([*(STRANGE | {"name": f"liar{number}", "others": others}).values()])
            node.came(b"liar%d" % number, HELLO, (roster._RELEASE, b"%d" % (number + 1), body), "10.9.9.9")
        assert (len(node.members), len(node._sought), len(node._refused)) == (64, 64, 64)
        await trio.sleep(200)
        assert (len(node.members), len(node._sought), len(node._refused)) == (0, 0, 0)


async def test_sixty_four_find_a_new_one_within_a_moment() -> None:
    async with network_of(*range(63)) as network:
        await trio.sleep(2)
        network.start(63, 0)
        await trio.sleep(3)
        assert all(network.knows(number, *range(64)) for number in range(64))
        before = network.messages
        await trio.sleep(TIMEOUT_S)
        assert network.messages - before <= 1.1 * 64 * 63 * 6, "heartbeats alone"
