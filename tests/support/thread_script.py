"""A thread that a test scripts: what each call takes and gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio


class Script:
    """Stands in for a thread: each call takes (seconds, result or error); an endless one never comes back."""

    def __init__(self, *rows: tuple[float, object]) -> None:
        self.rows = list(rows)
        self.calls = 0

    async def __call__(
        self, function: Callable[[], Any], *, abandon_on_cancel: bool, limiter: trio.CapacityLimiter
    ) -> object:
        async with limiter:
            delay_s, result = self.rows[min(self.calls, len(self.rows) - 1)]
            self.calls += 1
            self.running = function.__self__  # type: ignore[attr-defined]  # a bound method
            self.running.running = True
            await trio.sleep(delay_s)
            self.running.running = False
            if isinstance(result, Exception):
                raise result
            return result
