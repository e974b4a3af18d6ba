"""Page faults: small reads of staged chunks, whose pages the kernel has let go. What was lost is pushed again.

One fault for each page would make a mapping of a staged file many times slower than the file itself; the policy
(policies/prefetch/faults.py) says when it is the neighbours and when the whole chunk. Never reads for a reader.
"""

from __future__ import annotations

from collections import OrderedDict

from hfs.mountd.base.version import Version
from hfs.mountd.fetch import History, PagePusher
from hfs.mountd.files.handles import FileHandle
from hfs.policies.geometry import Extent
from hfs.policies.prefetch.faults import Again, Faults, neighbours
from hfs.policies.prefetch.miss_policy import TINY_BYTES

_MAX_FILES = 64
"""Files whose page faults are counted: at most half a megabyte each."""


class PageFaults:
    """Event loop only."""

    def __init__(self, pusher: PagePusher, history: History) -> None:
        self._pusher = pusher
        self._history = history
        self._faults: OrderedDict[Version, Faults] = OrderedDict()

    def put_back_nowait(self, handle: FileHandle, extent: Extent) -> bool:
        """A READ has come. True: it was a fault, what was lost comes back, and the rest of its chunk is there."""
        file, index = handle.file, extent.start // handle.file.chunk_bytes
        if extent.size >= TINY_BYTES or index not in file.present or not self._pusher.on:
            return False
        if not file.complete and self._history.is_ahead(file, index):
            return False  # what was guessed must be seen to be used
        faults = self._faults.get(file.version)
        if faults is None:
            faults = self._faults[file.version] = Faults()
            if len(self._faults) > _MAX_FILES:
                self._faults.popitem(last=False)
        again = faults.push_again(index)
        if again is Again.NOTHING:
            return False
        chunk = file.chunk(index)
        lost = chunk if again is Again.CHUNK else neighbours(extent, chunk)
        return self._pusher.start_staged_nowait(handle.node, file, lost)
