"""The coordinator of read slots: grants the slots of the files that fall to this node, in the order of each file.

Which read is next says policies/cluster/stagger.py, the same as within a node. A slot that is held for too long is
that of a node which hangs, or of a source that does: it is taken back, and others read meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import trio

from hfs.mountd.core.background import start_guarded
from hfs.mountd.peers.messages import SlotGranted, SlotPending, SlotRequest
from hfs.policies.cluster.stagger import Place, Stagger

HELD_S = 60.0
"""So long a slot may be held while others wait."""

_Asker = tuple[int, int]
"""(node, number of its request)"""


class SlotCoordinator:
    """`say(node, message)` sends it there. `most`: reads of one file at a time in the whole job, at least 1.
    `patience_s`: so often a node that waits hears that its slot comes. Event loop only."""

    def __init__(
        self,
        say: Callable[[int, SlotPending | SlotGranted], None],
        nursery: trio.Nursery,
        *,
        most: int,
        patience_s: float,
    ) -> None:
        self._say = say
        self._nursery = nursery
        self._patience_s = patience_s
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
