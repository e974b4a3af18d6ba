"""Turns: how many nodes of a job read one large file from the source at a time, and in the order of the file.

For each file one node keeps the turns, found as homes are (policies/cluster/placement.py), so nobody has to be asked
which. Who wants to read a chunk from the source asks it and reads when it says so; a turn is given back when the read
has ended. It is the order of the disks that is kept here, never a promise: whatever ails the keeper, its readers read
at once, and whoever holds a turn and is lost, or hangs, holds it for a while at most.

    asks                                     keeps
      SlotRequest(request, path, index) -------->
                                 <--------   SlotPending(request), every few seconds as long as it takes
                                 <--------   SlotGranted(request)
      SlotDone(request) --------------------->

Called by `peers.job`. Event loop only. The policy is policies/cluster/stagger.py, the same as within a node.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from mountd.core.background import start_guarded
from mountd.core.metrics import Metrics
from mountd.peers.messages import SlotDone, SlotGranted, SlotPending, SlotRequest
from mountd.peers.silent import SilentPeers
from policies.cluster.placement import NOBODY
from policies.cluster.stagger import Place, Stagger

__all__ = ["HELD_S", "ReadSlots"]

HELD_S = 60.0
"""A turn held for longer is that of a node which hangs, or of a source that does: others may read meanwhile."""

KEY = -1
"""In place of the index of a chunk: the keeper of a file's turns."""


class _Asked:
    """A turn wanted, here."""

    __slots__ = ("heard", "keeper", "may")

    def __init__(self, keeper: int) -> None:
        self.keeper = keeper
        self.heard = trio.Event()
        """Something has come: looked at, and replaced."""
        self.may = False


class ReadSlots:
    """`say(node, word)`: send it there. `keeper(path, KEY)`: the node that keeps a file's turns, or NOBODY.

    `most`: reads of one file at a time in the whole job, at least 1. `silence_s`: a keeper that has said nothing for so
    long hangs; `patience_s`: so often one says that a turn comes.
    """

    def __init__(
        self,
        number: int,
        say: Callable[[int, SlotRequest | SlotPending | SlotGranted | SlotDone], None],
        keeper: Callable[[bytes, int], int],
        nursery: trio.Nursery,
        metrics: Metrics,
        silent: SilentPeers,
        *,
        most: int,
        silence_s: float,
        patience_s: float,
    ) -> None:
        self._silence_s = silence_s
        self._patience_s = patience_s
        self._number = number
        self._say_to = say
        self._keeper = keeper
        self._nursery = nursery
        self._metrics = metrics
        self._silent = silent
        # What this node asks for.
        self._asked: dict[int, _Asked] = {}
        self._next = 0
        # What this node keeps.
        self._stagger = Stagger(most)
        self._places: dict[tuple[int, int], Place] = {}
        self._names: dict[Place, tuple[int, int]] = {}
        self._waiting: set[tuple[int, int]] = set()
        self._held: OrderedDict[tuple[int, int], float] = OrderedDict()
        """Since when, longest first."""
        self._tended = False

    def __len__(self) -> int:
        """ReadSlots that are wanted or held here, and those that this node keeps for others and itself."""
        return len(self._asked) + len(self._places)

    # -- asking -------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def turn(self, path: bytes, index: int, *, urgent: bool) -> AsyncIterator[None]:
        """Chunk `index` of the file at `path` is read from the source within. Waits; never fails."""
        keeper = self._keeper(path, KEY)
        if keeper == NOBODY or self._silent.rests(keeper):
            yield
            return
        self._next += 1
        request, asked = self._next, _Asked(keeper)
        self._asked[request] = asked
        began_s = trio.current_time()
        try:
            self._say(keeper, SlotRequest(request, path, index, urgent))
            await self._wait(asked)
            self._metrics.add("peer_turns")
            self._metrics.add("peer_turn_wait_ns", int((trio.current_time() - began_s) * 1e9))
            yield
        finally:
            del self._asked[request]
            self._say(keeper, SlotDone(request))

    async def _wait(self, asked: _Asked) -> None:
        while not asked.may:
            with trio.move_on_after(self._silence_s) as silence:
                await asked.heard.wait()
            if silence.cancelled_caught and not asked.heard.is_set():
                self._metrics.add("peer_faults")
                self._silent.hangs(asked.keeper)
                for other in self._asked.values():
                    if other.keeper == asked.keeper:
                        other.may = True
                        other.heard.set()
                return
            asked.heard = trio.Event()

    # -- what others say ----------------------------------------------------------------------------------------------

    def heard(self, sender: int, word: SlotRequest | SlotPending | SlotGranted | SlotDone) -> None:
        """A word has come, of another node or of this one."""
        if isinstance(word, SlotRequest):
            self._wanted(sender, word)
        elif isinstance(word, SlotDone):
            self._ended((sender, word.request))
        else:
            asked = self._asked.get(word.request)
            self._silent.answered(sender)
            if asked is not None and asked.keeper == sender:
                asked.may |= isinstance(word, SlotGranted)
                asked.heard.set()

    def lost(self, node: int) -> None:
        """A node has gone: what it held is free, and who waits for it as keeper reads."""
        for name in [name for name in self._places if name[0] == node]:
            self._ended(name)
        for asked in self._asked.values():
            if asked.keeper == node:
                asked.may = True
                asked.heard.set()

    # -- keeping ------------------------------------------------------------------------------------------------------

    def _wanted(self, sender: int, word: SlotRequest) -> None:
        name = sender, word.request
        if name in self._places:
            return  # said twice
        place = self._stagger.enter(word.path, word.index, urgent=word.urgent)
        self._places[name], self._names[place] = place, name
        if place.may:
            self._go(name)
            return
        self._waiting.add(name)
        if not self._tended:
            self._tended = True
            start_guarded(self._nursery, "turns", self._tend)

    def _ended(self, name: tuple[int, int]) -> None:
        place = self._places.pop(name, None)
        if place is None:
            return  # taken back meanwhile
        del self._names[place]
        self._waiting.discard(name)
        self._held.pop(name, None)
        following = self._stagger.leave(place)
        if following is not None:
            after = self._names[following]
            self._waiting.discard(after)
            self._go(after)

    def _go(self, name: tuple[int, int]) -> None:
        self._held[name] = trio.current_time()
        self._say(name[0], SlotGranted(name[1]))

    async def _tend(self) -> None:
        """While somebody waits: tell him so, and take back what is held for too long."""
        try:
            while self._waiting:
                await trio.sleep(self._patience_s)
                since_s = trio.current_time() - HELD_S
                for name in [name for name, held_s in self._held.items() if held_s <= since_s]:
                    self._ended(name)
                for sender, request in list(self._waiting):
                    self._say(sender, SlotPending(request))
        finally:
            self._tended = False

    def _say(self, to: int, word: SlotRequest | SlotPending | SlotGranted | SlotDone) -> None:
        if to == self._number:
            self.heard(to, word)
        else:
            self._say_to(to, word)
