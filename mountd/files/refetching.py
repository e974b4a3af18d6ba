"""Fetching again what was found damaged under readers who do not ask us.

The handles of a file that is passed through cannot be given another backing file, so the right bytes are to come over
the wrong ones, and soon. Event loop only.
"""

from __future__ import annotations

from collections.abc import Sequence

from hfs.mountd.cache import StagedFile
from hfs.mountd.fetch import PrefetchQueue
from hfs.mountd.files.handles import Handles


class Refetching:
    def __init__(self, handles: Handles, queue: PrefetchQueue) -> None:
        self._handles = handles
        self._queue = queue

    def lost(self, file: StagedFile, indexes: Sequence[int]) -> None:
        """Chunks of a file that the kernel reads by itself were given up."""
        node = self._handles.reading_by_itself(file)
        if node is not None:
            self._queue.window_nowait(node, file, list(indexes))
