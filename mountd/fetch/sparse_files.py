"""Files with holes: where their data lies, for lseek(2) and for what they take of the cache, which keeps large ones.

The source is asked, since a count of blocks says too little: a file system that compresses has few, and one over FUSE
may have none. Where it does not say, all is data: that is never wrong.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence

import trio

from hfs.mountd.cache import StagedFile
from hfs.mountd.core.attributes import Attributes
from hfs.mountd.core.errors import HfsError
from hfs.mountd.core.flight import SingleFlight
from hfs.mountd.core.version import Version
from hfs.mountd.namespace import Namespace, Node
from hfs.mountd.source import Source
from hfs.policies.cache.holes import is_sparse, may_have_holes, pieces_of, seek
from hfs.policies.geometry import Extent, chunk_range, split

_MAX_KEPT = 1 << 17
"""Extents of all files together, some 15 MB."""

_LIMIT_S = 2.0
"""How long a reader waits for what it can do without."""

Data = Sequence[Extent]


class SparseFiles:
    """Event loop only."""

    def __init__(self, source: Source, namespace: Namespace, nursery: trio.Nursery) -> None:
        self._source = source
        self._silence = namespace.silence
        self._flights: SingleFlight[Version, Data] = SingleFlight(nursery)
        self._kept: OrderedDict[Version, Data] = OrderedDict()
        """Of those that cannot have been changed unseen since."""
        self._kept_extents = 0

    async def room_bytes(
        self, file: StagedFile, place: tuple[bytes, bytes], attributes: Attributes, indexes: Collection[int]
    ) -> int:
        """What these chunks, which are not staged, would take. `place`: its directory and its name."""
        raw_bytes = sum(map(file.raw_room_bytes, indexes))
        if not indexes or not is_sparse(file.size, attributes.blocks, file.chunk_bytes):
            return raw_bytes
        wanted = frozenset(indexes)
        data = pieces_of(await self._data(file.version, lambda: self._source.files.data(*place, file.version)))
        pieces = (piece for extent in data for piece in split(extent, file.chunk_bytes))
        return min(raw_bytes, sum(piece.end - piece.start for piece in pieces if piece.index in wanted))

    async def empty_chunks(self, node: Node, file: StagedFile, indexes: Sequence[int]) -> list[int]:
        """Those of these chunks that certainly are zeros alone."""
        if not is_sparse(file.size, node.attributes.blocks, file.chunk_bytes):
            return []
        data = await self._data(file.version, lambda: self._ask_of(node, file.version))
        if file.version not in self._kept:
            return []
        has_data: set[int] = set()
        for extent in data:
            has_data.update(chunk_range(extent, file.chunk_bytes))
        return [index for index in indexes if index not in has_data]

    async def seek(self, node: Node, version: Version, offset: int, *, hole: bool) -> int | None:
        """What lseek(2) of this version of `node` gives, as `policies.cache.holes.seek`, in two seconds at most."""
        found: Data = [Extent(0, version.size)]
        if may_have_holes(version.size, node.attributes.blocks) and not self._silence.is_on():
            with trio.move_on_after(_LIMIT_S):
                found = await self._data(version, lambda: self._ask_of(node, version))
        return seek(found, version.size, offset, hole=hole)

    async def _ask_of(self, node: Node, version: Version) -> tuple[Data, bool]:
        return await self._source.files.data(node.directory, node.name, version=version)

    async def _data(self, version: Version, ask: Callable[[], Awaitable[tuple[Data, bool]]]) -> Data:
        kept = self._kept.get(version)
        if kept is not None:
            self._kept.move_to_end(version)
            return kept
        try:
            return await self._flights.run(version, lambda: self._ask(version, ask))
        except HfsError:
            return [Extent(0, version.size)]  # whoever fetches it is told

    async def _ask(self, version: Version, ask: Callable[[], Awaitable[tuple[Data, bool]]]) -> Data:
        data, is_over = await ask()
        if is_over:
            self._kept[version] = data
            self._kept_extents += 1 + len(data)
            while self._kept_extents > _MAX_KEPT:
                self._kept_extents -= 1 + len(self._kept.popitem(last=False)[1])
        return data
