"""What is leaving goes as soon as nobody may have it open any more; and makers are asked for newer generations for it.

See `told_objects`. Where somebody holds an old generation, with a file open or a working directory, it stays as long.
"""

from __future__ import annotations

from math import inf

import trio

from hfs.mountd.cache.leavers import Leaver
from hfs.mountd.cache.reclaimer import Reclaimer
from hfs.mountd.cache.table.row_updates import RowUpdates

_MOVE_EVERY_S = 1.0
"""A new generation takes each maker some 20 ms, and its readers look up anew what they read."""

_LOOK_S, _LOOK_SELDOM_S, _LOOK_IDLE_S = 0.02, 0.25, 1.0
"""How often, while somebody waits; while there are makers; and else."""

_AT_ONCE = 1024

_FORGET_S = 60.0
"""Of what only a part was to go: nobody has asked again."""


class Departures:
    """`run` is a task of the cache's nursery."""

    def __init__(self, reclaimer: Reclaimer, updates: RowUpdates) -> None:
        self._telling = reclaimer.telling
        self._reclaimer = reclaimer
        self._updates = updates
        self._oldest: int | None = None

    async def run(self) -> None:
        """Never returns."""
        telling = self._telling
        while True:
            with trio.move_on_after(self._pause_s()):
                await telling.more.wait()
                await trio.sleep(_LOOK_S)
            telling.more = trio.Event()
            if telling.on:
                await self._turn()

    def _pause_s(self) -> float:
        telling = self._telling
        if not telling.on:
            return inf
        if telling.is_watched or telling.leavers.awaited_bytes:
            return _LOOK_S
        return _LOOK_SELDOM_S if telling.makers.files else _LOOK_IDLE_S

    async def _turn(self) -> None:
        telling = self._telling
        telling.hear()
        self._updates.told(telling.take_used())
        await telling.look()
        telling.leavers.count()
        if telling.is_move_wanted and trio.current_time() >= telling.moved_s + _MOVE_EVERY_S:
            await telling.move(is_needed=False)
        if telling.makers.oldest != self._oldest:
            self._oldest = telling.makers.oldest
            await self._let_go()

    async def _let_go(self) -> None:
        leavers = self._telling.leavers.all()
        for start in range(0, len(leavers), _AT_ONCE):
            some = leavers[start : start + _AT_ONCE]
            await self._evict([one for one, _ in some if one.is_to_go and self._telling.may_go(one.number)])
            before_s = trio.current_time() - _FORGET_S
            self._telling.end(one.number for one, since_s in some if not one.is_to_go and since_s < before_s)
            await trio.lowlevel.checkpoint()

    async def _evict(self, leavers: list[Leaver]) -> None:
        for by_name in (True, False):
            its = [one for one in leavers if one.by_name == by_name]
            if its:
                if_empty = {one.number for one in its if one.if_empty}
                targets = [(one.number, one.version) for one in its]
                await self._reclaimer.evict(targets, by_name=by_name, if_empty=if_empty)
        telling = self._telling
        telling.leavers.departed(one.number for one in leavers if one.number not in telling.leavers)
        # Who has been opened, or pinned, meanwhile stays; where a maker is new it is leaving still.
        telling.end(one.number for one in leavers if telling.may_go(one.number))
