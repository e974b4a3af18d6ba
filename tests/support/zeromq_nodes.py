"""Nodes of one job over ZeroMQ on loopback, in one event loop; and addresses that no other test listens at."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from hfs.mountd.core.hostlist import DEFAULT_LISTEN
from hfs.mountd.peers.zeromq import ZmqTransport, open_zeromq
from tests.support.peer_job import CARD

_jobs = itertools.count()


def loopback(count: int) -> list[str]:
    """Addresses of 127/8 of this process alone: a port is taken by nobody else there."""
    base, port = f"127.{100 + next(_jobs) % 100}.{os.getpid() % 251 + 1}", DEFAULT_LISTEN.rpartition(":")[2]
    return [f"{base}.{os.getpid() // 251 % 80 + number * 80 + 1}:{port}" for number in range(count)]


@asynccontextmanager
async def zeromq_nodes(count: int) -> AsyncIterator[list[ZmqTransport]]:
    """So many, which have all joined."""
    addresses, nodes = loopback(count), list[ZmqTransport]()
    complete, over = trio.Event(), trio.Event()

    async def live(listen: str) -> None:
        async with open_zeromq(",".join(addresses), listen, b"of tests" * 4, timeout_s=5, is_again=False) as node:
            assert len(await node.gather(CARD)) == count
            nodes.append(node)
            if len(nodes) == count:
                complete.set()
            await over.wait()

    async with trio.open_nursery() as nursery:
        for listen in addresses:
            nursery.start_soon(live, listen)
        await complete.wait()
        yield nodes
        over.set()
