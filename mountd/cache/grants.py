"""What of a root's size this cache may fill: taken in steps before it is needed, given back when it is not.

Room is found in this order: what nobody has a grant for; what caches without a daemon have staged, the one that was
used longest ago first; what running caches hold beyond a fair share, by asking their daemons. Only then does the cache
evict of its own. Where no size was given the disk is the limit for all of them, and caches without a daemon go first
all the same. Caches of other users are neither opened nor asked: what they write down would lead us anywhere.

A ledger that cannot be read or written costs room, never a read. Event loop only; one question at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import trio

from hfs.mountd.base.errors import HfsError
from hfs.mountd.cache.objects import Room, RunInThread
from hfs.mountd.ledger import Listed, Registration, Taken
from hfs.policies.cache.sharing import fair_bytes, givers, kept_bytes, step_bytes

log = logging.getLogger(__name__)

Value = TypeVar("Value")

_IDLE_BYTES = 1 << 30
"""So much is asked of a cache without a daemon at least, if the root is as large: each time its index is opened."""

_FRUITLESS_S = 10.0
"""When nothing more could be had, nobody else is asked again for so long: each question costs others something."""

_ASKED_S = 20.0
"""For all who are asked, one after the other: to evict a gigabyte of small files takes seconds, and one that does not
answer gives nothing."""

_UNREACHED_S = 0.1
"""But so soon where somebody could not be asked: a daemon that starts has taken room already, and answers in a second.
Until then what is read of the source is staged nowhere, and may be read again. A question costs a millisecond here."""


class Others(Protocol):
    """The other caches of our user in the root."""

    async def evict_idle(self, name: str, wanted_bytes: int) -> None:
        """Have a cache without a daemon give up so much, those of its files first that were used longest ago, and its
        record show what is left. Does nothing where it cannot be had. Raises nothing."""
        ...

    async def ask(self, entry: Listed, wanted_bytes: int) -> int | None:
        """Ask a running one to give back so much; how much it has. None: it cannot be asked, it starts or ends. Raises
        nothing."""
        ...


class Grants:
    """Of one cache, from `begin` to `end`."""

    def __init__(self, registration: Registration, others: Others, run_in_thread: RunInThread) -> None:
        self._registration = registration
        self._others = others
        self._run_in_thread = run_in_thread
        self._one_at_a_time = trio.Lock()
        self._fruitless_until = -1.0
        self._taken_s = -1.0
        """When it was looked last what is free."""
        self._unreached = False
        """Somebody who holds more than a fair share could not be asked."""
        self._room: Room | None = None
        self._pinned_bytes = -1
        """As it was written down last."""
        self._failing = False
        """It was told that the ledger cannot be read or written."""

    async def begin(self, room: Room) -> None:
        """Take over what the cache holds, and a step more as far as it is free."""
        self._room = room
        if await self._take(1) is None:  # nothing may be filled that nobody has written down
            room.capacity_bytes = max(room.used_bytes, self._registration.grant.granted_bytes)

    async def end(self, held_bytes: int) -> None:
        """Keep no more than what is staged, which is so much: there is no daemon any more."""
        if self._room is not None:
            self._room.used_bytes = held_bytes  # less than was accounted: room is granted to the data plane ahead
            await self._tell_pins()
            await self._give_back(held_bytes)

    def lacks(self, ahead_bytes: int) -> bool:
        """Whether to ask now, so that so much can be staged without asking."""
        room = self._room
        if room is None or room.capacity_bytes is None or trio.current_time() < self._fruitless_until:
            return False
        return room.used_bytes + ahead_bytes > room.capacity_bytes and room.limit_bytes() > room.capacity_bytes

    async def want(self, wanted_bytes: int, *, again: bool = False) -> None:
        """Have room for so much more, as far as it can be had without evicting what this cache holds.

        `again`: it is asked at every file, and comes to nothing for a moment after it did.
        """
        room = self._room
        if room is None:
            return
        async with self._one_at_a_time:
            is_fruitless = trio.current_time() < self._fruitless_until
            if again and is_fruitless and trio.current_time() < self._taken_s + _UNREACHED_S:
                return  # all of the node take turns at the ledger
            taken = await self._take(wanted_bytes)
            if taken is None or not room.shortfall_bytes(wanted_bytes) or is_fruitless:
                return
            self._unreached = False
            if await self._of_idle(taken, wanted_bytes) or await self._of_running(taken, wanted_bytes):
                return
            self._fruitless_until = trio.current_time() + (self.asks_again_s or _FRUITLESS_S)

    @property
    def asks_again_s(self) -> float | None:
        """When others are asked again, if that is soon; None: it is not."""
        return _UNREACHED_S if self._unreached else None

    async def keep(self) -> None:
        """Write down what is used, give back what is not needed, see what the others leave."""
        room = self._room
        if room is None or self._one_at_a_time.locked():
            return
        async with self._one_at_a_time:
            taken = await self._take(0)
            if taken is not None and taken.size_bytes is not None:
                kept = kept_bytes(taken.size_bytes, taken.granted_bytes, room.used_bytes)
                if kept < taken.granted_bytes:
                    await self._give_back(kept)

    async def yield_room(self, asked_bytes: int, evict: Callable[[], Awaitable[object]]) -> int:
        """Give so much back to others, down to a fair share: what is unused first. `evict` makes what is used fit the
        capacity. Returns the bytes given."""
        room = self._room
        if room is None:
            return 0
        async with self._one_at_a_time:
            taken = await self._take(0)
            if taken is None:
                return 0
            before = self._registration.grant.granted_bytes
            fair = self._fair_bytes(taken, 1 + sum(entry.running for entry in taken.others))
            target = max(min(fair, before), before - asked_bytes)
            if target < room.used_bytes:
                capacity_bytes, room.capacity_bytes = room.capacity_bytes, target
                try:
                    await evict()
                finally:
                    if capacity_bytes is None:  # the disk is the limit, and has room now for who asked
                        room.capacity_bytes = None
            await self._give_back(max(target, room.used_bytes))
            return before - self._registration.grant.granted_bytes

    # -- inside ------------------------------------------------------------------------------------------------------

    async def _of_idle(self, taken: Taken, wanted_bytes: int) -> bool:
        """Room of caches without a daemon; whether it is enough."""
        room = self._bound
        ours = [entry for entry in taken.others if entry.is_ours and not entry.running]
        idle = sorted(ours, key=lambda entry: entry.grant.used_s)
        least_bytes = _IDLE_BYTES if taken.size_bytes is None else min(_IDLE_BYTES, taken.size_bytes // 8)
        for entry in idle:
            held_bytes = max(entry.grant.granted_bytes, entry.grant.used_bytes)
            while held_bytes > entry.pinned_bytes:
                await self._others.evict_idle(entry.name, max(room.shortfall_bytes(wanted_bytes), least_bytes))
                left = await self._take(wanted_bytes)
                if not room.shortfall_bytes(wanted_bytes):
                    return True
                # What was staged meanwhile may have used up what it gave: it gives as long as it has something.
                grants = [other.grant for other in left.others if other.name == entry.name] if left is not None else []
                left_bytes = max((max(grant.granted_bytes, grant.used_bytes) for grant in grants), default=0)
                held_bytes = left_bytes if left_bytes < held_bytes else 0
        return False

    async def _of_running(self, taken: Taken, wanted_bytes: int) -> bool:
        """Room that others hold beyond a fair share, up to ours; whether it is enough."""
        room = self._bound
        fair = self._fair_bytes(taken, 1 + sum(entry.running for entry in taken.others))
        wish = min(
            fair - self._registration.grant.granted_bytes,
            max(room.shortfall_bytes(wanted_bytes), step_bytes(taken.size_bytes or 0)),
        )
        running = {entry.name: entry for entry in taken.others if entry.is_ours and entry.running}
        held = {name: entry.grant.granted_bytes for name, entry in running.items()}
        until = trio.current_time() + _ASKED_S
        for name, asked_bytes in givers(held, fair, wish):
            with trio.CancelScope(deadline=until) as asking:
                self._unreached |= await self._others.ask(running[name], asked_bytes) is None
            await self._take(wanted_bytes)
            if asking.cancelled_caught:
                break
        return not room.shortfall_bytes(wanted_bytes)

    @property
    def _bound(self) -> Room:
        assert self._room is not None
        return self._room

    async def _take(self, wanted_bytes: int) -> Taken | None:
        room = self._bound
        used_bytes, self._taken_s = room.used_bytes, trio.current_time()
        taken = await self._try(lambda: self._registration.take(used_bytes, wanted_bytes))
        await self._tell_pins()
        if taken is not None:
            self._apply(taken)
        return taken

    def _apply(self, taken: Taken) -> None:
        room = self._bound
        if taken.size_bytes is None:
            room.capacity_bytes = room.obtainable_bytes = None
            return
        running = [entry for entry in taken.others if entry.running]
        fair = fair_bytes(taken.size_bytes, len(running) + 1)
        room.capacity_bytes = taken.granted_bytes
        theirs = sum(max(min(entry.grant.granted_bytes, fair), entry.pinned_bytes) for entry in running)
        theirs += sum(entry.pinned_bytes for entry in taken.others if not entry.running)
        room.obtainable_bytes = max(taken.granted_bytes, taken.size_bytes - theirs)

    async def _give_back(self, granted_bytes: int) -> None:
        room = self._bound
        if room.capacity_bytes is not None:
            room.capacity_bytes = granted_bytes
        used_bytes = room.used_bytes
        await self._try(lambda: self._registration.give_back(granted_bytes, used_bytes))

    async def _tell_pins(self) -> None:
        """What nobody needs to ask for."""
        pinned_bytes = self._bound.pinned_bytes
        if pinned_bytes != self._pinned_bytes:
            self._pinned_bytes = pinned_bytes
            await self._try(lambda: self._registration.pins(pinned_bytes))

    def _fair_bytes(self, taken: Taken, running: int) -> int:
        room = self._bound
        size_bytes = taken.size_bytes
        if size_bytes is None:  # the disk's: what all of them have, and what is left
            size_bytes = room.limit_bytes() + sum(entry.grant.used_bytes for entry in taken.others)
        return fair_bytes(size_bytes, running)

    async def _try(self, work: Callable[[], Value]) -> Value | None:
        try:
            found: Value = await self._run_in_thread(work)
        except (OSError, HfsError) as error:
            if not self._failing:
                log.warning("the ledger of the cache: %s; the cache goes on with the room that it has", error)
            self._failing = True
            return None
        self._failing = False
        return found
