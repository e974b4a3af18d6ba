"""What the data plane is told of staged files, so that it fetches none: the index at the start, then what is entered.

Files of one chunk, of the file system of the source's root; it leaves those to us that hold them in another form. One
that changes or goes is taken out by the reclaim queue, as all that others answer from. Event loop only.
"""

from __future__ import annotations

from collections.abc import Iterable

import trio

from hfs.mountd.cache.index import Committed, IndexFailed, StagedRow, Stamp
from hfs.mountd.cache.objects.context import CacheContext
from hfs.mountd.core.version import Version
from hfs.mountd.kernel import KnownObject
from hfs.policies.cache.admission import object_overhead_bytes

_PAGE = 4096
_AT_MOST = 1 << 20
"""Rows of the index that are told at the start: 200 MB of the data plane's memory. Of a larger one none is."""


class KnownObjects:
    def __init__(self, context: CacheContext, source_id: str) -> None:
        self._context = context
        self._source_id = source_id
        self.told = trio.Event()
        """All that is staged was told: what is fetched from now on is not."""

    async def load(self) -> None:
        """Tell of what an earlier run has staged."""
        maker, context = self._context.maker, self._context
        if maker is None:
            return
        maker.store_in(context.disk.directory, object_overhead_bytes(1))
        if context.index.counts.files > _AT_MOST:
            return
        after_id = 0
        try:
            while rows := await context.threads.ask_index(context.index.reader.page, after_id, _PAGE):
                maker.know(filter(None, map(self._of_row, rows)))
                after_id = rows[-1].object_id
        except IndexFailed:
            return  # whoever needs it meets it again
        self.told.set()

    def entered(self, rows: Iterable[Committed]) -> None:
        """These are in the index now."""
        if self._context.maker is not None and self.told.is_set():
            self._context.maker.know(filter(None, map(self._of_committed, rows)))

    def _of_row(self, row: StagedRow) -> KnownObject | None:
        if not row.proven or not row.complete or row.checksum is None:
            return None
        return self._known(row.object_id, row.version, row.stamp, row.checksum, is_pythons=bool(row.stored_bytes))

    def _of_committed(self, row: Committed) -> KnownObject | None:
        if not row.complete or row.version.size > row.chunk_bytes or len(row.chunks) != 1:
            return None
        (chunk,) = row.chunks
        return self._known(row.object_id, row.version, row.stamp, chunk.checksum, is_pythons=bool(chunk.stored_bytes))

    def _known(
        self, number: int, version: Version, stamp: Stamp | None, checksum: int, *, is_pythons: bool
    ) -> KnownObject | None:
        if version.source_id != self._source_id or (stamp is None and not is_pythons):
            return None
        inode, ctime_ns = (stamp.inode, stamp.ctime_ns) if stamp is not None else (0, 0)
        times_ns = ctime_ns, version.mtime_ns, version.ctime_ns
        return KnownObject(number, inode, checksum, version.inode, version.size, *times_ns, is_pythons)
