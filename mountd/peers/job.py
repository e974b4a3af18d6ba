"""The peers of a job: where a chunk's home is, asking there, answering others. Implements `peers.Peers`.

Made by `peers.opening` once all have joined; `answer` is called when this daemon can. Event loop only.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

import trio

from mountd.base.version import Version
from mountd.core.background import start_guarded
from mountd.core.metrics import Metrics
from mountd.peers.answering import Answering, ChunkAnswers
from mountd.peers.asking import PeerAsking
from mountd.peers.homes import Homes
from mountd.peers.joining import Agreed, JobLimits
from mountd.peers.messages import (
    ChunkRequest,
    Figures,
    Message,
    MessageError,
    Question,
    Refusal,
    SlotDone,
    SlotGranted,
    SlotPending,
    SlotRequest,
    decode,
    encode,
)
from mountd.peers.peers import PeerAnswer
from mountd.peers.read_slots import ReadSlots
from mountd.peers.silent import SilentPeers
from mountd.peers.transport import Transport
from policies.cluster.placement import NOBODY
from policies.geometry import Extent

__all__ = ["JobPeers"]

log = logging.getLogger(__name__)

_SHARE = 4
"""A quarter of the buffers may wait for peers for readers, and a quarter for what is fetched ahead."""


_HEARD_OF = 5
"""So often a node says that it is there, in the time after which it is taken for one that hangs."""

_FIGURES_S = 5.0
"""A node answers from memory, whatever it waits for itself."""


class _Allowance:
    """A number of bytes; who wants more than are left waits, unless he is alone."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._lot = trio.lowlevel.ParkingLot()

    @asynccontextmanager
    async def taken(self, size: int) -> AsyncIterator[None]:
        while self._used_bytes and self._used_bytes + size > self._limit_bytes:
            await self._lot.park()
        self._used_bytes += size
        try:
            yield
        finally:
            self._used_bytes -= size
            self._lot.unpark_all()


