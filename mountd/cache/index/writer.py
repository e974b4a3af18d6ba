"""Writing the index: rows in, rows out, totals with them.

All methods block, are called by one thread at a time, and raise IndexFailed. What a crash must not undo is durable when
the call returns.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from hfs.mountd.base.version import Version
from hfs.mountd.cache.index.columns import (
    COLUMNS,
    READ_COLUMNS,
    SET_STAMP,
    shrunk_in,
    staged_row,
    stamp_values,
)
from hfs.mountd.cache.index.counts import Counts
from hfs.mountd.cache.index.database import IndexDatabase
from hfs.mountd.cache.index.rows import ChunkRow, Committed, ScrubRow, StagedRow, Stamp
from hfs.mountd.cache.index.schema import signed
from hfs.mountd.cache.index.sources import Sources
from hfs.policies.cache.admission import BLOCK_BYTES, blocks_bytes
from hfs.policies.geometry import chunk_extent

_LEASE = 16_384
"""Object numbers leased by one durable commit: three seconds of the fastest staging of small files, and after a crash
16 384 names at most, twice, are tried: 0.1 s."""

_NO_STAMP = (None, None, 0)
"""Of a row that is not the one that was written."""


class IndexWriter:
    """`counts` are brought up to date once a transaction is committed."""

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
                    chunks.extend(_chunk_values(row.object_id, chunk) for chunk in row.chunks)
                if row.is_new:
                    new.append(_new_values(row, sources[version.source_id]))
                else:
                    old.append(_changed_values(row))
                entered.files += row.is_new
                entered.blocks += row.room_bytes // BLOCK_BYTES
                for chunk in row.chunks:
                    size_bytes = chunk_extent(chunk.number, version.size, row.chunk_bytes).size
                    entered.add_chunk(size_bytes, chunk.stored_bytes)
            database.executemany(f"INSERT INTO files ({COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)", new)
            changed = f"complete = ?, blocks = blocks + ?, checksum = ?, stored = ?, {SET_STAMP}"
            database.executemany(f"UPDATE files SET {changed} WHERE id = ?", old)
            database.executemany("INSERT OR REPLACE INTO chunks VALUES (?,?,?,?)", chunks)
            entered.write(database)
        self.entered_bytes += entered.bytes  # before the next line: see `cache.statistics`
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
                gone.add_shrunk(*shrunk_in(row, database))
                database.execute("INSERT INTO doomed VALUES (?,?)", (number, row.room_bytes // BLOCK_BYTES))
                database.execute("DELETE FROM files WHERE id = ?", (number,))
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
                proof = stamp_values(object_id, row.version, row.chunk_bytes, False, None, 0, None)
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
                    known = (row.chunk_bytes, row.complete, row.checksum, row.stored_bytes)
                    proof = stamp_values(number, version, *known, stamp)
                    database.execute(f"UPDATE files SET {SET_STAMP} WHERE id = ?", (*proof, number))

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
        found = database.execute(f"SELECT {READ_COLUMNS} FROM files WHERE id = ?", (object_id,)).fetchone()
        return None if found is None else staged_row(found, self._sources.names, database)


def _new_values(row: Committed, source: int) -> tuple[Any, ...]:
    """The values of COLUMNS."""
    version = row.version
    checksum, stored_bytes, *proof = _single_values(row)
    return (
        row.object_id,
        source,
        signed(version.inode),
        version.size,
        version.mtime_ns,
        version.ctime_ns,
        row.chunk_bytes,
        int(row.complete),
        row.room_bytes // BLOCK_BYTES,
        row.last_use_s,
        checksum,
        row.path,
        stored_bytes,
        *proof,
    )


def _changed_values(row: Committed) -> tuple[Any, ...]:
    """What changes in a row, and its number."""
    return (int(row.complete), row.room_bytes // BLOCK_BYTES, *_single_values(row), row.object_id)


def _single_values(row: Committed) -> tuple[Any, ...]:
    """(checksum, stored bytes) of a file of one chunk, and the values of SET_STAMP."""
    checksum, stored_bytes = None, 0
    if row.version.size <= row.chunk_bytes:
        checksum, stored_bytes = row.chunks[0].checksum, row.chunks[0].stored_bytes
    known = (row.version, row.chunk_bytes, row.complete, checksum, stored_bytes)
    proof = stamp_values(row.object_id, *known, row.stamp)
    return (None if checksum is None else signed(checksum), stored_bytes, *proof)


def _chunk_values(object_id: int, chunk: ChunkRow) -> tuple[int, int, int, int]:
    """A row of `chunks`."""
    return object_id, chunk.number, signed(chunk.checksum), chunk.stored_bytes or -chunk.hole_blocks


def _take_chunk(row: StagedRow, number: int, database: sqlite3.Connection) -> ChunkRow | None:
    """Delete a chunk's row, if it has one, which is given without its checksum. None: it was not there."""
    if row.version.size <= row.chunk_bytes:
        return ChunkRow(number, 0, row.stored_bytes) if row.checksum is not None else None
    key = (row.object_id, number)
    found = database.execute("SELECT stored FROM chunks WHERE file = ? AND number = ?", key).fetchone()
    database.execute("DELETE FROM chunks WHERE file = ? AND number = ?", key)
    return None if found is None else ChunkRow(number, 0, max(0, found[0]), max(0, -found[0]))
