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

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from hfs.mountd.core.background import start_guarded
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.peers.asking import SilentPeers
from hfs.mountd.peers.messages import SlotDone, SlotGranted, SlotPending, SlotRequest, Transport, encode
from hfs.policies.cluster.placement import NOBODY
from hfs.policies.cluster.stagger import Place, Stagger

_COORDINATOR = -1
"""In place of the index of a chunk: its owner is the coordinator of the file."""

HELD_S = 60.0
"""So long a slot may be held while others wait."""

_Asker = tuple[int, int]
"""(node, number of its request)"""


class SlotCoordinator:
    """Grants the slots of the files that fall to this node, in the order of each file.

    Which read is next says policies/cluster/stagger.py, for nodes as within a node. A slot that is held for too long is
    that of a node which hangs, or of a source that does: it is taken back, and others read meanwhile.

    `say(node, message)` sends it there. `most`: reads of one file at a time in the whole job, at least 1. `patience_s`:
    so often a node that waits hears that its slot comes. Event loop only.
    """

    def __init__(
        self,
        say: Callable[[int, SlotPending | SlotGranted], None],
        nursery: trio.Nursery,
        *,
        most: int,
        patience_s: float,
    ) -> None:
        self._say, self._nursery, self._patience_s = say, nursery, patience_s
        self._stagger = Stagger(most)
        self._places: dict[_Asker, Place] = {}
        self._askers: dict[Place, _Asker] = {}
        self._waiting: set[_Asker] = set()
        self._held: OrderedDict[_Asker, float] = OrderedDict()
        """Since when, longest first."""
        self._tended = False

    def __len__(self) -> int:
        """Slots that are wanted or held."""
        return len(self._places)

    def wanted(self, node: int, message: SlotRequest) -> None:
        """A node wants a slot."""
        asker = node, message.request
        if asker in self._places:
            return  # said twice
        place = self._stagger.enter(message.path, message.index, urgent=message.urgent)
        self._places[asker], self._askers[place] = place, asker
        if place.may:
            self._grant(asker)
            return
        self._waiting.add(asker)
        if not self._tended:
            self._tended = True
            start_guarded(self._nursery, "read slots", self._tend)

    def done(self, node: int, request: int) -> None:
        """A node has read, or wants the slot no more."""
        asker = node, request
        place = self._places.pop(asker, None)
        if place is None:
            return  # taken back meanwhile
        del self._askers[place]
        self._waiting.discard(asker)
        self._held.pop(asker, None)
        following = self._stagger.leave(place)
        if following is not None:
            after = self._askers[following]
            self._waiting.discard(after)
            self._grant(after)

    def lost(self, node: int) -> None:
        """A node has gone: what it held is free."""
        for asker in [asker for asker in self._places if asker[0] == node]:
            self.done(*asker)

    def _grant(self, asker: _Asker) -> None:
        self._held[asker] = trio.current_time()
        self._say(asker[0], SlotGranted(asker[1]))

    async def _tend(self) -> None:
        """While any node waits: tell it so, and take back what is held for too long."""
        try:
            while self._waiting:
                await trio.sleep(self._patience_s)
                since_s = trio.current_time() - HELD_S
                for asker in [asker for asker, held_s in self._held.items() if held_s <= since_s]:
                    self.done(*asker)
                for node, request in list(self._waiting):
                    self._say(node, SlotPending(request))
        finally:
            self._tended = False


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
        self._transport, self._owner, self._metrics, self._silent = transport, owner, metrics, silent
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
