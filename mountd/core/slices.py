"""Long work of the event loop in slices: one of them in each turn, whoever asks, so that requests are answered between.

A turn of the loop runs every task that can go on. So it is not enough that each gives way after a moment: of a hundred
tasks with long work only one has its slice in a turn, and they take turns. Event loop only.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import trio

SLICE_S = 0.004
"""CPU of one slice, the last step of it not counted: a step is a millisecond at most."""


class Slices:
    """Those who share it take turns."""

    def __init__(self) -> None:
        self._turn = trio.Lock()

    async def carry_out(self, steps: Iterable[object]) -> None:
        """Go through `steps`, which does a piece of work before it gives each. What is decided in a step is marked in
        it: between two of them everything may have changed."""
        left = iter(steps)
        ended = object()
        while True:
            async with self._turn:
                until_s = time.thread_time() + SLICE_S
                while time.thread_time() < until_s:
                    if next(left, ended) is ended:
                        return
