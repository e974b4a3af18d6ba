"""Verifying what a sequential reader will want next, while it reads what it has.

A chunk is verified whole when its first byte is wanted, and that reader waits for it: 3 ms for 8 MiB in memory, more
from a disk. Read by chunks without any ahead a file took 1.5 times as long as one that is not verified. So whoever
reads the first bytes of a chunk is taken to go on, and the next two are verified meanwhile. A random reader begins at
the start of a chunk once in 64 reads; for it no more than two chunks are read that it may want later.

Never waits and never fails; what does not fit into the queue is verified by its reader. Told by the reader.
"""

from __future__ import annotations

from typing import Protocol

import trio

from hfs.mountd.base.errors import StagingError
from hfs.mountd.cache.objects import StagedFile
from hfs.mountd.core.background import guarded
from hfs.policies.geometry import Extent

_CHUNKS = 2
"""One is hashed while the disk brings the other."""

_MAX_QUEUED = 64
"""Of all readers."""


class Verifies(Protocol):
    """The reader of staged bytes."""

    async def verify(self, file: StagedFile, index: int) -> None:
        """See that a present chunk is right. Raises StagingError."""


class VerifyingAhead:
    """`run` is a task of the cache's nursery. Event loop only."""

    def __init__(self) -> None:
        self._queue, self._queued = trio.open_memory_channel[tuple[StagedFile, int]](_MAX_QUEUED)
        self._waiting: set[tuple[StagedFile, int]] = set()

    def reads_nowait(self, file: StagedFile, extent: Extent) -> None:
        """Somebody reads `extent` of a file of several chunks."""
        if extent.start % file.chunk_bytes:
            return
        index = extent.start // file.chunk_bytes
        for wanted in range(index + 1, index + 1 + _CHUNKS):
            if wanted not in file.present or wanted in file.verified or (file, wanted) in self._waiting:
                continue
            try:
                self._queue.send_nowait((file, wanted))
            except trio.WouldBlock:
                return
            self._waiting.add((file, wanted))

    async def run(self, reader: Verifies) -> None:
        """Verify one after the other; two of these run side by side. Never returns."""
        async for file, index in self._queued:
            if index in file.present and index not in file.verified:
                await guarded("staging: verifying ahead", _verify, reader, file, index)
            self._waiting.discard((file, index))


async def _verify(reader: Verifies, file: StagedFile, index: int) -> None:
    try:
        await reader.verify(file, index)
    except StagingError:
        pass  # forgotten, or gone: its reader will see
