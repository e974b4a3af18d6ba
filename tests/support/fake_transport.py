"""A network in virtual time for tests of the peers: what `mountd.peers.messages.Transport` says, with faults.

Messages take `delay_s`. `fault(sender, to, message)` may hold a message back or change it.
Bytes are written into the buffer of `take_nowait` half when they begin to come and
half when they are there, so a buffer that is used again too early shows.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable

import trio

from hfs.mountd.peers.messages import Listener


class FakeTransport:
    """One node's end."""

    kind = "fake"

    def __init__(self, network: FakeNetwork, number: int, count: int) -> None:
        self._network = network
        self.number, self.count, self.last_tag = number, count, 32767
        self.listener: Listener | None = None

    def listen(self, listener: Listener) -> None:
        self.listener = listener

    def leave_nowait(self) -> None:
        self._network.leave(self.number)

    def send_nowait(self, to: int, message: bytes) -> None:
        self._network.send(self.number, to, message)

    def give_nowait(self, to: int, tag: int, data: memoryview, done: Callable[[], None]) -> None:
        self._network.gifts[self.number, to, tag] = data, done
        self._network.match(self.number, to, tag)

    def take_nowait(self, giver: int, tag: int, into: memoryview, done: Callable[[bool], None]) -> None:
        assert (giver, self.number, tag) not in self._network.takes, "two answers under one tag"
        self._network.takes[giver, self.number, tag] = into, done
        self._network.match(giver, self.number, tag)


class FakeNetwork:
    """All ends."""

    def __init__(self, nursery: trio.Nursery, count: int, delay_s: float = 0.001) -> None:
        self._nursery = nursery
        self.delay_s = delay_s
        self.nodes = [FakeTransport(self, number, count) for number in range(count)]
        self.gifts: dict[tuple[int, int, int], tuple[memoryview, Callable[[], None]]] = {}
        self.takes: dict[tuple[int, int, int], tuple[memoryview, Callable[[bool], None]]] = {}
        self.fault: Callable[[int, int, bytes], bytes | None] = lambda _sender, _to, message: message
        """What becomes of a message; None: it is lost."""
        self.transfer_fails: Callable[[int, int], bool] = lambda _giver, _taker: False
        """Whether bytes between two nodes do not arrive whole: the taker is told."""
        self.transfer_s = 0.001
        self._under_way: defaultdict[tuple[int, int], deque[bytes | None]] = defaultdict(deque)
        self.held: list[tuple[int, int, bytes]] = []
        self.dead: set[int] = set()

    def send(self, sender: int, to: int, message: bytes) -> None:
        changed = self.fault(sender, to, message)
        if changed is None:
            self.held.append((sender, to, message))
        else:
            self._start(sender, to, changed)

    def release(self) -> None:
        """Deliver what was held back."""
        for sender, to, message in self.held:
            self._start(sender, to, message)
        self.held.clear()

    def leave(self, sender: int) -> None:
        """It says to all others that it goes, after all that it has said."""
        for node in self.nodes:
            if node.number != sender:
                self._start(sender, node.number, None)

    def _start(self, sender: int, to: int, message: bytes | None) -> None:
        self._under_way[sender, to].append(message)
        self._nursery.start_soon(self._deliver, sender, to)

    async def _deliver(self, sender: int, to: int) -> None:
        await trio.sleep(self.delay_s)
        message = self._under_way[sender, to].popleft()  # in order, whichever task wakes first
        listener = self.nodes[to].listener
        if to in self.dead or sender in self.dead or listener is None:
            return
        if message is None:
            listener.lost(sender)
        else:
            listener.received(sender, message)

    def match(self, giver: int, taker: int, tag: int) -> None:
        key = (giver, taker, tag)
        if key in self.gifts and key in self.takes:
            self._nursery.start_soon(self._transfer, giver, taker, self.gifts.pop(key), self.takes.pop(key))

    async def _transfer(
        self,
        giver: int,
        taker: int,
        gift: tuple[memoryview, Callable[[], None]],
        take: tuple[memoryview, Callable[[bool], None]],
    ) -> None:
        (data, given), (into, taken) = gift, take
        half = len(into) // 2
        into[:half] = data[:half]
        await trio.sleep(self.transfer_s)
        if self.dead & {giver, taker}:
            return
        whole = not self.transfer_fails(giver, taker)
        if whole:
            into[half:] = data[half:]
        given()
        taken(whole)

    def kill(self, node: int) -> None:
        """It is gone, and all others hear of it."""
        self.dead.add(node)
        for other in self.nodes:
            if other.number not in self.dead and other.listener is not None:
                other.listener.lost(node)
