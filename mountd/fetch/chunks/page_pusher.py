"""Pushing: bytes that are here are put into the kernel's page cache before a READ asks for them.

Bounded: as much as a quarter of the buffers may be on its way; what comes faster is not pushed, and its readers come to
us. Nothing is pushed that would push out more than it brings (a file that does not fit into memory), or while somebody
records what is read. Never fetches.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Protocol

import trio

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.core.background import start_guarded
from hfs.mountd.core.errors import StagingError
from hfs.mountd.core.limits import Memory
from hfs.mountd.namespace import Node, pages_given
from hfs.policies.geometry import Extent
from hfs.policies.iomode import SMALL_BYTES

PUSH_STEP_BYTES = 4 << 20
"""As far as readahead takes a read for the next one of a stream (policies/prefetch/readahead.py)."""

_SHOWN_BYTES = 256 << 10
"""One READ. With all pushed, windows ran dry since nobody saw the reader go on; with nothing pushed, a sequential read
of 1.2 GB from a fast source was slower by a third to a half."""

_PUSH_SHARE = 4
"""A quarter of the buffers may be on its way into the page cache. A push waits while the kernel fills the same page for
a READ, and that READ may wait for a buffer here: pushes that held all buffers once stopped a mount for good."""


class Push(enum.Enum):
    """What of a chunk is put into the page cache once it is here."""

    NOTHING = enum.auto()
    WHOLE = enum.auto()
    NEVER = enum.auto()
    """Not even where nobody else keeps it: its reads are to come to us."""
    AHEAD = enum.auto()
    """All but the beginning of every 4 MiB: the READ for it shows how far a sequential reader is."""


class PageCache(Protocol):
    """Puts bytes into the kernel's page cache of a node; False if that was not possible. Never raises."""

    async def push(self, node: Node, offset: int, data: memoryview) -> bool:
        """Any bytes, at an offset; may wait for readers."""

    async def push_whole(self, node: Node, data: memoryview) -> bool:
        """A whole file, which nobody has open whose open was answered: waits for no reader."""


class PagePusher:
    """Event loop only. Without `page_cache` nothing is pushed."""

    def __init__(
        self,
        page_cache: PageCache | None,
        cache: Cache,
        memory: Memory,
        nursery: trio.Nursery,
        *,
        is_recorded: Callable[[], bool],
        buffer_bytes: int,
    ) -> None:
        """`is_recorded`: somebody records what is read. `buffer_bytes`: of all buffers; a share may be on its way."""
        self._page_cache = page_cache
        self._cache = cache
        self._memory = memory
        self._is_recorded = is_recorded
        self._nursery = nursery
        self._limit_bytes = buffer_bytes // _PUSH_SHARE
        self._under_way_bytes = 0
        self._pushes_staged = False
        """A chunk is read from staging for the page cache: one at a time, since that is memory outside the buffers."""
        self._room = trio.lowlevel.ParkingLot()

    @property
    def on(self) -> bool:
        """True if bytes may be put into the kernel's page cache before they are asked for."""
        return self._page_cache is not None

    async def push(self, node: Node, offset: int, data: memoryview) -> bool:
        """Put `data` into the page cache of `node`; False if that was not possible. Never raises."""
        if self._page_cache is None or not await self._page_cache.push(node, offset, data):
            return False
        if offset == 0 and len(data) >= node.attributes.size:
            pages_given(node)
        return True

    async def push_whole(self, node: Node, data: memoryview) -> bool:
        """Put a whole file into the page cache of `node`, which nobody has open whose open was answered. As `push`."""
        if self._page_cache is None or not await self._page_cache.push_whole(node, data):
            return False
        pages_given(node)
        return True

    def start_nowait(self, node: Node, extent: Extent, data: memoryview, push: Push) -> None:
        """Push a chunk that has come, behind this call, unless as much as may be is being pushed."""
        if self._page_cache is None or not node.lookups:
            return
        hides = self._is_recorded() and node.attributes.size > extent.size
        if not hides and self._fits(extent.size) and self._memory.has_room(node.attributes.size):
            self._under_way_bytes += extent.size
            start_guarded(self._nursery, "push", self._push_chunk, node, extent, data, push)

    def start_staged_nowait(self, node: Node, file: StagedFile, extent: Extent) -> bool:
        """Put what is staged of one chunk into the page cache again, unless something is being put there. False: never,
        since the file does not fit into memory."""
        if not self._memory.has_room(file.size):
            return False
        if not self._pushes_staged:
            self._pushes_staged = True
            start_guarded(self._nursery, "push of staged bytes", self._push_staged, node, file, extent)
        return True

    async def wait_room(self, size: int) -> None:
        """Until the kernel has taken enough for `size` bytes more."""
        while self._page_cache is not None and self._under_way_bytes and not self._fits(size):
            await self._room.park()

    async def _push_staged(self, node: Node, file: StagedFile, extent: Extent) -> None:
        try:
            found = self._cache.reader.read_nowait(file, extent) if extent.size <= SMALL_BYTES else None
            data = memoryview(await self._cache.reader.read(file, extent) if found is None else found)
        except StagingError:
            return  # counted there
        finally:
            self._pushes_staged = False
        self.start_nowait(node, extent, data, Push.WHOLE)

    async def _push_chunk(self, node: Node, extent: Extent, data: memoryview, push: Push) -> None:
        try:
            if push is Push.AHEAD:
                for start in range(_SHOWN_BYTES, len(data), PUSH_STEP_BYTES):
                    end = start - _SHOWN_BYTES + PUSH_STEP_BYTES
                    await self.push(node, extent.start + start, data[start:end])
            else:
                await self.push(node, extent.start, data)
        finally:
            self._under_way_bytes -= extent.size
            self._room.unpark_all()

    def _fits(self, size: int) -> bool:
        return self._under_way_bytes + size <= self._limit_bytes
