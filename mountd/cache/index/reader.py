"""Reading the index: rows by version, by number, by last use, and how far the scrub is.

All methods block, are called by one thread at a time, and raise IndexFailed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from hfs.mountd.base.version import Version
from hfs.mountd.cache.index.columns import READ_COLUMNS, read_state, staged_row
from hfs.mountd.cache.index.database import IndexDatabase
from hfs.mountd.cache.index.rows import ChunkRow, IndexState, ScrubRow, StagedRow
from hfs.mountd.cache.index.schema import signed, unsigned
from hfs.mountd.cache.index.sources import Sources

_NAMED_AT_ONCE = 500
"""Values in one statement: SQLite allowed 999 for a long time."""


class IndexReader:
    """See the file's story."""

    def __init__(self, database: IndexDatabase, sources: Sources) -> None:
        self._database = database
        self._sources = sources

    def find(self, versions: Iterable[Version]) -> list[list[StagedRow]]:
        """For each version the rows of its inode at its source, oldest object first; other versions among them."""
        with self._database.guarded():
            return [self._of_inode(version, self._database.reader) for version in versions]

    def find_quickly(self, version: Version) -> list[StagedRow]:
        """As `find` of one version, on a connection of its own: from the event loop, beside the threads.

        A call takes some 15 us, a tenth of what the way to a thread and back costs. Readers of a WAL never wait for its
        writer.
        """
        with self._database.guarded():
            return self._of_inode(version, self._database.quick)

    def chunks(self, object_id: int) -> list[ChunkRow]:
        """What is committed of a file of several chunks, ascending."""
        sql = "SELECT number, checksum, stored FROM chunks WHERE file = ? ORDER BY number"
        with self._database.guarded():
            found = self._database.reader.execute(sql, (object_id,))
            return [
                ChunkRow(number, unsigned(checksum), max(0, stored), max(0, -stored))
                for number, checksum, stored in found
            ]

    def page(self, after_id: int, limit: int) -> list[StagedRow]:
        """The next rows by object number, after `after_id`. Pages, because a long read would let the log grow."""
        return self._rows("id > ? ORDER BY id LIMIT ?", (after_id, limit))

    def oldest(self, after: tuple[int, int], limit: int) -> list[StagedRow]:
        """The next rows by (last use, object number), after `after`, without those that are pinned."""
        return self._rows("pinned = 0 AND (last_use, id) > (?, ?) ORDER BY last_use, id LIMIT ?", (*after, limit))

    def pinned_rows(self, after_id: int, limit: int) -> list[StagedRow]:
        """The next that are pinned, by object number."""
        return self._rows("pinned = 1 AND id > ? ORDER BY id LIMIT ?", (after_id, limit))

    def pinned_at(self, versions: Sequence[tuple[bytes, Version]]) -> list[StagedRow]:
        """Those that are pinned at one of these paths, and are older than the version that is there now."""
        found: list[StagedRow] = []
        for path, version in versions:
            for row in self._rows("pinned = 1 AND path = ?", (path,)):
                if row.version.source_id == version.source_id and row.version.ctime_ns < version.ctime_ns:
                    found.append(row)
        return found

    def pinned(self) -> tuple[list[int], int]:
        """Numbers of all objects that are pinned, and the blocks that they take. A million: a quarter of a second."""
        with self._database.guarded():
            found = self._database.reader.execute("SELECT id, blocks FROM files WHERE pinned = 1").fetchall()
        return [number for number, _ in found], sum(blocks for _, blocks in found)

    def rows(self, object_ids: Sequence[int]) -> list[StagedRow]:
        """The rows of these objects, as far as they are there."""
        rows: list[StagedRow] = []
        for start in range(0, len(object_ids), _NAMED_AT_ONCE):
            part = object_ids[start : start + _NAMED_AT_ONCE]
            marks = ",".join("?" * len(part))
            rows += self._rows(f"id IN ({marks})", tuple(part))
        return rows

    def entered(self, object_ids: Sequence[int]) -> set[int]:
        """Those of these objects that have a row."""
        found: set[int] = set()
        for start in range(0, len(object_ids), _NAMED_AT_ONCE):
            part = object_ids[start : start + _NAMED_AT_ONCE]
            sql = f"SELECT id FROM files WHERE id IN ({','.join('?' * len(part))})"
            with self._database.guarded():
                found.update(number for (number,) in self._database.reader.execute(sql, tuple(part)))
        return found

    def incomplete(self, after_id: int, limit: int) -> list[StagedRow]:
        """The next rows with chunks missing, by object number."""
        return self._rows("complete = 0 AND id > ? ORDER BY id LIMIT ?", (after_id, limit))

    def doomed(self, after_id: int, limit: int) -> list[int]:
        """The next objects that were evicted but are perhaps still on the disk."""
        sql = "SELECT id FROM doomed WHERE id > ? ORDER BY id LIMIT ?"
        with self._database.guarded():
            return [number for (number,) in self._database.reader.execute(sql, (after_id, limit))]

    def known(self, object_ids: range) -> set[int]:
        """Those of the objects that have a row, here or among the doomed."""
        ends = (object_ids.start, object_ids.stop)
        run = self._database.reader.execute
        with self._database.guarded():
            found = run("SELECT id FROM files WHERE id >= ? AND id < ?", ends).fetchall()
            found += run("SELECT id FROM doomed WHERE id >= ? AND id < ?", ends).fetchall()
        return {number for (number,) in found}

    def scrubbed(self) -> ScrubRow:
        """How far the scrub is."""
        sql = "SELECT scrub_id, scrub_bytes, scrub_began, scrub_ended FROM state"
        with self._database.guarded():
            return ScrubRow(*self._database.reader.execute(sql).fetchone())

    def state(self) -> IndexState:
        """The totals as they are now."""
        with self._database.guarded():
            return read_state(self._database.reader)

    def _of_inode(self, version: Version, database: sqlite3.Connection) -> list[StagedRow]:
        sql = f"SELECT {READ_COLUMNS} FROM files WHERE inode = ? AND source = ? ORDER BY id"
        key = (signed(version.inode), self._sources.number(version.source_id))
        return [staged_row(row, self._sources.names, database) for row in database.execute(sql, key)]

    def _rows(self, where: str, values: tuple[Any, ...]) -> list[StagedRow]:
        database = self._database.reader
        with self._database.guarded():
            found = database.execute(f"SELECT {READ_COLUMNS} FROM files WHERE {where}", values).fetchall()
            return [staged_row(row, self._sources.names, database) for row in found]
