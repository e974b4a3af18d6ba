"""What of a root's size this cache may fill: taken in steps before it is needed, given back when it is not.

Room is found in this order: what nobody has a grant for; what caches without a daemon have staged, the one that was
used longest ago first; what running caches hold beyond a fair share. A cache that has less writes down what it lacks;
each daemon looks every second, and gives up what falls to it. Only then does the cache evict of its own. Where no size
was given the disk is the limit for all of them, and caches without a daemon go first all the same. Caches of other
users are neither opened nor heeded: what they write down would lead us anywhere.

A ledger that cannot be read or written costs room, never a read. Event loop only; one question at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from math import inf
from typing import TypeVar

import trio

from hfs.mountd.cache.objects.context import Room, RunInThread
from hfs.mountd.core.errors import HfsError
from hfs.mountd.ledger import Listed, QuotaRequest, Registration, Taken
from hfs.policies.cache.sharing import fair_bytes, givers, kept_bytes, step_bytes

log = logging.getLogger(__name__)

Value = TypeVar("Value")

_IDLE_BYTES = 1 << 30
"""So much is asked of a cache without a daemon at least, if the root is as large: each time its index is opened."""

_FRUITLESS_S = 10.0
"""When nothing more could be had it is not tried again for so long: to open an index, or to wait, costs something."""

_GIVEN_S = 20.0
"""So long others may take to give room up: to evict a gigabyte of small files takes seconds."""

_PATIENCE_S = 3.0
"""If none of them has begun after so long none will: they look every second."""

_LOOK_S = 0.1
"""How often it is looked meanwhile what they have given up. A look costs a millisecond here."""


class CacheQuota:
    """Of one cache, from `begin` to `end`."""

    def __init__(
        self, registration: Registration, evict_idle: Callable[[str, int], Awaitable[None]], run_in_thread: RunInThread
    ) -> None:
        """`evict_idle`: have a cache without a daemon give up so much, and its record show what is left. It does
        nothing where that cannot be had, and raises nothing."""
        self._registration = registration
        self._evict_idle = evict_idle
        self._run_in_thread = run_in_thread
        self._one_at_a_time = trio.Lock()
        self._fruitless_until = -1.0
        self._taken_s = -1.0
        """When it was looked last what is free."""
        self._room: Room | None = None
        self._claims: QuotaRequest | None = None
        """The claims as they were written down last."""
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
            await self._claim(0)
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
            if again and is_fruitless and trio.current_time() < self._taken_s + _LOOK_S:
                return  # all of the node take turns at the ledger
            taken = await self._take(wanted_bytes)
            if taken is None or not room.shortfall_bytes(wanted_bytes) or is_fruitless:
                return
            if not await self._of_idle(taken, wanted_bytes) and not await self._of_running(wanted_bytes):
                self._fruitless_until = trio.current_time() + _FRUITLESS_S

    async def is_asked(self) -> bool:
        """Somebody lacks room that others are to give up."""
        others = await self._try(self._registration.others)
        return any(entry.claims.lacks_bytes for entry in _running(others or []))

    async def keep(self, evict: Callable[[], Awaitable[object]]) -> None:
        """Write down what is used, give back what is not needed or due to others, see what these leave. `evict` makes
        what is used fit the capacity."""
        room = self._room
        if room is None or self._one_at_a_time.locked():
            return
        async with self._one_at_a_time:
            taken = await self._take(0)
            if taken is None:
                return
            kept = before = taken.granted_bytes
            if taken.size_bytes is not None:
                kept = kept_bytes(taken.size_bytes, before, room.used_bytes)
            due_bytes = self._due_bytes(taken, sum(entry.claims.lacks_bytes for entry in _running(taken.others)))
            if given_bytes := due_bytes.get(self._registration.name, 0):
                kept = min(kept, before - given_bytes)
                if kept < room.used_bytes:
                    await self._shrink(kept, evict)
            if kept < before:
                await self._give_back(max(kept, room.used_bytes))

    # -- inside ------------------------------------------------------------------------------------------------------

    async def _of_idle(self, taken: Taken, wanted_bytes: int) -> bool:
        """Room of caches without a daemon; whether it is enough."""
        room = self._bound
        ours = [entry for entry in taken.others if entry.is_ours and not entry.running]
        idle = sorted(ours, key=lambda entry: entry.grant.used_s)
        least_bytes = _IDLE_BYTES if taken.size_bytes is None else min(_IDLE_BYTES, taken.size_bytes // 8)
        for entry in idle:
            held_bytes = max(entry.grant.granted_bytes, entry.grant.used_bytes)
            while held_bytes > entry.claims.pinned_bytes:
                await self._evict_idle(entry.name, max(room.shortfall_bytes(wanted_bytes), least_bytes))
                left = await self._take(wanted_bytes)
                if not room.shortfall_bytes(wanted_bytes):
                    return True
                # What was staged meanwhile may have used up what it gave: it gives as long as it has something.
                grants = [other.grant for other in left.others if other.name == entry.name] if left is not None else []
                left_bytes = max((max(grant.granted_bytes, grant.used_bytes) for grant in grants), default=0)
                held_bytes = left_bytes if left_bytes < held_bytes else 0
        return False

    async def _of_running(self, wanted_bytes: int) -> bool:
        """Room that others hold beyond a fair share, up to ours; whether it is enough."""
        room, taken = self._bound, await self._take(wanted_bytes)
        least_bytes, until_s = inf, 0.0
        with trio.move_on_after(_GIVEN_S):
            while taken is not None and room.shortfall_bytes(wanted_bytes):
                lacks_bytes = sum(self._due_bytes(taken, self._wish_bytes(taken, wanted_bytes)).values())
                if lacks_bytes < least_bytes:
                    least_bytes, until_s = lacks_bytes, trio.current_time() + _PATIENCE_S
                if not lacks_bytes or trio.current_time() > until_s:
                    break
                await self._claim(lacks_bytes)
                await trio.sleep(_LOOK_S)
                taken = await self._take(wanted_bytes, lacks_bytes)
        await self._claim(0)
        return not room.shortfall_bytes(wanted_bytes)

    def _wish_bytes(self, taken: Taken, wanted_bytes: int) -> int:
        """What of others' room this cache would have, up to a fair share."""
        least_bytes = step_bytes(taken.size_bytes or 0)
        fair = self._fair_bytes(taken) - self._registration.grant.granted_bytes
        return min(fair, max(self._bound.shortfall_bytes(wanted_bytes), least_bytes))

    def _due_bytes(self, taken: Taken, lacking_bytes: int) -> dict[str, int]:
        """Who is to give up how much, so that somebody has so much more: none of it what is pinned."""
        fair = self._fair_bytes(taken)
        grants = {self._registration.name: (self._registration.grant.granted_bytes, self._bound.pinned_bytes)}
        for entry in _running(taken.others):
            grants[entry.name] = entry.grant.granted_bytes, entry.claims.pinned_bytes
        held = {name: granted - max(0, pinned - fair) for name, (granted, pinned) in grants.items()}
        return dict(givers(held, fair, lacking_bytes))

    async def _shrink(self, target: int, evict: Callable[[], Awaitable[object]]) -> None:
        room = self._bound
        capacity_bytes, room.capacity_bytes = room.capacity_bytes, target
        try:
            await evict()
        finally:
            if capacity_bytes is None:  # the disk is the limit, and has room now for who lacked it
                room.capacity_bytes = None

    @property
    def _bound(self) -> Room:
        assert self._room is not None
        return self._room

    async def _take(self, wanted_bytes: int, lacks_bytes: int = 0) -> Taken | None:
        room = self._bound
        used_bytes, self._taken_s = room.used_bytes, trio.current_time()
        taken = await self._try(lambda: self._registration.take(used_bytes, wanted_bytes))
        await self._claim(lacks_bytes)
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
        theirs = sum(max(min(entry.grant.granted_bytes, fair), entry.claims.pinned_bytes) for entry in running)
        theirs += sum(entry.claims.pinned_bytes for entry in taken.others if not entry.running)
        room.obtainable_bytes = max(taken.granted_bytes, taken.size_bytes - theirs)

    async def _give_back(self, granted_bytes: int) -> None:
        room = self._bound
        if room.capacity_bytes is not None:
            room.capacity_bytes = granted_bytes
        used_bytes = room.used_bytes
        await self._try(lambda: self._registration.give_back(granted_bytes, used_bytes))

    async def _claim(self, lacks_bytes: int) -> None:
        claims = QuotaRequest(self._bound.pinned_bytes, lacks_bytes)
        if claims != self._claims:
            self._claims = claims
            await self._try(lambda: self._registration.claim(claims))

    def _fair_bytes(self, taken: Taken) -> int:
        room = self._bound
        size_bytes = taken.size_bytes
        if size_bytes is None:  # the disk's: what all of them have, and what is left
            size_bytes = room.limit_bytes() + sum(entry.grant.used_bytes for entry in taken.others)
        return fair_bytes(size_bytes, 1 + sum(entry.running for entry in taken.others))

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


def _running(others: list[Listed]) -> list[Listed]:
    """Those of our user that have a daemon."""
    return [entry for entry in others if entry.is_ours and entry.running]
