"""That epoch plans have changed, and whether more is fetched for them now: told by sessions, seen by the follower.

Made before both, so that neither knows the other. Nothing more is fetched (backpressure) from the moment where
something found no room, until a reader goes on, an order changes, or a second has passed. Event loop only.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

_LOOK_AGAIN_S = 1.0
"""How often room is looked for while no reader goes on: a full cache disk may be emptied by somebody."""


class PlanChanges:
    """`wake`: there may be something to fetch; called at each change."""

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._more = trio.Event()
        self._held_back = False
        self._starved = False
        self.count = 0
        """Another number whenever there may be something to fetch that there was not."""

    @property
    def held_back(self) -> bool:
        """Something was not staged for want of room: nothing more is fetched now."""
        return self._held_back

    def changed(self) -> None:
        """A schedule has changed: more may be foreseen, or near."""
        self._more.set()
        self.go_on()

    def go_on(self) -> None:
        """There may be something to fetch, and room for it."""
        self._held_back = False
        self.count += 1
        self._wake()

    def landed(self) -> None:
        """What was being fetched is no longer."""
        self.count += 1
        self._wake()

    def look_on(self) -> None:
        """Not all has been looked at."""
        self._wake()

    def hold_back(self) -> None:
        """Something found no room."""
        if not self._held_back:
            self._held_back = True
            self._more.set()  # its time starts

    def starve(self) -> None:
        """All that may be ahead is: a reader that goes on makes room for more."""
        self._starved = True

    def reader_went_on(self) -> None:
        """A file that a plan names was opened."""
        if self._held_back or self._starved:
            self._starved = False
            self.go_on()

    async def wait(self) -> None:
        """Until a schedule has changed since the last wait, or it is time to look for room again. For one task."""
        with trio.move_on_after(_LOOK_AGAIN_S if self._held_back else math.inf) as waiting:
            await self._more.wait()
        if waiting.cancelled_caught:
            self.go_on()
        self._more = trio.Event()
