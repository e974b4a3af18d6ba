"""An allowance: so many bytes of memory may be taken at a time for one purpose; more have to wait."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class ByteAllowance:
    """Event loop only."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._freed = trio.lowlevel.ParkingLot()

    @asynccontextmanager
    async def taken(self, size: int) -> AsyncIterator[None]:
        """`size` bytes are taken within. Waits while others have too many; alone, any size is allowed."""
        while self._used_bytes and self._used_bytes + size > self._limit_bytes:
            await self._freed.park()
        self._used_bytes += size
        try:
            yield
        finally:
            self._used_bytes -= size
            self._freed.unpark_all()
