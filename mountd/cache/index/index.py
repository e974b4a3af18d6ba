"""The index: what of which file is staged and committed. Everything it does not name is garbage.

All methods block; `Index` has one connection for writing and one for reading, and each is used by one thread at a time
(the callers' limiters see to that). Rows come in with a group of synced chunks, go out durably before their object is
removed, and never name an object number twice.

Errors: IndexFailed for whatever SQLite reports. A cache may fail: the caller counts it and goes on without.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mountd.base.errors import StagingError
from mountd.base.version import Version, is_lasting
from mountd.cache.index.columns import COLUMNS, SET_STAMP, encoded_in, staged_row, stamp_values
from mountd.cache.index.rows import ChunkRow, Committed, IndexState, ScrubRow, StagedRow, Stamp
from mountd.cache.index.schema import (
    Connect,
    check_opened,
    connect_to,
    is_damage,
    is_damage_at_start,
    is_marked,
    mark_damaged,
    open_database,
    set_aside,
    signed,
    unmark,
    unsigned,
)
from mountd.cache.index.verdict import is_sound, verdict
from mountd.core.cache_directory import CacheDirectory
from policies.cache.admission import BLOCK_BYTES, blocks_bytes
from policies.geometry import chunk_extent

__all__ = [
    "ChunkRow",
    "Committed",
    "Connect",
    "Index",
    "IndexFailed",
    "IndexState",
    "ScrubRow",
    "StagedRow",
    "Stamp",
]

_LEASE = 16_384
"""Object numbers leased by one durable commit: three seconds of the fastest staging of small files, and after a crash
16 384 names at most, twice, are tried: 0.1 s."""

_NO_STAMP = (None, None, 0)
"""Of a row that is not the one that was written."""

_NAMED_AT_ONCE = 500
"""Values in one statement: SQLite allowed 999 for a long time."""


class IndexFailed(StagingError):
    """SQLite refused. `damaged`: the database file itself is broken and of no more use."""

    def __init__(self, error: sqlite3.Error) -> None:
        super().__init__(f"the index of the cache failed: {error}")
        self.damaged = is_damage(error)


class Index:
    """`connect` is sqlite3.connect, or a test's."""

    def __init__(
        self,
        directory: CacheDirectory,
        *,
        on_new: Callable[[], None] = lambda: None,
        connect: Connect = sqlite3.connect,
    ) -> None:
        """Open or make the index. Raises CacheFormatError, ConfigError, IndexFailed, OSError. The caller owns the
        directory."""
        self._directory, self._connect = directory, connect
        try:
            if is_marked(directory):
                self._judge()
            try:
                self._open(on_new, connect)
            except sqlite3.Error as error:
                if not is_damage_at_start(error):
                    raise
                self._judge(error)
                self._open(on_new, connect)
        except sqlite3.Error as error:
            raise self._failed(error) from error
        self.files = self.opened.files
        """Rows, as of the last commit; may be read by any thread, like `bytes`."""
        self.bytes = self.opened.size_bytes
        """Bytes of the chunks committed."""
        self.encoded_bytes = self.opened.encoded_bytes
        self.encoded_stored_bytes = self.opened.encoded_stored_bytes
        """Of `bytes` those of encoded chunks, and how many stand for them on the disk."""
        self.entered_bytes = 0
        """Of those that `commit_chunks` has ever entered."""
        self.opened_passing = frozenset(name for name in self._source_ids if not is_lasting(name))
        """File systems that only an earlier run knew; see `mountd/base/version.py`."""
        self._source_names = {number: name for name, number in self._source_ids.items()}

    def _open(self, on_new: Callable[[], None], connect: Connect) -> None:
        self._writer = open_database(self._directory, connect, on_new)
        try:
            self._reader = connect_to(self._directory, connect)
            self._quick = connect_to(self._directory, connect)
            try:
                self._source_ids = dict(self._reader.execute("SELECT name, id FROM sources"))
                self.opened = self._state()
                self._quick.execute("SELECT 1 FROM state").fetchone()
                check_opened(self._directory, 3)
                # From here on a crash leaves garbage.
                with self._transaction(durable=True):
                    self._writer.execute("UPDATE state SET clean = 0")
            except BaseException:
                self._quick.close()
                self._reader.close()
                raise
        except BaseException:
            self._writer.close()
            raise

    def _judge(self, error: sqlite3.Error | None = None) -> None:
        """Before anything is open: set the index aside if it is damaged, or is sound and cannot be used (`error`)."""
        fault = verdict(self._directory, self._connect)
        if fault is None and error is not None and not is_damage(error):
            fault = str(error)
        if fault is None:
            unmark(self._directory)
        else:
            set_aside(self._directory, fault)

    # -- writing: one thread at a time -------------------------------------------------------------------------------

    def lease(self, settled_id: int) -> range:
        """Object numbers that nobody has had, durably. `settled_id`: numbers below it are accounted for."""
        with self._guarded(), self._transaction(durable=True):
            # Whatever has become of the state: a number that an object has is not given to another one.
            sql = "SELECT next_id, (SELECT MAX(id) FROM files), (SELECT MAX(id) FROM doomed) FROM state"
            next_id, *last = self._writer.execute(sql).fetchone()
            start = max(next_id, *(number + 1 for number in last if number is not None), 1)
            self._writer.execute("UPDATE state SET next_id = ?, settled_id = ?", (start + _LEASE, settled_id))
        return range(start, start + _LEASE)

    def commit_chunks(self, rows: Sequence[Committed]) -> None:
        """Enter synced chunks, durably."""
        with self._guarded():
            sources = {row.version.source_id: self._source_id(row.version.source_id) for row in rows if row.is_new}
        with self._guarded(), self._transaction(durable=True):
            new: list[tuple[Any, ...]] = []
            old: list[tuple[Any, ...]] = []
            chunks: list[tuple[int, int, int, int]] = []
            encoded_bytes = stored_bytes = 0
            for row in rows:
                version = row.version
                single = version.size <= row.chunk_bytes
                checksum = signed(row.chunks[0].checksum) if single else None
                stored = row.chunks[0].stored_bytes if single else 0
                if not single:
                    chunks.extend((row.object_id, c.number, signed(c.checksum), c.stored_bytes) for c in row.chunks)
                for chunk in row.chunks:
                    if chunk.stored_bytes:
                        encoded_bytes += chunk_extent(chunk.number, version.size, row.chunk_bytes).size
                        stored_bytes += chunk.stored_bytes
                blocks = row.room_bytes // BLOCK_BYTES
                known = (version, row.chunk_bytes, row.complete, row.chunks[0].checksum if single else None, stored)
                proof = stamp_values(row.object_id, *known, row.stamp)
                if row.is_new:
                    times = (version.mtime_ns, version.ctime_ns)
                    key = (sources[version.source_id], signed(version.inode), version.size, *times)
                    state = (row.chunk_bytes, int(row.complete), blocks, row.last_use_s, checksum, row.path, stored)
                    new.append((row.object_id, *key, *state, *proof))
                else:
                    old.append((int(row.complete), blocks, checksum, stored, *proof, row.object_id))
            self._writer.executemany(f"INSERT INTO files ({COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)", new)
            changed = f"complete = ?, blocks = blocks + ?, checksum = ?, stored = ?, {SET_STAMP}"
            self._writer.executemany(f"UPDATE files SET {changed} WHERE id = ?", old)
            self._writer.executemany("INSERT OR REPLACE INTO chunks VALUES (?,?,?,?)", chunks)
            size_bytes = sum(row.size_bytes for row in rows)
            blocks = sum(row.room_bytes for row in rows) // BLOCK_BYTES
            self._count(len(new), size_bytes, blocks, encoded_bytes, stored_bytes)
        self.files += len(new)
        self.entered_bytes += size_bytes  # before the next line: see `cache.statistics`
        self.bytes += size_bytes
        self.encoded_bytes += encoded_bytes
        self.encoded_stored_bytes += stored_bytes

    def doom(self, object_ids: Sequence[int]) -> dict[int, int]:
        """Forget objects, durably: from now on they may be removed. They stay accounted here until `removed`.

        Returns the room of each that there was, in bytes.
        """
        run = self._writer.execute
        room: dict[int, int] = {}
        with self._guarded(), self._transaction(durable=True):
            files = size_bytes = encoded_bytes = stored_bytes = 0
            for number in object_ids:
                found = run(f"SELECT {COLUMNS} FROM files WHERE id = ?", (number,)).fetchone()
                if found is None:
                    continue
                row = self._row(found, self._writer)
                files += 1
                room[number] = row.room_bytes
                size_bytes += row.staged_bytes
                encoded, stored = encoded_in(row, self._writer)
                encoded_bytes += encoded
                stored_bytes += stored
                run("INSERT INTO doomed VALUES (?,?)", (number, row.room_bytes // BLOCK_BYTES))
                run("DELETE FROM files WHERE id = ?", (number,))
                if row.version.size > row.chunk_bytes:
                    run("DELETE FROM chunks WHERE file = ?", (number,))
            self._count(-files, -size_bytes, 0, -encoded_bytes, -stored_bytes)
        self.files -= files
        self.bytes -= size_bytes
        self.encoded_bytes -= encoded_bytes
        self.encoded_stored_bytes -= stored_bytes
        return room

    def removed(self, object_ids: Iterable[int]) -> int:
        """Doomed objects are off the disk for good. Returns their room, in bytes."""
        with self._guarded(), self._transaction(durable=False):
            blocks = 0
            for number in object_ids:
                found = self._writer.execute("SELECT blocks FROM doomed WHERE id = ?", (number,)).fetchone()
                if found:
                    blocks += found[0]
                    self._writer.execute("DELETE FROM doomed WHERE id = ?", (number,))
            self._count(0, 0, -blocks)
        return blocks * BLOCK_BYTES

    def forget(self, object_id: int, chunks: Sequence[tuple[int, int]]) -> None:
        """Chunks, (index, bytes), are no longer committed, durably: from now on their bytes may change.

        Chunks and objects that are not in the index are ignored.
        """
        run = self._writer.execute
        size_bytes = blocks = encoded_bytes = stored_bytes = 0
        with self._guarded(), self._transaction(durable=True):
            columns = run(f"SELECT {COLUMNS} FROM files WHERE id = ?", (object_id,)).fetchone()
            if columns is None:
                return
            row = self._row(columns, self._writer)
            for number, length in chunks:
                key = (object_id, number)
                if row.version.size <= row.chunk_bytes:
                    found = (row.stored_bytes,) if row.checksum is not None else None
                else:
                    found = run("SELECT stored FROM chunks WHERE file = ? AND number = ?", key).fetchone()
                    run("DELETE FROM chunks WHERE file = ? AND number = ?", key)
                if found is not None:
                    size_bytes += length
                    blocks += blocks_bytes(found[0] or length) // BLOCK_BYTES
                    encoded_bytes += length if found[0] else 0
                    stored_bytes += found[0]
            if blocks:
                proof = stamp_values(object_id, row.version, row.chunk_bytes, False, None, 0, None)
                where = f"complete = 0, checksum = NULL, stored = 0, blocks = blocks - ?, {SET_STAMP} WHERE id = ?"
                run(f"UPDATE files SET {where}", (blocks, *(proof if row.proven else _NO_STAMP), object_id))
                self._count(0, -size_bytes, -blocks, -encoded_bytes, -stored_bytes)
        self.bytes -= size_bytes
        self.encoded_bytes -= encoded_bytes
        self.encoded_stored_bytes -= stored_bytes

    def touch(self, uses: Sequence[tuple[int, int]], paths: Sequence[tuple[bytes, int]]) -> None:
        """Bring last uses, (seconds since the epoch, object number), and paths, (path, object number), up to date."""
        with self._guarded(), self._transaction(durable=False):
            self._writer.executemany("UPDATE files SET last_use = ? WHERE id = ?", uses)
            self._writer.executemany("UPDATE files SET path = ? WHERE id = ?", paths)

    def forget_sources(self, names: Iterable[str]) -> None:
        """Forget these sources, as far as there is no row of theirs."""
        sql = "DELETE FROM sources WHERE name = ? AND NOT EXISTS (SELECT 1 FROM files WHERE source = sources.id)"
        with self._guarded(), self._transaction(durable=False):
            self._writer.executemany(sql, [(name,) for name in names])

    def stamp(self, stamps: Sequence[tuple[int, Version, Stamp]]) -> None:
        """Objects, (number, version, stamp), were found right as a whole. Those with another row are left out."""
        with self._guarded(), self._transaction(durable=False):
            for number, version, stamp in stamps:
                columns = self._writer.execute(f"SELECT {COLUMNS} FROM files WHERE id = ?", (number,)).fetchone()
                if columns is None:
                    continue
                row = self._row(columns, self._writer)
                if row.version == version and row.proven:
                    known = (row.chunk_bytes, row.complete, row.checksum, row.stored_bytes)
                    proof = stamp_values(number, version, *known, stamp)
                    self._writer.execute(f"UPDATE files SET {SET_STAMP} WHERE id = ?", (*proof, number))

    def note_scrubbed(self, row: ScrubRow) -> None:
        """How far the scrub is."""
        with self._guarded(), self._transaction(durable=False):
            sql = "UPDATE state SET scrub_id = ?, scrub_bytes = ?, scrub_began = ?, scrub_ended = ?"
            self._writer.execute(sql, row)

    def settle(self, settled_id: int, next_id: int) -> None:
        """A clean end: objects below `settled_id` have a row or no file, and numbers from `next_id` on were not
        used."""
        with self._guarded(), self._transaction(durable=True):
            sql = "UPDATE state SET settled_id = ?, next_id = ?, clean = 1"
            self._writer.execute(sql, (settled_id, next_id))

    def close(self) -> None:
        """Close all connections. May be called twice."""
        with self._guarded():
            self._quick.close()
            self._reader.close()
            self._writer.close()

    # -- reading: one thread at a time -------------------------------------------------------------------------------

    def find(self, versions: Iterable[Version]) -> list[list[StagedRow]]:
        """For each version the rows of its inode at its source, oldest object first; other versions among them."""
        sql = f"SELECT {COLUMNS} FROM files WHERE inode = ? AND source = ? ORDER BY id"
        with self._guarded():
            return [
                [
                    self._row(row, self._reader)
                    for row in self._reader.execute(sql, (signed(v.inode), self._source_ids.get(v.source_id, -1)))
                ]
                for v in versions
            ]

    def find_quickly(self, version: Version) -> list[StagedRow]:
        """As `find` of one version, on a connection of its own: from the event loop, beside the threads.

        A call takes some 15 us, a tenth of what the way to a thread and back costs. Readers of a WAL never wait for its
        writer.
        """
        sql = f"SELECT {COLUMNS} FROM files WHERE inode = ? AND source = ? ORDER BY id"
        key = (signed(version.inode), self._source_ids.get(version.source_id, -1))
        with self._guarded():
            return [self._row(row, self._quick) for row in self._quick.execute(sql, key)]

    def chunks(self, object_id: int) -> list[ChunkRow]:
        """What is committed of a file of several chunks, ascending."""
        sql = "SELECT number, checksum, stored FROM chunks WHERE file = ? ORDER BY number"
        with self._guarded():
            found = self._reader.execute(sql, (object_id,))
            return [ChunkRow(number, unsigned(checksum), stored) for number, checksum, stored in found]

    def page(self, after_id: int, limit: int) -> list[StagedRow]:
        """The next rows by object number, after `after_id`. Pages, because a long read would let the log grow."""
        return self._rows(f"SELECT {COLUMNS} FROM files WHERE id > ? ORDER BY id LIMIT ?", (after_id, limit))

    def oldest(self, after: tuple[int, int], limit: int) -> list[StagedRow]:
        """The next rows by (last use, object number), after `after`."""
        order = "ORDER BY last_use, id LIMIT ?"
        return self._rows(f"SELECT {COLUMNS} FROM files WHERE (last_use, id) > (?, ?) {order}", (*after, limit))

    def rows(self, object_ids: Sequence[int]) -> list[StagedRow]:
        """The rows of these objects, as far as they are there."""
        rows: list[StagedRow] = []
        for start in range(0, len(object_ids), _NAMED_AT_ONCE):
            part = object_ids[start : start + _NAMED_AT_ONCE]
            marks = ",".join("?" * len(part))
            rows += self._rows(f"SELECT {COLUMNS} FROM files WHERE id IN ({marks})", tuple(part))
        return rows

    def incomplete(self, after_id: int, limit: int) -> list[StagedRow]:
        """The next rows with chunks missing, by object number."""
        where = "complete = 0 AND id > ?"
        return self._rows(f"SELECT {COLUMNS} FROM files WHERE {where} ORDER BY id LIMIT ?", (after_id, limit))

    def doomed(self, after_id: int, limit: int) -> list[int]:
        """The next objects that were evicted but are perhaps still on the disk."""
        sql = "SELECT id FROM doomed WHERE id > ? ORDER BY id LIMIT ?"
        with self._guarded():
            return [number for (number,) in self._reader.execute(sql, (after_id, limit))]

    def known(self, object_ids: range) -> set[int]:
        """Those of the objects that have a row, here or among the doomed."""
        ends = (object_ids.start, object_ids.stop)
        with self._guarded():
            found = self._reader.execute("SELECT id FROM files WHERE id >= ? AND id < ?", ends).fetchall()
            found += self._reader.execute("SELECT id FROM doomed WHERE id >= ? AND id < ?", ends).fetchall()
        return {number for (number,) in found}

    def scrubbed(self) -> ScrubRow:
        """How far the scrub is."""
        with self._guarded():
            sql = "SELECT scrub_id, scrub_bytes, scrub_began, scrub_ended FROM state"
            return ScrubRow(*self._reader.execute(sql).fetchone())

    def state(self) -> IndexState:
        """The totals as they are now."""
        with self._guarded():
            return self._state()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _state(self) -> IndexState:
        sql = "SELECT files, bytes, blocks, next_id, settled_id, clean, encoded, stored FROM state"
        found = self._reader.execute(sql).fetchone()
        if found is None:
            raise sqlite3.DatabaseError("the index has no state")
        files, size_bytes, blocks, next_id, settled_id, clean, encoded, stored = found
        return IndexState(files, size_bytes, blocks * BLOCK_BYTES, next_id, settled_id, bool(clean), encoded, stored)

    def _rows(self, sql: str, values: tuple[Any, ...]) -> list[StagedRow]:
        with self._guarded():
            return [self._row(row, self._reader) for row in self._reader.execute(sql, values).fetchall()]

    def _row(self, columns: tuple[Any, ...], database: sqlite3.Connection) -> StagedRow:
        return staged_row(columns, self._source_names, database)

    def _source_id(self, name: str) -> int:
        """The number of a source. A new one is committed on its own, before any row uses it: were it rolled back with
        them, another source could be given the same number.
        """
        number = self._source_ids.get(name)
        if number is None:
            self._writer.execute("INSERT OR IGNORE INTO sources (name) VALUES (?)", (name,))
            (found,) = self._writer.execute("SELECT id FROM sources WHERE name = ?", (name,)).fetchone()
            number = int(found)
            self._source_names[number] = name
            self._source_ids[name] = number  # last: whoever finds the number here finds the name too
        return number

    def _count(self, files: int, size_bytes: int, blocks: int, encoded_bytes: int = 0, stored_bytes: int = 0) -> None:
        sql = """UPDATE state SET files = files + ?, bytes = bytes + ?, blocks = blocks + ?,
            encoded = encoded + ?, stored = stored + ?"""
        self._writer.execute(sql, (files, size_bytes, blocks, encoded_bytes, stored_bytes))

    @contextmanager
    def _transaction(self, *, durable: bool) -> Iterator[None]:
        # In WAL mode FULL syncs the log at the commit, and with it every commit before.
        if self._writer.in_transaction:
            self._writer.execute("ROLLBACK")  # of a transaction that the disk did not even let us end
        self._writer.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._writer.execute("COMMIT")
        except BaseException:
            try:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
            except sqlite3.Error:
                pass  # the first error is the one to tell
            raise

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def _failed(self, error: sqlite3.Error) -> IndexFailed:
        failure = IndexFailed(error)
        if failure.damaged and is_sound(self._directory, self._connect):
            failure.damaged = False  # the disk did not give a page for a moment
        elif failure.damaged:
            mark_damaged(self._directory)
        return failure
