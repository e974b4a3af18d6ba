"""Answering peers: what they request of this node, a bounded number at a time.

Few are answered at a time, since each holds a chunk in memory until it has left; some more wait, which costs next to
nothing; beyond that the answer is no, at once. A peer that does not take its bytes is not answered any more until it
has. While a request takes its time its peer is told so. The bytes come from `ChunkAnswers`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple, Protocol

import trio

from hfs.mountd.core.attributes import Version
from hfs.mountd.core.background import start_for_life, start_guarded
from hfs.mountd.core.errors import HfsError
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.peers.joining import JobLimits
from hfs.mountd.peers.messages import ChunkRequest, Offer, Patience, Refusal, Transport, encode
from hfs.policies.geometry import Extent

log = logging.getLogger(__name__)

_AT_ONCE = 16
"""As many as there are prefetch threads: each may wait for the source."""
_WAITING = 1024
"""1 KB each. Seven peers with 16 threads that fetch ahead, and as many readers, request 224 at a time."""
TAKEN_S = 10.0
"""A peer that has not taken its bytes by then hangs."""
_SHARE = 4
"""A quarter of the buffers' size is on its way to peers at most, for one at least."""


class Bytes(NamedTuple):
    """An answer."""

    data: memoryview
    checksum: int


class ChunkAnswers(Protocol):
    """Where the bytes come from."""

    async def bytes_of(
        self, path: bytes, version: Version, chunk_bytes: int, extent: Extent, *, here_only: bool
    ) -> Bytes | None:
        """`extent` of a file; None if it cannot be had here. Empty: have its chunk staged. Raises HfsError."""


class Answering:
    """Event loop only."""

    def __init__(
        self, transport: Transport, answers: ChunkAnswers, nursery: trio.Nursery, metrics: Metrics, limits: JobLimits
    ) -> None:
        self._transport, self._answers, self._nursery, self._metrics = transport, answers, nursery, metrics
        self._patience_s = limits.patience_s
        self._memory = ByteAllowance(limits.buffer_bytes // _SHARE)
        self._begun = 0
        self._waiting: dict[tuple[int, int], None] = {}
        """Nodes, and the requests of theirs that take their time."""
        self._slots = trio.CapacityLimiter(_AT_ONCE)
        self._stuck: Counter[int] = Counter()
        """Nodes that have not taken what was sent."""
        start_for_life(nursery, "patience of peers", self._be_patient)

    def requested(self, sender: int, request: ChunkRequest) -> None:
        """A request has come."""
        if self._begun >= _AT_ONCE + _WAITING or self._stuck[sender] > 0:
            self._metrics.add("peer_refused_busy")
            self._transport.send_nowait(sender, encode(Refusal(request.request, busy=True)))
            return
        self._begun += 1
        start_guarded(self._nursery, "answer to a peer", self._answer, sender, request)

    async def _answer(self, sender: int, request: ChunkRequest) -> None:
        self._waiting[sender, request.request] = None
        try:
            async with self._slots, self._memory.taken(request.size):
                await self._send(sender, request)
        except Exception:  # a defect: its reader goes to the source
            self._metrics.add("unexpected_errors")
            log.exception("unforeseen error while a peer was answered")
            self._transport.send_nowait(sender, encode(Refusal(request.request)))
        finally:
            self._waiting.pop((sender, request.request), None)
            self._begun -= 1

    async def _be_patient(self) -> None:
        while True:
            await trio.sleep(self._patience_s)
            for sender, number in self._waiting:
                self._transport.send_nowait(sender, encode(Patience(number)))

    async def _send(self, sender: int, request: ChunkRequest) -> None:
        extent = Extent(request.start, request.start + request.size)
        try:
            found = await self._answers.bytes_of(
                request.path, request.version, request.chunk_bytes, extent, here_only=request.here_only
            )
        except HfsError as error:
            log.debug("peers: %r for node %d: %s", request.path, sender, error)
            found = None
        self._waiting.pop((sender, request.request), None)
        if found is None or self._stuck[sender] > 0:
            self._transport.send_nowait(sender, encode(Refusal(request.request)))
            return
        self._transport.send_nowait(sender, encode(Offer(request.request, request.size, found.checksum)))
        self._metrics.add("peer_served")
        self._metrics.add("peer_served_bytes", request.size)
        if request.size:
            await self._give(sender, request, found.data)

    async def _give(self, sender: int, request: ChunkRequest, data: memoryview) -> None:
        taken = trio.Event()
        self._transport.give_nowait(sender, request.request, data, taken.set)
        del data
        with trio.move_on_after(TAKEN_S):
            await taken.wait()
            return
        self._stuck[sender] += 1
        start_guarded(self._nursery, "peer that takes nothing", self._unstick, sender, taken)

    async def _unstick(self, sender: int, taken: trio.Event) -> None:
        await taken.wait()
        self._stuck[sender] -= 1


class ByteAllowance:
    """So many bytes of memory may be taken at a time for one purpose; more have to wait. Event loop only."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._freed = trio.lowlevel.ParkingLot()

    @asynccontextmanager
    async def taken(self, size: int) -> AsyncIterator[None]:
        """`size` bytes are taken within. Waits while others have too many; alone, any size is allowed."""
        while self._used_bytes and self._used_bytes + size > self._limit_bytes:
            await self._freed.park()
        self._used_bytes += size
        try:
            yield
        finally:
            self._used_bytes -= size
            self._freed.unpark_all()
