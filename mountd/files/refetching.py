"""Fetching again what was found damaged under readers who do not ask us.

The handles of a file that is passed through, or that an overlay has open, cannot be given another backing file, so the
right bytes are to come over the wrong ones, and soon. Event loop only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import trio

from hfs.mountd.base.errors import HfsError
from hfs.mountd.cache import StagedFile
from hfs.mountd.fetch import PrefetchQueue
from hfs.mountd.files.handles import Handles
from hfs.mountd.namespace import Namespace

_MOST = 1024
"""Files that wait until their names are looked up; of more those that came first are left to their readers."""


class Refetching:
    """`run` is a task of the daemon's."""

    def __init__(self, handles: Handles, queue: PrefetchQueue) -> None:
        self._handles = handles
        self._queue = queue
        self._unnamed: deque[tuple[StagedFile, list[int]]] = deque(maxlen=_MOST)
        self._more = trio.Event()

    def lost(self, file: StagedFile, indexes: Sequence[int]) -> None:
        """Chunks of a file that the kernel reads by itself were given up."""
        node = self._handles.reading_by_itself(file)
        if node is not None:
            self._queue.window_nowait(node, file, list(indexes))
        else:
            self._unnamed.append((file, list(indexes)))
            self._more.set()

    async def run(self, namespace: Namespace) -> None:
        """Look for those that nobody has open here: overlays do not say who reads. Never returns."""
        while True:
            await self._more.wait()
            self._more = trio.Event()
            while self._unnamed:
                file, indexes = self._unnamed.popleft()
                try:
                    node = await namespace.lookups.resolve(file.path)
                except HfsError:
                    continue  # who asks for it meets that too
                if node.version == file.version:
                    self._queue.window_nowait(node, file, indexes)
