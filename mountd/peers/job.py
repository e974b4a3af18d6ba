"""The peers of a job: asking the owner node of a chunk, answering others, and read slots at the source.

Made once all have joined; `answer` is called when this daemon can. Peers can only make it faster: whatever goes wrong
with one, the answer is "not from here", and the source is next. Works over any `Transport`. Event loop only.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import trio

from hfs.mountd.core.attributes import Version
from hfs.mountd.core.background import start_guarded
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.peers.answering import Answering, ByteAllowance, ChunkAnswers
from hfs.mountd.peers.asking import PeerAnswer, PeerAsking, SilentPeers
from hfs.mountd.peers.cluster_view import JobView
from hfs.mountd.peers.joining import Agreed, JobLimits, OwnerTable
from hfs.mountd.peers.messages import (
    ChunkRequest,
    Figures,
    MessageError,
    NodeInfo,
    Question,
    Refusal,
    SlotDone,
    SlotGranted,
    SlotPending,
    SlotRequest,
    Transport,
    decode,
    encode,
)
from hfs.mountd.peers.read_slots import ReadSlots
from hfs.policies.cluster.placement import would_own
from hfs.policies.geometry import Extent

log = logging.getLogger(__name__)

_SHARE = 4
"""A quarter of the buffers may wait for peers for readers, and a quarter for what is fetched ahead."""


class JobPeers:
    """`owners` says whom to ask, `view` tells of all nodes."""

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
        self._transport, self._nursery, self._metrics, self._limits = transport, nursery, metrics, limits
        self._silent = SilentPeers()
        self.owners = OwnerTable(agreed, transport.number, run_in_thread)
        self.view = JobView(transport, self.owners, self._silent, chunk_bytes)
        self._asking = PeerAsking(transport, metrics, self._silent, run_in_thread, limits)
        self._answering: Answering | None = None
        self._left = False
        self._figures: Callable[[], dict[str, int]] = dict
        self._read_slots = ReadSlots(
            transport,
            lambda path, index: would_own(self.owners.owner(path, index)),
            nursery,
            metrics,
            self._silent,
            most=limits.stagger_job,
            silence_s=limits.peer_timeout_s,
            patience_s=limits.patience_s,
        )
        self._rooms = {urgent: ByteAllowance(limits.buffer_bytes // _SHARE) for urgent in (False, True)}
        transport.listen(self)

    def answer(self, answers: ChunkAnswers, figures: Callable[[], dict[str, int]]) -> None:
        """From now on peers are answered; before that they are refused. `figures`: what this node says of itself."""
        self._figures = figures
        self._answering = Answering(self._transport, answers, self._nursery, self._metrics, self._limits)

    def leave(self) -> None:
        """The mount has gone: others are told, and this node answers nobody any more."""
        self._answering = None
        self._left = True
        self._transport.leave_nowait()

    def room(self, size: int, *, urgent: bool) -> AbstractAsyncContextManager[None]:
        """Waits until a buffer of so many bytes may be taken to be filled by a peer.

        Only part of the memory may wait for peers: their answers need memory there, and what they wait for may be ours.
        """
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
        """Fill `into[:extent.size]` with `extent`, which lies in one chunk, from the chunk's owner, or if that is this
        node from who owned it before. Never raises.

        `here_only`: not if the owner would have to ask the source for it.
        """
        came = await self._ask(path, version, chunk_bytes, extent, into[: extent.size], here_only=here_only)
        if came is PeerAnswer.HIT:
            self._metrics.add("peer_reads")
            self._metrics.add("peer_read_bytes", extent.size)
        elif not here_only:
            self._metrics.add("peer_misses")
        return came

    async def have_staged(self, path: bytes, version: Version, chunk_bytes: int, extent: Extent) -> bool:
        """Have a chunk's owner stage it, and wait for that. False if that could not be. Never raises."""
        return await self._ask(path, version, chunk_bytes, extent, memoryview(b""), here_only=False) is PeerAnswer.HIT

    async def _ask(
        self, path: bytes, version: Version, chunk_bytes: int, extent: Extent, into: memoryview, *, here_only: bool
    ) -> PeerAnswer:
        index, came = extent.start // chunk_bytes, PeerAnswer.GONE
        while came is PeerAnswer.GONE:  # whoever owns it now is asked, which may be the same node again
            asked, mine = self.owners.asked_first(path, index), self.owners.owned_here(path, index)
            if asked is None or self._silent.rests(asked) or (mine and not into):
                return PeerAnswer.MISS
            request = ChunkRequest(0, path, version, chunk_bytes, extent.start, len(into), here_only or mine)
            began_s = trio.current_time()
            came = await self._asking.ask(asked, request, into)
            if came is PeerAnswer.HIT and into:
                name, took_s = self.owners.agreed.names[asked], trio.current_time() - began_s
                self.view.links.update({f"bytes of {name}": len(into), f"us of {name}": int(1e6 * took_s)})
        return came

    def read_slot(self, path: bytes, index: int, *, urgent: bool) -> AbstractAsyncContextManager[None]:
        """Waits until this node may read a chunk of a large file from the source (`peers.read_slots`). Never fails."""
        if self._limits.stagger * self._transport.count <= self._limits.stagger_job:
            return nullcontext()  # there are slots for all, and nobody needs to ask
        return self._read_slots.held(path, index, urgent=urgent)

    # -- what comes from the transport --------------------------------------------------------------------------------

    def received(self, sender: int, data: bytes) -> None:
        """A small message has come: what it means is told to who waits for it."""
        if self._left:
            return
        try:
            message = decode(data)
        except MessageError as error:
            self._metrics.add("peer_faults")
            log.debug("peers: node %d: %s", sender, error)
            return
        if isinstance(message, ChunkRequest):
            if self._answering is None:
                self._transport.send_nowait(sender, encode(Refusal(message.request)))
            else:
                self._answering.requested(sender, message)
        elif isinstance(message, SlotRequest | SlotPending | SlotGranted | SlotDone):
            self._read_slots.heard(sender, message)
        elif isinstance(message, Question):
            self._transport.send_nowait(sender, encode(Figures(message.request, self.view.said(self._figures()))))
        elif isinstance(message, Figures):
            self.view.heard(sender, message)
        else:
            self._asking.heard(sender, message)

    def lost(self, node: int) -> None:
        """A node has gone: its share is the others', and nobody waits for it."""
        if self._left or node in self.owners.gone or node == self._transport.number:
            return
        log.info("peers: %s has gone; its share belongs to the others now", self.owners.agreed.names[node])
        self.owners.lose(node)
        start_guarded(self._nursery, "shares of nodes", self.owners.renew)
        self._silent.lost(node)
        self._asking.lost(node)
        self._read_slots.lost(node)

    def joined(self, node: int, info: NodeInfo) -> None:
        """A node has come, or come back: it is asked for its share again, whatever it was like before."""
        log.info("peers: %s is here; its share is its own from now on", info.host)
        self.owners.admit(node, info.host, info.capacity_bytes)
        start_guarded(self._nursery, "shares of nodes", self.owners.renew)
        self._silent.lost(node)
