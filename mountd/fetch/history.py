"""History: what readers who say nothing have done in each file, and what is fetched ahead because of it.

It is shown every READ of a large file that is neither sequential nor strided nor foreseen by a hint, and that is not
all here; what it returns is fetched ahead. The rules are those of policies/schedule/successors.py: what a guess costs
is bounded there. Event loop only; never reads, never waits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from hfs.mountd.cache import StagedFile
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.core.version import Version
from hfs.policies.geometry import Extent
from hfs.policies.schedule.successors import Successors, Trail

_MAX_FILES = 32
"""Files that are remembered: half a megabyte each at most."""


class History:
    """The histories of files, those that were read last."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._files: OrderedDict[Version, Successors] = OrderedDict()

    def read(
        self, file: StagedFile, trail: Trail, extent: Extent, *, here: bool, is_here: Callable[[int], bool]
    ) -> list[int]:
        """A READ of `extent` in one chunk, by the handle of `trail`. Chunks to fetch ahead now.

        `here`: it is answered without the source. `is_here`: whether a chunk is staged, in memory or on its way.
        """
        index = extent.start // file.chunk_bytes
        history = self._of(file)
        if here:
            history.hit(index, extent)
        if not history.enters(trail, index):
            return []
        ahead = history.worth_fetching(index, is_here)
        self._metrics.add("guessed_chunks", len(ahead))
        return ahead

    def paid(self, file: StagedFile, size: int) -> None:
        """A READ that missed has had `size` bytes read from the source."""
        self._of(file).paid(size)

    def is_ahead(self, file: StagedFile, index: int) -> bool:
        """Chunk `index` was fetched, or is to be, because of a guess."""
        history = self._files.get(file.version)
        return history is not None and history.is_ahead(index)

    def _of(self, file: StagedFile) -> Successors:
        history = self._files.get(file.version)
        if history is None:
            history = self._files[file.version] = Successors(file.size, file.chunk_bytes)
            if len(self._files) > _MAX_FILES:
                self._files.popitem(last=False)
        elif len(self._files) == _MAX_FILES:
            self._files.move_to_end(file.version)
        return history
