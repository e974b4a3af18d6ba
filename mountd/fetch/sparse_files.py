"""Files with large holes: where their data lies, and what they take of the cache, which keeps the holes.

The source is asked, since a count of blocks says too little: a file system that compresses has few, and one over FUSE
may have none.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence

from hfs.mountd.base.attributes import Attributes
from hfs.mountd.base.errors import HfsError
from hfs.mountd.base.version import Version
from hfs.mountd.cache import StagedFile
from hfs.mountd.source import Source
from hfs.policies.cache.holes import is_sparse, pieces_of
from hfs.policies.geometry import Extent, split

_MAX_KEPT = 16
"""Files whose data lies in so many places at most as `FileReader.data` tells."""


class SparseFiles:
    """Event loop only."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._kept: OrderedDict[Version, Sequence[Extent]] = OrderedDict()

    async def room_bytes(
        self, file: StagedFile, place: tuple[bytes, bytes], attributes: Attributes, indexes: Collection[int]
    ) -> int:
        """What these chunks, which are not staged, would take. `place`: its directory and its name."""
        raw_bytes = sum(map(file.raw_room_bytes, indexes))
        if not indexes or not is_sparse(file.size, attributes.blocks, file.chunk_bytes):
            return raw_bytes
        wanted = frozenset(indexes)
        pieces = (piece for extent in await self._data(file, place) for piece in split(extent, file.chunk_bytes))
        return min(raw_bytes, sum(piece.end - piece.start for piece in pieces if piece.index in wanted))

    async def _data(self, file: StagedFile, place: tuple[bytes, bytes]) -> Sequence[Extent]:
        found = self._kept.get(file.version)
        if found is None:
            try:
                found = pieces_of(await self._source.files.data(*place, file.version))
            except HfsError:
                return [Extent(0, file.size)]  # whoever fetches it is told
            self._kept[file.version] = found
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        return found
