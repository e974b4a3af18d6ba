"""Telling overlays of objects, and letting go of what was told.

Who is told of an object may open it at any time, without us, as long as the generation lives that has asked. So of each
object it is remembered which number stood there when it was told last (`generation`): it may go once nobody has a
generation that is as old. What is to go before that is *leaving*: told no more, and gone when all have newer ones, for
which the number is moved. Where somebody holds an old generation, with a file open or a working directory, it stays as
long. An object that was told to nobody, or where nobody makes overlays, goes at once.

In this order: told no more; then it is looked who is there; then it is decided. A maker says that it is there before it
asks for the number, and asks for the number before it makes a generation, so one that comes later is told of none of
these. After a crash all objects count as told at the number that was found.

Event loop only; the disk is waited for in threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import trio

from hfs.mountd.cache.generation import Generation, Makers, OverlaysFound
from hfs.mountd.cache.objects.numbers import StampsByNumber
from hfs.mountd.core.attributes import Attributes, Version
from hfs.mountd.kernel import XattrAnswers

if TYPE_CHECKING:
    from hfs.mountd.cache.reclaimer import Reclaimer
    from hfs.mountd.cache.rows import RowUpdates

LATE_S = 5.0
"""Who has not let go of an object by then holds it for as long as a job may have a file open."""


@dataclass(frozen=True, slots=True)
class Leaver:
    """An object that is to go."""

    number: int
    version: Version
    room_bytes: int
    by_name: bool = False
    if_empty: bool = False
    is_to_go: bool = True
    """False: a part of it is to go, by whoever asks again."""


class Leavers:
    """`number in leavers`: it goes by itself."""

    def __init__(self) -> None:
        self._leaving: dict[int, tuple[Leaver, float]] = {}
        self.awaited_bytes = 0
        """What is about to be given back, by those that are not late."""
        self.some_are_late = False

    def __contains__(self, number: int) -> bool:
        return number in self._leaving

    def __len__(self) -> int:
        return len(self._leaving)

    def all(self) -> list[tuple[Leaver, float]]:
        """And since when."""
        return list(self._leaving.values())

    def add(self, leavers: Iterable[Leaver]) -> None:
        """Those that were leaving before are so by what is said last."""
        now_s = trio.current_time()
        for leaver in leavers:
            _, since_s = self._leaving.get(leaver.number, (leaver, now_s))
            self._leaving[leaver.number] = leaver, since_s
        self.count()

    def remove(self, numbers: Iterable[int]) -> None:
        """They are gone, or stay."""
        for number in numbers:
            self._leaving.pop(number, None)
        self.count()

    def count(self) -> None:
        """Once in a while: some may be late."""
        in_time_s = trio.current_time() - LATE_S
        in_time = [leaver.room_bytes for leaver, since_s in self._leaving.values() if since_s > in_time_s]
        self.awaited_bytes = sum(in_time)
        self.some_are_late = len(in_time) < len(self._leaving)


SHOWN_S = 1.0
"""So long, at most, is waited for new generations."""


class ExposedObjects:
    """Of one cache. Objects are known by their numbers."""

    def __init__(self, generation: Generation, answers: XattrAnswers | None) -> None:
        """`answers`: who tells besides `tell`; None: nobody."""
        self.generation = generation
        self._answers = answers
        self.on = False
        """Overlays are made, or were: else nothing is told, and all may go."""
        self.number = 1
        self.moved_s = -inf
        self.makers = Makers()
        """At the last look."""
        self.expected_until_s = -inf
        """Somebody is about to make overlays: until then."""
        self._looks = self._seen = 0
        self._looked = trio.Event()
        self._stamps = StampsByNumber()
        self._all_at, self._all_below = 0, 0.0
        """Objects below count as told at this number."""
        self._untold: set[int] = set()
        self.leavers = Leavers()
        self._used: list[int] = []
        self._watchers = 0
        self.is_move_wanted = False
        self.sound_again_bytes = 0
        """Of whole files of which nobody knew whether they are right, and that were found so: they may be told."""
        self.more = trio.Event()
        """There is something to be waited for."""

    async def open(self, next_id: int) -> None:
        """Before anything else. Objects from `next_id` on are new."""
        found = await self.generation.found()
        if found is not None:
            self._go_on(found, next_id)

    async def begin(self, root: Attributes, device: str = "", *, is_new: bool) -> None:
        """Overlays may be made from now on; as of `Generation.begin`. Raises OSError."""
        found = await self.generation.begin(root, device, is_new=is_new)
        if not self.on:
            self._go_on(found, 0)
        self.number, self.makers = max(self.number, found.number), found.makers

    async def clear(self) -> None:
        """A mount begins, and there is nothing to be told in it."""
        if self.on:
            await self.generation.clear()
            await self.look()

    def _go_on(self, found: OverlaysFound, next_id: int) -> None:
        self.on = True
        self.number, self.makers = max(self.number, found.number), found.makers
        if found.makers.files:
            self._all_at, self._all_below = self.number, next_id
        self.more.set()

    # -- telling -----------------------------------------------------------------------------------------------------

    def tell(self, number: int) -> bool:
        """Whether an overlay may be told of this object now; then it is from this moment on."""
        if number in self._untold:
            return False
        self._stamp(number)
        return True

    def hear(self) -> None:
        """What others have told."""
        self._stop(())

    def _stop(self, numbers: Sequence[int]) -> None:
        self._untold.update(numbers)
        if self._answers is None:
            return
        told, some_are_lost = self._answers.stop_telling(numbers)
        for number in told:
            self._stamp(number)
        if some_are_lost:
            self._all_at, self._all_below = self.number, inf

    def _stamp(self, number: int) -> None:
        if self._stamps[number] != self.number:
            self._stamps[number] = self.number
            self._used.append(number)

    def take_used(self) -> list[int]:
        """Objects that were told for the first time in a generation since the last call: they are in use."""
        used, self._used = self._used, []
        return used

    async def move(self, root: Attributes | None = None, *, is_needed: bool = True) -> int:
        """Have new generations made. `root`: of the mount, as it is now; `is_needed`: names lead astray without it,
        so that each maker makes one, however many of its own are alive. The new number."""
        self.hear()  # at the number so far
        self.number += 1
        self.moved_s, self.is_move_wanted = trio.current_time(), False
        number = self.number
        if not await self.generation.move(number, root, is_needed=is_needed):
            self.is_move_wanted = True  # again, when the disk does something
        return number

    # -- leaving -----------------------------------------------------------------------------------------------------

    async def leave(self, leavers: Sequence[Leaver]) -> set[int]:
        """These are told no more, until `end`. Those that may go now; the others are leaving."""
        self._stop([leaver.number for leaver in leavers])
        await self.look()
        free = {leaver.number for leaver in leavers if self.may_go(leaver.number)}
        if len(free) < len(leavers):
            self.leavers.add(leaver for leaver in leavers if leaver.number not in free)
            self.want_move()
        return free

    def want_move(self) -> None:
        """New generations are needed, in a moment."""
        self.is_move_wanted = True
        self.more.set()

    def may_go(self, number: int) -> bool:
        """Whether no generation may have this object open, as of the last look."""
        if self.makers.oldest is None:
            return True
        told_at = max(self._stamps[number], self._all_at if number < self._all_below else 0)
        return told_at < self.makers.oldest

    async def may_change(self, number: int) -> bool:
        """Look whether no generation may have this object open, which is told to nobody meanwhile."""
        if self.on:
            self.hear()
            await self.look()
        return self.may_go(number)

    def end(self, numbers: Iterable[int], *, gone: Iterable[int] = ()) -> None:
        """They are not leaving any more; those that are not `gone` may be told again."""
        ended = [number for number in numbers if number in self._untold]
        self._untold.difference_update(ended)
        self.leavers.remove(ended)
        if self._answers is not None and ended:
            self._answers.tell_again(ended)
        self._stamps.forget(gone)

    # -- looking -----------------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Look who makes overlays."""
        self._looks += 1
        look = self._looks
        makers = await self.generation.look()
        if makers is None:  # those that were there, and who knows what they have open
            makers = self.makers._replace(files=max(1, self.makers.files), oldest=0)
        if look > self._seen:  # else a later one was quicker
            self._seen, self.makers = look, makers
            self._looked.set()
            self._looked = trio.Event()

    @property
    def has_makers(self) -> bool:
        """There are some, as of the last look, or may be before the next."""
        return self.makers.files > 0 or trio.current_time() < self.expected_until_s

    @property
    def is_watched(self) -> bool:
        """Somebody waits for what makers do."""
        return self._watchers > 0

    async def wait_shown(self, number: int, at_most_s: float) -> bool:
        """Until all makers that live show this generation, or for so long. Whether they do."""
        begun, self._watchers = self._looks, self._watchers + 1
        self.more.set()
        try:
            with trio.move_on_after(at_most_s) as limit:
                while self._seen <= begun or (self.makers.shown is not None and self.makers.shown < number):
                    await self._looked.wait()
        finally:
            self._watchers -= 1
        return not limit.cancelled_caught


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
                await self._step()

    def _pause_s(self) -> float:
        telling = self._telling
        if not telling.on:
            return inf
        if telling.is_watched or telling.leavers.awaited_bytes:
            return _LOOK_S
        return _LOOK_SELDOM_S if telling.makers.files else _LOOK_IDLE_S

    async def _step(self) -> None:
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
        # Who has been opened, or pinned, meanwhile stays; where a maker is new it is leaving still.
        telling.end(one.number for one in leavers if telling.may_go(one.number))
