"""What is asked of the index and entered in it: rows by version, by number, by last use; rows in and out, with totals.

All methods block, and raise IndexFailed; one thread at a time reads and one writes. What a crash must not undo is
durable when a writing call returns.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from hfs.mountd.cache.index.database import Counts, IndexDatabase, IndexState, Sources, read_state
from hfs.mountd.cache.index.rows import (
    COLUMNS,
    FORMAT,
    SET_STAMP,
    ChunkRow,
    Committed,
    ScrubRow,
    StagedRow,
    Stamp,
    bytes_of,
    chunk_row,
    new_columns,
    signed,
    staged_row,
    stamp_values,
)
from hfs.mountd.core.attributes import Version
from hfs.policies.cache.admission import BLOCK_BYTES, blocks_bytes
from hfs.policies.geometry import chunk_extent

_NAMED_AT_ONCE = 500
"""Values in one statement: SQLite allowed 999 for a long time."""


FoundRow = tuple[StagedRow, list[ChunkRow]]
"""A row and, of a file of several chunks, what is committed of it."""


class IndexReader:
    """One thread at a time, but for what is quick."""

    def __init__(self, database: IndexDatabase, sources: Sources) -> None:
        self._database = database
        self._sources = sources

    def find(self, version: Version) -> list[FoundRow]:
        """The rows of its inode at its source, oldest object first; other versions among them."""
        with self._database.guarded():
            return self._find(version, self._database.reader) or []

    def find_quickly(self, version: Version, most_chunks: int) -> list[FoundRow] | None:
        """What `find` gives, on a connection of its own: from the event loop, beside the threads. None: the file has
        more chunks than this.

        A call takes some 15 us, a tenth of what the way to a thread and back costs. Readers of a WAL never wait for its
        writer.
        """
        with self._database.guarded():
            return self._find(version, self._database.quick, most_chunks)

    def chunks(self, object_id: int) -> list[ChunkRow]:
        """What is committed of a file of several chunks, ascending."""
        with self._database.guarded():
            return _chunks(object_id, self._database.reader)

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

    def _find(
        self, version: Version, database: sqlite3.Connection, most_chunks: int | None = None
    ) -> list[FoundRow] | None:
        sql = f"SELECT {COLUMNS} FROM files WHERE inode = ? AND source = ? ORDER BY id"
        key = (signed(version.inode), self._sources.number(version.source_id))
        found: list[FoundRow] = []
        for columns in database.execute(sql, key).fetchall():
            row = staged_row(columns, self._sources.names, database)
            has_several = row.version == version and version.size > row.chunk_bytes
            if has_several and most_chunks is not None and version.size > most_chunks * row.chunk_bytes:
                return None
            found.append((row, _chunks(row.object_id, database) if has_several else []))
        return found

    def _rows(self, where: str, values: tuple[Any, ...]) -> list[StagedRow]:
        database = self._database.reader
        with self._database.guarded():
            found = database.execute(f"SELECT {COLUMNS} FROM files WHERE {where}", values).fetchall()
            return [staged_row(row, self._sources.names, database) for row in found]


_LEASE = 16_384
"""Object numbers leased by one durable commit: three seconds of the fastest staging of small files, and after a crash
16 384 names at most, twice, are tried: 0.1 s."""

_A_MARK_EACH = ",".join("?" * len(COLUMNS.split(",")))

_NO_STAMP = (None, None, 0)
"""Of a row that is not the one that was written."""


class IndexWriter:
    """One thread at a time. `counts` are brought up to date once a transaction is committed."""

    def __init__(self, database: IndexDatabase, sources: Sources, counts: Counts) -> None:
        self._database = database
        self._sources = sources
        self._counts = counts
        self.entered_bytes = 0
        """Of those that `commit_chunks` has ever entered."""

    def lease(self, settled_id: int) -> range:
        """Object numbers that nobody has had, durably. `settled_id`: numbers below it are accounted for."""
        with self._database.transaction(durable=True) as database:
            # Whatever has become of the state: a number that an object has is not given to another one.
            sql = "SELECT next_id, (SELECT MAX(id) FROM files), (SELECT MAX(id) FROM doomed) FROM state"
            next_id, *last = database.execute(sql).fetchone()
            start = max(next_id, *(number + 1 for number in last if number is not None), 1)
            database.execute("UPDATE state SET next_id = ?, settled_id = ?", (start + _LEASE, settled_id))
        return range(start, start + _LEASE)

    def try_out(self) -> None:
        """Write durably what is there already: of a row that does not change nothing would be written."""
        with self._database.transaction(durable=True) as database:
            database.execute(f"PRAGMA user_version = {FORMAT}")

    def commit_chunks(self, rows: Sequence[Committed]) -> None:
        """Enter synced chunks, durably."""
        sources = {name: self._sources.enter(name) for name in {row.version.source_id for row in rows if row.is_new}}
        entered = Counts()
        with self._database.transaction(durable=True) as database:
            new: list[tuple[Any, ...]] = []
            old: list[tuple[Any, ...]] = []
            chunks: list[tuple[int, int, int, int]] = []
            for row in rows:
                version = row.version
                if version.size > row.chunk_bytes:
                    chunks += [(row.object_id, one.number, signed(one.checksum), one.stored) for one in row.chunks]
                if row.is_new:
                    new.append(new_columns(row, sources[version.source_id]))
                else:
                    blocks, checksum = row.room_bytes // BLOCK_BYTES, row.checksum
                    known = None if checksum is None else signed(checksum), row.stored_bytes
                    old.append((int(row.complete), blocks, *known, *stamp_values(row), row.object_id))
                entered.files += row.is_new
                entered.blocks += row.room_bytes // BLOCK_BYTES
                for chunk in row.chunks:
                    size_bytes = chunk_extent(chunk.number, version.size, row.chunk_bytes).size
                    entered.add_chunk(size_bytes, chunk.stored_bytes)
            database.executemany(f"INSERT INTO files ({COLUMNS}) VALUES ({_A_MARK_EACH})", new)
            changed = f"complete = ?, blocks = blocks + ?, checksum = ?, stored = ?, {SET_STAMP}"
            database.executemany(f"UPDATE files SET {changed} WHERE id = ?", old)
            database.executemany("INSERT OR REPLACE INTO chunks VALUES (?,?,?,?)", chunks)
            entered.write(database)
        self.entered_bytes += entered.bytes  # before the next line: see `Cache.statistics`
        self._counts.add(entered)

    def doom(self, object_ids: Sequence[int]) -> dict[int, int]:
        """Forget objects, durably: from now on they may be removed. They stay accounted here until `removed`.

        Returns the room of each that there was, in bytes.
        """
        room: dict[int, int] = {}
        gone = Counts()
        with self._database.transaction(durable=True) as database:
            for number in object_ids:
                row = self._row(number, database)
                if row is None:
                    continue
                room[number] = row.room_bytes
                gone.files += 1
                gone.bytes += row.staged_bytes
                gone.add_shrunk(*_shrunk_in(row, database))
                database.execute("INSERT INTO doomed VALUES (?,?)", (number, row.room_bytes // BLOCK_BYTES))
                database.execute("DELETE FROM files WHERE id = ?", (number,))
                database.execute("DELETE FROM attributes WHERE file = ?", (number,))
                if row.version.size > row.chunk_bytes:
                    database.execute("DELETE FROM chunks WHERE file = ?", (number,))
            gone.write(database, -1)
        self._counts.add(gone, -1)
        return room

    def removed(self, object_ids: Iterable[int]) -> int:
        """Doomed objects are off the disk for good. Returns their room, in bytes."""
        gone = Counts()
        with self._database.transaction(durable=False) as database:
            for number in object_ids:
                found = database.execute("SELECT blocks FROM doomed WHERE id = ?", (number,)).fetchone()
                if found:
                    gone.blocks += found[0]
                    database.execute("DELETE FROM doomed WHERE id = ?", (number,))
            gone.write(database, -1)
        self._counts.add(gone, -1)
        return gone.blocks * BLOCK_BYTES

    def forget(self, object_id: int, chunks: Sequence[tuple[int, int]]) -> None:
        """Chunks, (index, bytes), are no longer committed, durably: from now on their bytes may change.

        Chunks and objects that are not in the index are ignored.
        """
        gone = Counts()
        with self._database.transaction(durable=True) as database:
            row = self._row(object_id, database)
            if row is None:
                return
            for number, size_bytes in chunks:
                found = _take_chunk(row, number, database)
                if found is not None:
                    gone.add_chunk(size_bytes, found.stored_bytes)
                    gone.blocks += blocks_bytes(found.stored_bytes or size_bytes) // BLOCK_BYTES - found.hole_blocks
            if gone.bytes:
                proof = stamp_values(replace(row, complete=False, checksum=None, stored_bytes=0, stamp=None))
                where = f"complete = 0, checksum = NULL, stored = 0, blocks = blocks - ?, {SET_STAMP} WHERE id = ?"
                values = (gone.blocks, *(proof if row.proven else _NO_STAMP), object_id)
                database.execute(f"UPDATE files SET {where}", values)
                gone.write(database, -1)
        self._counts.add(gone, -1)

    def touch(self, uses: Sequence[tuple[int, int]], paths: Sequence[tuple[bytes, int]]) -> None:
        """Bring last uses, (seconds since the epoch, object number), and paths, (path, object number), up to date."""
        with self._database.transaction(durable=False) as database:
            database.executemany("UPDATE files SET last_use = ? WHERE id = ?", uses)
            database.executemany("UPDATE files SET path = ? WHERE id = ?", paths)

    def pin(self, object_ids: Sequence[int], *, pinned: bool) -> tuple[dict[int, int], list[int]]:
        """These objects are pinned from now on, durably, or not any more.

        (the room in bytes of each that this has changed, those that have no row).
        """
        changed: dict[int, int] = {}
        missing: list[int] = []
        with self._database.transaction(durable=True) as database:
            for number in object_ids:
                found = database.execute("SELECT blocks, pinned FROM files WHERE id = ?", (number,)).fetchone()
                if found is None:
                    missing.append(number)
                elif bool(found[1]) != pinned:
                    changed[number] = found[0] * BLOCK_BYTES
            database.executemany("UPDATE files SET pinned = ? WHERE id = ?", [(pinned, number) for number in changed])
        return changed, missing

    def stamp(self, stamps: Sequence[tuple[int, Version, Stamp]]) -> None:
        """Objects, (number, version, stamp), were found right as a whole. Those with another row are left out."""
        with self._database.transaction(durable=False) as database:
            for number, version, stamp in stamps:
                row = self._row(number, database)
                if row is not None and row.version == version and row.proven:
                    values = (*stamp_values(replace(row, stamp=stamp)), number)
                    database.execute(f"UPDATE files SET {SET_STAMP} WHERE id = ?", values)

    def note_scrubbed(self, row: ScrubRow) -> None:
        """How far the scrub is."""
        with self._database.transaction(durable=False) as database:
            sql = "UPDATE state SET scrub_id = ?, scrub_bytes = ?, scrub_began = ?, scrub_ended = ?"
            database.execute(sql, row)

    def settle(self, settled_id: int, next_id: int) -> None:
        """A clean end: objects below `settled_id` have a row or no file, and numbers from `next_id` on were not
        used."""
        with self._database.transaction(durable=True) as database:
            sql = "UPDATE state SET settled_id = ?, next_id = ?, clean = 1"
            database.execute(sql, (settled_id, next_id))

    def _row(self, object_id: int, database: sqlite3.Connection) -> StagedRow | None:
        found = database.execute(f"SELECT {COLUMNS} FROM files WHERE id = ?", (object_id,)).fetchone()
        return None if found is None else staged_row(found, self._sources.names, database)


def _chunks(object_id: int, database: sqlite3.Connection) -> list[ChunkRow]:
    sql = "SELECT number, checksum, stored FROM chunks WHERE file = ? ORDER BY number"
    return [chunk_row(*row) for row in database.execute(sql, (object_id,))]


def _shrunk_in(row: StagedRow, database: sqlite3.Connection) -> tuple[int, int]:
    """(bytes of those chunks of a file that are stored in fewer, bytes that stand for them)."""
    size, chunk_bytes = row.version.size, row.chunk_bytes
    if size <= chunk_bytes:
        return (size, row.stored_bytes) if row.stored_bytes else (0, 0)
    sql = "SELECT COUNT(*), MAX(number), SUM(stored) FROM chunks WHERE file = ? AND stored > 0"
    count, last, stored_bytes = database.execute(sql, (row.object_id,)).fetchone()
    return bytes_of(count, last, size, chunk_bytes), stored_bytes or 0


def _take_chunk(row: StagedRow, number: int, database: sqlite3.Connection) -> ChunkRow | None:
    """Delete a chunk's row, if it has one, which is given without its checksum. None: it was not there."""
    if row.version.size <= row.chunk_bytes:
        return ChunkRow(number, 0, row.stored_bytes) if row.checksum is not None else None
    key = (row.object_id, number)
    found = database.execute("SELECT stored FROM chunks WHERE file = ? AND number = ?", key).fetchone()
    database.execute("DELETE FROM chunks WHERE file = ? AND number = ?", key)
    return None if found is None else chunk_row(number, 0, found[0])
