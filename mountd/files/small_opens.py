"""The bytes of a small file at its open: in the page cache before its reader asks, so that no READ follows.

One push costs less than the two to five READs that the kernel's growing readahead makes of 110 KB, and the reader of a
small file reads all of it. Bounded in time: past it the reads wait, not the open.
"""

from __future__ import annotations

import trio

from hfs.mountd.base.errors import HfsError, VersionChanged
from hfs.mountd.cache import StagedFile
from hfs.mountd.fetch import PagePusher, PrefetchQueue, Resolver
from hfs.mountd.files.io_mode import IoMode
from hfs.mountd.namespace import Node, expire
from hfs.policies.geometry import Extent
from hfs.policies.iomode import SMALL_BYTES

_OPEN_WAIT_S = 2.0
"""How long an open may wait for the bytes of a small file; after that its reads wait."""


class SmallOpens:
    """Event loop only."""

    def __init__(self, resolver: Resolver, pusher: PagePusher, io_mode: IoMode, queue: PrefetchQueue) -> None:
        self._resolver = resolver
        self._pusher = pusher
        self._io_mode = io_mode
        self._queue = queue

    async def gives_bytes(self, node: Node) -> bool:
        """As that of `Unsized`."""
        return await self._resolver.unsized.gives_bytes(node)

    async def push(self, node: Node, file: StagedFile) -> None:
        """Have the bytes of a file of one chunk in the page cache, for an open that is not answered yet.

        Raises VersionChanged: the kernel looks the name up again, and its reader never notices.
        """
        if node.pushed:
            return
        if file.size > SMALL_BYTES or not self._pusher.on:
            if not self._resolver.is_here(file, 0):
                self._queue.window_nowait(node, file, [0])
            return
        with trio.move_on_after(_OPEN_WAIT_S):
            try:
                found = await self._resolver.get(node, file, Extent(0, file.size))
            except VersionChanged:
                expire(node)
                raise
            except HfsError:
                return  # the first READ meets the same error and tells it to its reader
            await self._push(node, memoryview(found.data))

    async def _push(self, node: Node, data: memoryview) -> None:
        if node.pushed:
            return  # by another open meanwhile
        if node.opens == 1 and not self._io_mode.stateless:  # then nobody knows who else has it open
            await self._pusher.push_whole(node, data)
        else:
            await self._pusher.push(node, 0, data)