class JobPeers:
    """See the file's story."""

    active = True

    def __init__(
        self,
        transport: Transport,
        agreed: Agreed,
        nursery: trio.Nursery,
        metrics: Metrics,
        run_in_thread: Callable[..., Awaitable[Any]],
        *,
        chunk_bytes: int,
        limits: JobLimits,
    ) -> None:
        self._transport = transport
        self._nursery = nursery
        self._metrics = metrics
        self._chunk_bytes = chunk_bytes
        self._limits = limits
        self._homes = Homes(agreed, transport.number, run_in_thread)
        self._partition = agreed.placement == "partition"
        self._silent = SilentPeers()
        self._asking = PeerAsking(
            transport,
            metrics,
            self._silent,
            run_in_thread,
            silence_s=limits.peer_timeout_s,
            total_limit_s=limits.source_timeout_s,
        )
        self._answering: Answering | None = None
        self._left = False
        self._figures: Callable[[], dict[str, int]] = dict
        self._questions: dict[int, tuple[trio.Event, dict[int, dict[str, int]]]] = {}
        self._question = 0
        self._turns = ReadSlots(
            transport.number,
            self._say,
            self._homes.home,
            nursery,
            metrics,
            self._silent,
            most=limits.stagger_job,
            silence_s=limits.peer_timeout_s,
            patience_s=limits.peer_timeout_s / _HEARD_OF,
        )
        self._staggers = limits.stagger * transport.count > limits.stagger_job
        """Else there are turns for all, and nobody needs to ask."""
        self._rooms = {urgent: _Allowance(limits.buffer_bytes // _SHARE) for urgent in (False, True)}
        transport.received = self._received
        transport.lost = self._lost

    def answer(self, answers: ChunkAnswers, figures: Callable[[], dict[str, int]]) -> None:
        """From now on peers are answered; before that they are refused. `figures`: what this node says of itself."""
        self._figures = figures
        self._answering = Answering(
            self._transport,
            answers,
            self._nursery,
            self._metrics,
            buffer_bytes=self._limits.buffer_bytes,
            patience_s=self._limits.peer_timeout_s / _HEARD_OF,
        )

    def leave(self) -> None:
        """The mount has gone: others are told, and this node answers nobody any more."""
        self._answering = None
        self._left = True
        self._transport.leave_nowait()

    # -- peers.Peers --------------------------------------------------------------------------------------------------

    def keeps(self, path: bytes, index: int) -> bool:
        """See `Peers`."""
        return not self._partition or self._homes.home(path, index) in (self._transport.number, NOBODY)

    def is_elsewhere(self, path: bytes, index: int) -> bool:
        """See `Peers`."""
        return self._homes.home(path, index) not in (self._transport.number, NOBODY)

    @property
    def share_bytes(self) -> int | None:
        """How much data this node would keep; None: too much to tell, or nobody has looked."""
        return self._homes.agreed.share_bytes(self._transport.number)

    def is_mine(self, path: bytes, index: int) -> bool:
        """Whether this node is its home."""
        return self._homes.home(path, index) == self._transport.number

    def room(self, size: int, *, urgent: bool) -> AbstractAsyncContextManager[None]:
        """See `Peers`."""
        return self._rooms[urgent].taken(size)

    async def fetch(
        self,
        path: bytes,
        version: Version,
        chunk_bytes: int,
        extent: Extent,
        into: memoryview,
        *,
        here_only: bool = False,
    ) -> PeerAnswer:
        """See `Peers`."""
        came = await self._ask(path, version, chunk_bytes, extent, into[: extent.size], here_only=here_only)
        if came is PeerAnswer.HIT:
            self._metrics.add("peer_reads")
            self._metrics.add("peer_read_bytes", extent.size)
        elif not here_only:
            self._metrics.add("peer_misses")
        return came

    async def have_staged(self, path: bytes, version: Version, chunk_bytes: int, extent: Extent) -> bool:
        """See `Peers`."""
        return await self._ask(path, version, chunk_bytes, extent, memoryview(b""), here_only=False) is PeerAnswer.HIT

    async def _ask(
        self, path: bytes, version: Version, chunk_bytes: int, extent: Extent, into: memoryview, *, here_only: bool
    ) -> PeerAnswer:
        home = self._homes.home(path, extent.start // chunk_bytes)
        if home in (self._transport.number, NOBODY) or self._silent.rests(home):
            return PeerAnswer.MISS
        return await self._asking.ask(home, path, version, chunk_bytes, extent, into, here_only=here_only)

    def turn(self, path: bytes, index: int, *, urgent: bool) -> AbstractAsyncContextManager[None]:
        """See `Peers`."""
        if not self._staggers:
            return nullcontext()
        return self._turns.turn(path, index, urgent=urgent)

    def directory(self) -> dict[str, object]:
        """See `Peers`."""
        agreed = self._homes.agreed
        return {
            "nodes": list(agreed.names),
            "hashes": list(agreed.nodes.hashes),
            "weights": list(agreed.nodes.weights),
            "node": self._transport.number,
            "placement": agreed.placement,
            "chunk_bytes": self._chunk_bytes,
            "gone": sorted(self._homes.gone),
        }

    async def cluster(self, own: dict[str, int]) -> list[dict[str, object]]:
        """See `Peers`."""
        others = set(range(self._transport.count)) - {self._transport.number} - self._homes.gone
        self._question += 1
        number, event, found = self._question, trio.Event(), {self._transport.number: own}
        self._questions[number] = event, found
        for node in others:
            self._transport.send_nowait(node, encode(Question(number)))
        try:
            with trio.move_on_after(_FIGURES_S):
                while others - found.keys() - self._homes.gone:
                    await event.wait()
                    event = trio.Event()
                    self._questions[number] = event, found
        finally:
            del self._questions[number]
        names = enumerate(self._homes.agreed.names)
        return [
            {"node": name, "figures": found[node]}
            if node in found
            else {"node": name, "error": "gone" if node in self._homes.gone else "no answer"}
            for node, name in names
        ]

    def shown(self) -> dict[str, object]:
        """See `Peers`."""
        names = self._homes.agreed.names
        return {
            "mode": "mpi",
            "node": names[self._transport.number],
            "nodes": len(names),
            "placement": self._homes.agreed.placement,
            "gone": [names[node] for node in sorted(self._homes.gone)],
            "resting": [name for node, name in enumerate(names) if self._silent.rests(node)],
        }

    # -- what comes from the transport --------------------------------------------------------------------------------

    def _received(self, sender: int, message: bytes) -> None:
        if self._left:
            return
        try:
            word = decode(message)
        except MessageError as error:
            self._metrics.add("peer_faults")
            log.debug("peers: node %d: %s", sender, error)
            return
        if isinstance(word, ChunkRequest):
            if self._answering is None:
                self._transport.send_nowait(sender, encode(Refusal(word.request)))
            else:
                self._answering.wished(sender, word)
        elif isinstance(word, SlotRequest | SlotPending | SlotGranted | SlotDone):
            self._turns.heard(sender, word)
        elif isinstance(word, Question):
            self._transport.send_nowait(sender, encode(Figures(word.request, self._figures())))
        elif isinstance(word, Figures):
            if word.request in self._questions:
                event, found = self._questions[word.request]
                found[sender] = word.figures
                event.set()
        else:
            self._asking.heard(sender, word)

    def _lost(self, node: int) -> None:
        if self._left or node in self._homes.gone or node == self._transport.number:
            return
        log.info("peers: %s has gone; its share belongs to the others now", self._homes.agreed.names[node])
        start_guarded(self._nursery, "share of a lost node", self._homes.lose, node)
        self._silent.lost(node)
        self._asking.lost(node)
        self._turns.lost(node)

    def _say(self, to: int, word: Message) -> None:
        self._transport.send_nowait(to, encode(word))
