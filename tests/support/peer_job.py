"""Nodes of one job that fetch from each other, over a transport within the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import trio
import trio.testing
import xxhash

from hfs.mountd.core.attributes import Version
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.peers.answering import Bytes
from hfs.mountd.peers.asking import PeerAnswer
from hfs.mountd.peers.job import JobPeers
from hfs.mountd.peers.joining import Agreed, JobLimits, agree
from hfs.mountd.peers.messages import NodeInfo
from hfs.policies.geometry import Extent
from tests.support.fake_transport import FakeNetwork
from tests.support.pattern import pattern

CHUNK = 64 << 10
VERSION = Version("f" * 16, 7, 100 * CHUNK, 1, 1)
SILENCE_S = 10.0
CARD = NodeInfo(
    host="host",
    hfs_version="1",
    source_id="f" * 16,
    root_inode=2,
    chunk_bytes=CHUNK,
    placement="partition",
    stagger_job=64,
    peer_timeout_s=SILENCE_S,
    capacity_bytes=1 << 40,
)
LIMITS = JobLimits(buffer_bytes=64 * CHUNK, source_timeout_s=600, peer_timeout_s=SILENCE_S, stagger=8, stagger_job=64)


class Store:
    """What a node answers: bytes computed from the offset, after `delay_s`."""

    def __init__(self) -> None:
        self.delay_s = 0.01
        self.error: Exception | None = None
        self.has = True
        self.asked: list[Extent] = []
        self.at_once = 0
        self.most_at_once = 0

    async def bytes_of(
        self, path: bytes, version: Version, chunk_bytes: int, extent: Extent, *, here_only: bool
    ) -> Bytes | None:
        self.asked.append(extent)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await trio.sleep(self.delay_s)
        finally:
            self.at_once -= 1
        if self.error is not None:
            raise self.error
        if not self.has:
            return None
        data = pattern(1, extent.start, extent.size)
        return Bytes(memoryview(data), xxhash.xxh3_64_intdigest(data))


class Job:
    """Some nodes in virtual time."""

    def __init__(self, nursery: trio.Nursery, count: int, **info: object) -> None:
        self.network = FakeNetwork(nursery, count)
        self.metrics = [Metrics() for _ in range(count)]
        self.stores = [Store() for _ in range(count)]
        self._nursery, self._infos = nursery, [msgspec.structs.replace(CARD, **info)] * count
        self.nodes = [self._started(number, agree(self._infos)) for number in range(count)]

    def _started(self, number: int, agreed: Agreed) -> JobPeers:
        transport, metrics = self.network.nodes[number], self.metrics[number]
        node = JobPeers(transport, agreed, self._nursery, metrics, run_here, chunk_bytes=CHUNK, limits=LIMITS)
        node.answer(self.stores[number], lambda: {"staged": 5})
        return node

    def start_again(self, number: int) -> None:
        """A node that was killed comes back to the job."""
        self.network.dead.discard(number)
        agreed = agree([msgspec.structs.replace(info, settled=info.placement) for info in self._infos])
        self.nodes[number] = self._started(number, agreed)
        for other in self.nodes:
            if other is not self.nodes[number]:
                other.joined(number, msgspec.structs.replace(CARD, host=agreed.names[number]))

    def path_at(self, owner: int, asker: int = 0) -> bytes:
        """A path whose first chunk that node owns."""
        return next(
            path for path in (b"file-%d" % i for i in range(10_000)) if self.nodes[asker].owners.owner(path, 0) == owner
        )

    async def fetch(
        self, path: bytes, into: bytearray | None = None, asker: int = 0, *, here_only: bool = False
    ) -> PeerAnswer:
        """The first chunk, from its owner."""
        buffer = memoryview(bytearray(CHUNK) if into is None else into)
        came = await self.nodes[asker].fetch(path, VERSION, CHUNK, Extent(0, CHUNK), buffer, here_only=here_only)
        if came is PeerAnswer.HIT:
            assert bytes(buffer) == pattern(1, 0, CHUNK), "wrong bytes"
        return came


async def run_here(function: Callable[..., object], *args: object) -> object:
    """In place of a thread."""
    await trio.lowlevel.checkpoint()
    return function(*args)


@asynccontextmanager
async def job(count: int = 2, **info: object) -> AsyncIterator[Job]:
    """Nodes that say `info` of themselves."""
    async with trio.open_nursery() as nursery:
        yield Job(nursery, count, **info)
        nursery.cancel_scope.cancel()
