"""Large staged files that are read in no order through the page cache of the mount: brought into it as a whole.

A READ costs two wake-ups, 100 us, whoever answers it; what is put into the page cache in steps of megabytes costs a
quarter of that a byte, and its readers do not ask at all. So once somebody has read a fair part of a file in no order,
the rest is pushed: from where the last read ended on, around the end of the file, one file at a time, if memory has
room for twice as much. Random reads of 128 KiB were 1.5 to 2 times as fast the first time; who reads in order has the
kernel's readahead, and was slower by a third with pushes beside. Where the kernel reads files by itself (passthrough)
nothing is done here. Decides when; the bytes are the reader's (`cache.reader`), the pushes the pusher's. Event loop
only.
"""

from __future__ import annotations

import trio

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.core.errors import StagingError
from hfs.mountd.core.memory import Memory
from hfs.mountd.fetch import PagePusher
from hfs.mountd.files.delegations import Delegations
from hfs.mountd.kernel import DataPlane
from hfs.mountd.namespace import Node
from hfs.policies.geometry import Extent

_LOOK_S = 0.02
"""How often it is looked how much was read: two hundred READs."""

_LEAST_BYTES = 4 << 20
_PART = 16
"""Of a file must have been read. To push it all for nobody costs some five times what reading this part took."""

_STEP_BYTES = 4 << 20
"""Pushed at a time: some 2 ms of a thread."""


class PageFill:
    """`run` is a task of the service."""

    def __init__(
        self, plane: DataPlane, delegations: Delegations, cache: Cache, pusher: PagePusher, memory: Memory
    ) -> None:
        self._plane = plane
        self._delegations = delegations
        self._cache = cache
        self._pusher = pusher
        self._memory = memory
        self._at_bytes: dict[Node, int] = {}
        """Of files that were filled: when so much has been read, they are again."""

    async def run(self) -> None:
        """Never returns."""
        if not self._pusher.on:
            await trio.sleep_forever()
        while True:
            await self._delegations.wait_large_reads()
            files = self._delegations.large_reads()
            self._at_bytes = {node: self._at_bytes[node] for node, _ in files if node in self._at_bytes}
            for node, file in files:
                begin = self._where_to_begin(node, file)
                if begin is not None:
                    await self._fill(node, file, begin)
            await trio.sleep(_LOOK_S)

    def _where_to_begin(self, node: Node, file: StagedFile) -> int | None:
        progress = self._plane.progress(node.id)
        if progress is None:
            return None
        wanted = max(_LEAST_BYTES, file.size // _PART)
        if progress.size_bytes < self._at_bytes.get(node, wanted) or not self._memory.has_room(file.size):
            return None
        self._at_bytes[node] = progress.size_bytes + file.size  # the kernel has let go of most of it by then
        return progress.end

    async def _fill(self, node: Node, file: StagedFile, begin: int) -> None:
        begin -= begin % _STEP_BYTES
        for start in [*range(begin, file.size, _STEP_BYTES), *range(0, begin, _STEP_BYTES)]:
            extent = Extent(start, min(start + _STEP_BYTES, file.size))
            try:
                data = await self._cache.reader.read(file, extent)
            except StagingError:
                return  # counted there
            if not self._delegations.is_read(node, file) or not self._memory.has_room(file.size):
                return
            if not await self._pusher.push(node, start, memoryview(data)):
                return
