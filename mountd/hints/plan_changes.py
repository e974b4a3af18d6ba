"""That an epoch plan has changed: told by those who have a new order, seen by those who follow.

Made before both, so that neither knows the other. Event loop only.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

__all__ = ["PlanChanges"]


class PlanChanges:
    """`wake`: there may be something to fetch, also called at each change."""

    def __init__(self, wake: Callable[[], object]) -> None:
        self.wake = wake
        self._more = trio.Event()
        self.count = 0
        """So many so far."""

    def changed(self) -> None:
        """A schedule has changed: more may be foreseen, or near."""
        self.count += 1
        self.look_again()
        self.wake()

    def look_again(self) -> None:
        """Whoever waits looks, and at the time too."""
        self._more.set()

    async def wait(self) -> None:
        """Until one of these was called since the last wait. For one task."""
        await self._more.wait()
        self._more = trio.Event()
