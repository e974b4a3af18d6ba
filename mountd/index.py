"""The index: what of which file is staged and vouched for. Everything it does not name is garbage.

Used by the staging files only. All methods block; `Index` has one connection for writing and one for reading, and each
is used by one thread at a time (the callers' limiters see to that). Rows come in with a group of synced chunks, go out
durably before their object is removed, and never name an object number twice.

Errors: IndexFailed for whatever SQLite reports. A cache may fail: the caller counts it and goes on without.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mountd.errors import StagingError
from mountd.index_rows import ChunkRow, IndexState, StagedRow, Vouched
from mountd.index_schema import (
    Connect,
    connect_to,
    is_damage,
    is_damage_at_start,
    mark_damaged,
    open_database,
    set_aside,
    signed,
    unsigned,
)
from mountd.version import Version
from policies.admission import BLOCK_BYTES, blocks_bytes
from policies.geometry import chunk_count, chunk_extent

__all__ = ["ChunkRow", "Connect", "Index", "IndexFailed", "IndexState", "StagedRow", "Vouched"]

_LEASE = 16_384
"""Object numbers leased by one durable commit: three seconds of the fastest staging of small files, and after a crash
16 384 names at most, twice, are tried: 0.1 s."""

_COLUMNS = (
    "id, source, inode, size, mtime_ns, ctime_ns, chunk_bytes, complete, blocks, last_use, checksum, path, stored"
)


_NAMED_AT_ONCE = 500
"""Values in one statement: SQLite allowed 999 for a long time."""


class IndexFailed(StagingError):
    """SQLite refused. `damaged`: the database file itself is broken and of no more use."""

    def __init__(self, error: sqlite3.Error) -> None:
        super().__init__(f"the index of the cache failed: {error}")
        self.damaged = is_damage(error)


class Index:
    """See the file's story. `connect` is sqlite3.connect, or a test's."""

    def __init__(
        self,
        cache_dir: str,
        *,
        on_new: Callable[[], None] = lambda: None,
        connect: Connect = sqlite3.connect,
    ) -> None:
        """Open or make the index. Raises CacheFormatError, IndexFailed, OSError. The caller owns the directory."""
        self._cache_dir = cache_dir
        try:
            try:
                self._open(on_new, connect)
            except sqlite3.Error as error:
                if not is_damage_at_start(error):
                    raise
                set_aside(cache_dir, str(error))
                self._open(on_new, connect)
        except sqlite3.Error as error:
            raise self._failed(error) from error
        self.files = self.opened.files
        """Rows, as of the last commit; may be read by any thread, like `bytes`."""
        self.bytes = self.opened.size_bytes
        """Bytes of the chunks vouched for."""
        self.encoded_bytes = self.opened.encoded_bytes
        self.encoded_stored_bytes = self.opened.encoded_stored_bytes
        """Of `bytes` those of encoded chunks, and how many stand for them on the disk."""
        self.entered_bytes = 0
        """Of those that `vouch` has ever entered."""
        self._source_names = {number: name for name, number in self._source_ids.items()}

    def _open(self, on_new: Callable[[], None], connect: Connect) -> None:
        self._writer = open_database(self._cache_dir, connect, on_new)
        try:
            self._reader = connect_to(self._cache_dir, connect)
            self._quick = connect_to(self._cache_dir, connect)
            try:
                self._source_ids = dict(self._reader.execute("SELECT name, id FROM sources"))
                self.opened = self._state()
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

    # -- writing: one thread at a time -------------------------------------------------------------------------------

    def lease(self, settled_id: int) -> range:
        """Object numbers that nobody has had, durably. `settled_id`: numbers below it are accounted for."""
        with self._guarded(), self._transaction(durable=True):
            (start,) = self._writer.execute("SELECT next_id FROM state").fetchone()
            self._writer.execute("UPDATE state SET next_id = ?, settled_id = ?", (start + _LEASE, settled_id))
        return range(start, start + _LEASE)

    def vouch(self, rows: Sequence[Vouched]) -> None:
        """Enter synced chunks; survives a kill at once, a power failure with the next durable commit."""
        with self._guarded():
            sources = {row.version.source_id: self._source_id(row.version.source_id) for row in rows if row.is_new}
        with self._guarded(), self._transaction(durable=False):
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
                if row.is_new:
                    times = (version.mtime_ns, version.ctime_ns)
                    key = (sources[version.source_id], signed(version.inode), version.size, *times)
                    state = (row.chunk_bytes, int(row.complete), blocks, row.last_use_s, checksum, row.path, stored)
                    new.append((row.object_id, *key, *state))
                else:
                    old.append((int(row.complete), blocks, checksum, stored, row.object_id))
            self._writer.executemany(f"INSERT INTO files ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)", new)
            self._writer.executemany(
                "UPDATE files SET complete = ?, blocks = blocks + ?, checksum = ?, stored = ? WHERE id = ?", old
            )
            self._writer.executemany("INSERT OR REPLACE INTO chunks VALUES (?,?,?,?)", chunks)
            size_bytes = sum(row.size_bytes for row in rows)
            blocks = sum(row.room_bytes for row in rows) // BLOCK_BYTES
            self._count(len(new), size_bytes, blocks, encoded_bytes, stored_bytes)
        self.files += len(new)
        self.entered_bytes += size_bytes  # before the next line: see Staging.statistics
        self.bytes += size_bytes
        self.encoded_bytes += encoded_bytes
        self.encoded_stored_bytes += stored_bytes

    def doom(self, object_ids: Sequence[int]) -> None:
        """Forget objects, durably: from now on they may be removed. They stay accounted until `removed`."""
        run = self._writer.execute
        with self._guarded(), self._transaction(durable=True):
            files = size_bytes = encoded_bytes = stored_bytes = 0
            for number in object_ids:
                found = run(f"SELECT {_COLUMNS} FROM files WHERE id = ?", (number,)).fetchone()
                if found is None:
                    continue
                row = self._row(found, self._writer)
                files += 1
                size_bytes += row.staged_bytes
                encoded, stored = self._encoded(row)
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

    def removed(self, object_ids: Iterable[int]) -> int:
        """Doomed objects are off the disk. Returns the bytes of room that this gives back."""
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
        """Chunks, (index, bytes), are no longer vouched for, durably: from now on their bytes may change.

        Chunks and objects that are not in the index are ignored.
        """
        run = self._writer.execute
        size_bytes = blocks = encoded_bytes = stored_bytes = 0
        with self._guarded(), self._transaction(durable=True):
            sql = "SELECT size <= chunk_bytes, checksum IS NOT NULL, stored FROM files WHERE id = ?"
            row = run(sql, (object_id,)).fetchone()
            if row is None:
                return
            for number, length in chunks:
                key = (object_id, number)
                if row[0]:
                    found = row[2:] if row[1] else None
                else:
                    found = run("SELECT stored FROM chunks WHERE file = ? AND number = ?", key).fetchone()
                    run("DELETE FROM chunks WHERE file = ? AND number = ?", key)
                if found is not None:
                    size_bytes += length
                    blocks += blocks_bytes(found[0] or length) // BLOCK_BYTES
                    encoded_bytes += length if found[0] else 0
                    stored_bytes += found[0]
            if blocks:
                sql = "UPDATE files SET complete = 0, checksum = NULL, stored = 0, blocks = blocks - ? WHERE id = ?"
                run(sql, (blocks, object_id))
                self._count(0, -size_bytes, -blocks, -encoded_bytes, -stored_bytes)
        self.bytes -= size_bytes
        self.encoded_bytes -= encoded_bytes
        self.encoded_stored_bytes -= stored_bytes

    def touch(self, uses: Sequence[tuple[int, int]], paths: Sequence[tuple[bytes, int]]) -> None:
        """Bring last uses, (seconds since the epoch, object number), and paths, (path, object number), up to date."""
        with self._guarded(), self._transaction(durable=False):
            self._writer.executemany("UPDATE files SET last_use = ? WHERE id = ?", uses)
            self._writer.executemany("UPDATE files SET path = ? WHERE id = ?", paths)

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
        sql = f"SELECT {_COLUMNS} FROM files WHERE inode = ? AND source = ? ORDER BY id"
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
        sql = f"SELECT {_COLUMNS} FROM files WHERE inode = ? AND source = ? ORDER BY id"
        key = (signed(version.inode), self._source_ids.get(version.source_id, -1))
        with self._guarded():
            return [self._row(row, self._quick) for row in self._quick.execute(sql, key)]

    def chunks(self, object_id: int) -> list[ChunkRow]:
        """What is vouched for of a file of several chunks, ascending."""
        sql = "SELECT number, checksum, stored FROM chunks WHERE file = ? ORDER BY number"
        with self._guarded():
            found = self._reader.execute(sql, (object_id,))
            return [ChunkRow(number, unsigned(checksum), stored) for number, checksum, stored in found]

    def page(self, after_id: int, limit: int) -> list[StagedRow]:
        """The next rows by object number, after `after_id`. Pages, because a long read would let the log grow."""
        return self._rows(f"SELECT {_COLUMNS} FROM files WHERE id > ? ORDER BY id LIMIT ?", (after_id, limit))

    def oldest(self, after: tuple[int, int], limit: int) -> list[StagedRow]:
        """The next rows by (last use, object number), after `after`."""
        order = "ORDER BY last_use, id LIMIT ?"
        return self._rows(f"SELECT {_COLUMNS} FROM files WHERE (last_use, id) > (?, ?) {order}", (*after, limit))

    def rows(self, object_ids: Sequence[int]) -> list[StagedRow]:
        """The rows of these objects, as far as they are there."""
        rows: list[StagedRow] = []
        for start in range(0, len(object_ids), _NAMED_AT_ONCE):
            part = object_ids[start : start + _NAMED_AT_ONCE]
            marks = ",".join("?" * len(part))
            rows += self._rows(f"SELECT {_COLUMNS} FROM files WHERE id IN ({marks})", tuple(part))
        return rows

    def incomplete(self, after_id: int, limit: int) -> list[StagedRow]:
        """The next rows with chunks missing, by object number."""
        where = "complete = 0 AND id > ?"
        return self._rows(f"SELECT {_COLUMNS} FROM files WHERE {where} ORDER BY id LIMIT ?", (after_id, limit))

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

    def _row(self, row: tuple[Any, ...], database: sqlite3.Connection) -> StagedRow:
        number, source, inode, size, mtime_ns, ctime_ns, chunk_bytes, complete, blocks, last_use, *rest = row
        checksum, path, stored = rest
        staged_bytes = size if complete else 0
        if not complete and size > chunk_bytes:
            sql = "SELECT COUNT(*), MAX(number) FROM chunks WHERE file = ?"
            held, last = database.execute(sql, (number,)).fetchone()
            staged_bytes = held * chunk_bytes
            if held and last == chunk_count(size, chunk_bytes) - 1:
                staged_bytes -= -size % chunk_bytes  # what the last chunk lacks to a whole one
        return StagedRow(
            number,
            Version(self._source_names.get(source, ""), unsigned(inode), size, mtime_ns, ctime_ns),
            path,
            chunk_bytes,
            bool(complete),
            staged_bytes,
            blocks * BLOCK_BYTES,
            last_use,
            None if checksum is None else unsigned(checksum),
            stored,
        )

    def _encoded(self, row: StagedRow) -> tuple[int, int]:
        """(bytes of the encoded chunks of a file, bytes that stand for them), as the writer sees it."""
        size, chunk_bytes = row.version.size, row.chunk_bytes
        if size <= chunk_bytes:
            return (size, row.stored_bytes) if row.stored_bytes else (0, 0)
        sql = "SELECT COUNT(*), MAX(number), SUM(stored) FROM chunks WHERE file = ? AND stored > 0"
        count, last, stored_bytes = self._writer.execute(sql, (row.object_id,)).fetchone()
        if not count:
            return 0, 0
        short = -size % chunk_bytes if last == chunk_count(size, chunk_bytes) - 1 else 0
        return count * chunk_bytes - short, stored_bytes

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
        if failure.damaged:
            mark_damaged(self._cache_dir)
        return failure
