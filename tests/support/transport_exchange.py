"""What every transport between nodes must do: one program that each node runs, over MPI, ZeroMQ or the fake network.

As a program it is a rank of an MPI job (tests/mpi/test_harness.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import trio

from hfs.mountd.peers.messages import NodeInfo, Transport
from tests.support.pattern import pattern

WORDS = [b"word %d" % number for number in range(300)]
SIZES = (1, 1000, (256 << 10) + 1, 3 << 20)
"""Of what each gives to each."""


class Hearing:
    """A listener that remembers what came."""

    def __init__(self) -> None:
        self.words: dict[int, list[bytes]] = defaultdict(list)
        self.gone: list[int] = []
        self.given: Callable[[int], None] = lambda _node: None
        self._more = trio.Event()

    def received(self, sender: int, data: bytes) -> None:
        self.words[sender].append(bytes(data))
        if data == b"given":
            self.given(sender)
        self.stir()

    def lost(self, node: int) -> None:
        self.gone.append(node)
        self.stir()

    def joined(self, node: int, info: NodeInfo) -> None:
        raise AssertionError(f"{node} was gathered: {info}")

    def stir(self) -> None:
        self._more.set()
        self._more = trio.Event()

    async def until(self, happened: Callable[[], object]) -> None:
        while not happened():
            await self._more.wait()


async def exchange(transport: Transport, others: list[int], *, goes_first: bool) -> None:
    """Words in order and once, bytes whole, and who leaves is told of. Raises AssertionError.

    `goes_first`: of one node. The others wait for that.
    """
    hearing, takes, gifts = Hearing(), list[bool](), list[None]()
    into = {(node, tag): bytearray(size) for node in others for tag, size in enumerate(SIZES, start=1)}

    def take(giver: int) -> None:
        for tag in range(1, len(SIZES) + 1):
            buffer = memoryview(into[giver, tag])
            transport.take_nowait(giver, tag, buffer, lambda whole: (takes.append(whole), hearing.stir()))

    hearing.given = take
    transport.listen(hearing)
    assert transport.number not in others
    assert transport.count == len(others) + 1
    assert transport.last_tag >= 32767
    for word in WORDS:
        for node in others:
            transport.send_nowait(node, word)
    await hearing.until(lambda: all(len(hearing.words[node]) >= len(WORDS) for node in others))
    assert all(hearing.words[node][: len(WORDS)] == WORDS for node in others)

    for node in others:
        transport.send_nowait(node, b"given")
    for node, tag in into:
        data = memoryview(pattern(tag, 0, SIZES[tag - 1]))
        transport.give_nowait(node, tag, data, lambda: (gifts.append(None), hearing.stir()))
    await hearing.until(lambda: len(gifts) == len(takes) == len(into))
    assert all(takes)
    assert all(buffer == pattern(tag, 0, SIZES[tag - 1]) for (_, tag), buffer in into.items())

    for node in others:
        transport.send_nowait(node, b"last")
    await hearing.until(lambda: all(b"last" in hearing.words[node] for node in others))
    if not goes_first:
        await hearing.until(lambda: hearing.gone)
        assert hearing.gone[0] in others
        transport.send_nowait(hearing.gone[0], b"to nobody")
    transport.leave_nowait()


if __name__ == "__main__":
    from hfs.mountd.peers.mpi import MpiTransport

    async def rank() -> MpiTransport:
        transport = MpiTransport()
        await transport.start()
        numbers = range(transport.count)
        assert await transport.gather(b"%d" % transport.number, 30) == [b"%d" % number for number in numbers]
        others = [number for number in numbers if number != transport.number]
        await exchange(transport, others, goes_first=transport.number == 1)
        transport.end()
        return transport

    assert trio.run(rank).wait_ended(30)
    print("done", flush=True)
