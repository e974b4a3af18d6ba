"""One of two nodes: one asks the other for parts again and again, over a transport of the daemons or plain TCP.

    part_rates.py OUT SIZES zeromq PEERS LISTEN SECRET    the node that does not listen at the first of PEERS asks
    part_rates.py OUT SIZES mpi                           rank 1 asks
    part_rates.py OUT SIZES tcp ask|give ADDRESS PORT

SIZES: BYTES:COUNT:AT_ONCE,...: so many parts of so many bytes, so many of them asked for at a time. Who asks writes a
JSON list to OUT: for each "bytes_per_s", and "p50_s" and "p99_s" of one part.
"""

import json
import socket
import statistics
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import trio

from hfs.mountd.peers.messages import NodeInfo, Transport
from hfs.mountd.peers.mpi import MpiTransport
from hfs.mountd.peers.zeromq import open_zeromq

OUT, SIZES, HOW, *REST = sys.argv[1:]
ASKED = struct.Struct("!QQ")
START_S = 30.0


def figures(took_s: list[float], size: int, all_s: float) -> dict[str, float]:
    return {
        "bytes_per_s": len(took_s) * size / all_s,
        "p50_s": statistics.median(took_s),
        "p99_s": sorted(took_s)[int(0.99 * len(took_s))],
    }


def rounds() -> list[tuple[int, int, int]]:
    return [tuple(map(int, each.split(":"))) for each in SIZES.split(",")]  # type: ignore[misc]  # three each


# -- a transport -------------------------------------------------------------------------------------------------------


class Giver:
    """Gives what is asked for."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._data = memoryview(bytes(max(size for size, _, _ in rounds())))
        self.left = trio.Event()

    def received(self, sender: int, data: bytes) -> None:
        tag, size = ASKED.unpack(data)
        self._transport.send_nowait(sender, data)
        self._transport.give_nowait(sender, tag, self._data[:size], lambda: None)

    def lost(self, _node: int) -> None:
        self.left.set()

    def joined(self, node: int, info: NodeInfo) -> None:
        """Nobody is waited for."""


class Asker:
    """Asks for parts."""

    def __init__(self, transport: Transport, other: int) -> None:
        self._transport, self._other = transport, other
        self._offered: dict[int, Callable[[], None]] = {}
        self._tag = 0

    def received(self, _sender: int, data: bytes) -> None:
        self._offered.pop(ASKED.unpack(data)[0])()

    def lost(self, node: int) -> None:
        raise SystemExit(f"{node} is lost")

    def joined(self, node: int, info: NodeInfo) -> None:
        """It is known already."""

    async def part(self, into: memoryview) -> float:
        self._tag = self._tag % 30_000 + 1
        tag, came, began_s = self._tag, trio.Event(), time.perf_counter()
        self._offered[tag] = lambda: self._transport.take_nowait(self._other, tag, into, lambda _whole: came.set())
        self._transport.send_nowait(self._other, ASKED.pack(tag, len(into)))
        await came.wait()
        return time.perf_counter() - began_s

    async def round(self, size: int, count: int, at_once: int) -> dict[str, float]:
        took_s: list[float] = []

        async def some() -> None:
            into = memoryview(bytearray(size))
            for _ in range(count // at_once):
                took_s.append(await self.part(into))

        began_s = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(at_once):
                nursery.start_soon(some)
        return figures(took_s, size, time.perf_counter() - began_s)


async def exchange(transport: Transport, other: int, *, asks: bool) -> list[dict[str, float]]:
    """What was found, of who asks."""
    if not asks:
        giver = Giver(transport)
        transport.listen(giver)
        await giver.left.wait()
        return []
    asker = Asker(transport, other)
    transport.listen(asker)
    found = [await asker.round(*each) for each in rounds()]
    transport.leave_nowait()
    return found


async def over_zeromq(peers: str, listen: str, secret: str) -> list[dict[str, float]]:
    async with open_zeromq(peers, listen, secret.encode(), timeout_s=10, is_again=False) as transport:
        assert len(await transport.gather(NodeInfo())) == 2
        return await exchange(transport, 1, asks=not peers.startswith(listen))


async def over_mpi(transport: MpiTransport) -> list[dict[str, float]]:
    await transport.start()
    await transport.gather(b"", START_S)
    found = await exchange(transport, 1 - transport.number, asks=transport.number == 1)
    transport.leave_nowait()
    transport.end()
    return found


# -- plain TCP ---------------------------------------------------------------------------------------------------------


def over_tcp(role: str, address: str, port: str) -> list[dict[str, float]]:
    """As many are asked for ahead as may be asked for at a time."""
    if role == "give":
        with socket.create_server((address, int(port))) as server:
            made, _ = server.accept()
        data = memoryview(bytes(max(size for size, _, _ in rounds())))
        while asked := made.recv(ASKED.size, socket.MSG_WAITALL):
            made.sendall(data[: ASKED.unpack(asked)[1]])
        return []
    found = []
    with _connected(address, int(port)) as made:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for size, count, at_once in rounds():
            into, began_s, took_s = memoryview(bytearray(size)), time.perf_counter(), list[float]()
            asked_s = [time.perf_counter()] * at_once
            made.sendall(ASKED.pack(0, size) * at_once)
            for number in range(count):
                got = 0
                while got < size:
                    got += made.recv_into(into[got:])
                took_s.append(time.perf_counter() - asked_s.pop(0))
                if number + at_once < count:
                    asked_s.append(time.perf_counter())
                    made.sendall(ASKED.pack(0, size))
            found.append(figures(took_s, size, time.perf_counter() - began_s))
    return found


def _connected(address: str, port: int) -> socket.socket:
    until_s = time.monotonic() + START_S
    while True:
        try:
            return socket.create_connection((address, port))
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.1)


if __name__ == "__main__":
    if HOW == "tcp":
        results = over_tcp(*REST)
    elif HOW == "zeromq":
        results = trio.run(over_zeromq, *REST)
    else:
        mpi = MpiTransport()
        results = trio.run(over_mpi, mpi)
        mpi.wait_ended(START_S)
    if results:
        Path(OUT).write_text(json.dumps(results))
