"""Read slots: how many nodes of a job read one large file from the source at a time, and in the order of the file.

For each file one node is the coordinator, found as owners are (policies/cluster/placement.py), so nobody has to be
asked which. A node that wants to read a chunk from the source asks it, reads when it says so, and gives the slot back
when the read has ended. It is the order of the disks that is kept here, never a promise: whatever goes wrong with the
coordinator, its readers read at once, and a node that holds a slot and is lost, or hangs, holds it for a while at most.

    asks                                       coordinates
      SlotRequest(request, path, index) -------->
                                   <--------   SlotPending(request), every few seconds as long as it takes
                                   <--------   SlotGranted(request)
      SlotDone(request) ------------------------>
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from hfs.mountd.core.metrics import Metrics
from hfs.mountd.peers.messages import SlotDone, SlotGranted, SlotPending, SlotRequest, encode
from hfs.mountd.peers.silent import SilentPeers
from hfs.mountd.peers.slot_coordinator import SlotCoordinator
from hfs.mountd.peers.transport import Transport
from hfs.policies.cluster.placement import NOBODY

_COORDINATOR = -1
"""In place of the index of a chunk: its owner is the coordinator of the file."""


class _Asked:
    """A slot wanted, here."""

    __slots__ = ("coordinator", "granted", "heard")

    def __init__(self, coordinator: int) -> None:
        self.coordinator = coordinator
        self.heard = trio.Event()
        """Something has come: looked at, and replaced."""
        self.granted = False


class ReadSlots:
    """Event loop only. `owner(path, index)`: as `OwnerTable.owner`."""

    def __init__(
        self,
        transport: Transport,
        owner: Callable[[bytes, int], int],
        nursery: trio.Nursery,
        metrics: Metrics,
        silent: SilentPeers,
        *,
        most: int,
        silence_s: float,
        patience_s: float,
    ) -> None:
        """`most`: reads of one file at a time in the whole job, at least 1. `silence_s`: a coordinator that has said
        nothing for so long hangs; `patience_s`: so often one says that a slot comes."""
        self._transport = transport
        self._owner = owner
        self._metrics = metrics
        self._silent = silent
        self._silence_s = silence_s
        self._asked: dict[int, _Asked] = {}
        self._next = 0
        self._coordinator = SlotCoordinator(self._say, nursery, most=most, patience_s=patience_s)

    def __len__(self) -> int:
        """Slots that are wanted or held here, and those that this node coordinates for others and itself."""
        return len(self._asked) + len(self._coordinator)

    @asynccontextmanager
    async def held(self, path: bytes, index: int, *, urgent: bool) -> AsyncIterator[None]:
        """Chunk `index` of the file at `path` is read from the source within. Waits; never fails."""
        coordinator = self._owner(path, _COORDINATOR)
        if coordinator == NOBODY or self._silent.rests(coordinator):
            yield
            return
        self._next += 1
        request, asked = self._next, _Asked(coordinator)
        self._asked[request] = asked
        began_s = trio.current_time()
        try:
            self._say(coordinator, SlotRequest(request, path, index, urgent))
            await self._wait(asked)
            self._metrics.add("peer_read_slots")
            self._metrics.add("peer_read_slot_wait_ns", int((trio.current_time() - began_s) * 1e9))
            yield
        finally:
            del self._asked[request]
            self._say(coordinator, SlotDone(request))

    async def _wait(self, asked: _Asked) -> None:
        while not asked.granted:
            with trio.move_on_after(self._silence_s) as silence:
                await asked.heard.wait()
            if silence.cancelled_caught and not asked.heard.is_set():
                self._metrics.add("peer_faults")
                self._silent.hangs(asked.coordinator)
                self._go_without(asked.coordinator)
                return
            asked.heard = trio.Event()

    def heard(self, sender: int, message: SlotRequest | SlotPending | SlotGranted | SlotDone) -> None:
        """A message has come, of another node or of this one."""
        if isinstance(message, SlotRequest):
            self._coordinator.wanted(sender, message)
        elif isinstance(message, SlotDone):
            self._coordinator.done(sender, message.request)
        else:
            asked = self._asked.get(message.request)
            self._silent.answered(sender)
            if asked is not None and asked.coordinator == sender:
                asked.granted |= isinstance(message, SlotGranted)
                asked.heard.set()

    def lost(self, node: int) -> None:
        """A node has gone: what it held is free, and what waits for it as coordinator is read."""
        self._coordinator.lost(node)
        self._go_without(node)

    def _go_without(self, coordinator: int) -> None:
        for asked in self._asked.values():
            if asked.coordinator == coordinator:
                asked.granted = True
                asked.heard.set()

    def _say(self, to: int, message: SlotRequest | SlotPending | SlotGranted | SlotDone) -> None:
        if to == self._transport.number:
            self.heard(to, message)
        else:
            self._transport.send_nowait(to, encode(message))
