"""A row of the index: the tables, what goes into them, what comes out, and what proves that it is the row written.

SQLite does not notice a bit that was turned in its file. In a row that bit could give a file the bytes of another one
(inode numbers one apart, equal sizes and times), or call a chunk present that is a hole. So each row has a checksum of
all that decides which bytes are whose. What merely orders evictions or helps people (last use, pin, path) is left out,
and so are the rows of chunks: a wrong one of these makes right bytes look damaged, never the reverse.

Numbers that may exceed a signed 64-bit integer (inodes, checksums) are stored as their two's complement. Plain values;
nothing here writes.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import xxhash

from hfs.mountd.core.attributes import Version
from hfs.policies.cache.admission import BLOCK_BYTES
from hfs.policies.geometry import chunk_count

APPLICATION_ID = 0x68667331
""""hfs1": what file(1) and we tell an index of ours by."""

FORMAT = 7
"""user_version; each change of TABLES is a new number. An index of an older one is made anew."""

TABLES = (
    """CREATE TABLE sources (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE
    )""",
    # One row is one object; a file of one chunk has its checksum here and no row in chunks: about 170 bytes in all.
    """CREATE TABLE files (
        id INTEGER PRIMARY KEY,         -- object number
        source INTEGER NOT NULL,        -- sources.id
        inode INTEGER NOT NULL,
        size INTEGER NOT NULL,
        mtime_ns INTEGER NOT NULL,
        ctime_ns INTEGER NOT NULL,
        chunk_bytes INTEGER NOT NULL,
        complete INTEGER NOT NULL,      -- every chunk is committed
        blocks INTEGER NOT NULL,        -- accounted room, in blocks of 4096 bytes
        last_use INTEGER NOT NULL,      -- seconds since the epoch, brought up to date now and then
        checksum INTEGER,               -- xxh3_64 of the only chunk
        path BLOB NOT NULL,             -- last known, relative to the source
        stored INTEGER NOT NULL DEFAULT 0,  -- bytes that stand for the only chunk, which is encoded; 0: as it is
        stamp_inode INTEGER,            -- of the object when all was right, see Stamp; NULL: not known
        stamp_ctime_ns INTEGER,
        proof INTEGER,                  -- see `_proof`
        pinned INTEGER NOT NULL DEFAULT 0   -- goes only by name: see cache.rows
    )""",
    "CREATE INDEX files_by_inode ON files (inode)",
    # Whoever looks for what was used longest ago never comes by what is pinned, however much that is.
    "CREATE INDEX files_by_use ON files (last_use) WHERE pinned = 0",
    "CREATE INDEX files_pinned ON files (id, blocks) WHERE pinned = 1",
    "CREATE INDEX files_pinned_by_path ON files (path) WHERE pinned = 1",
    "CREATE INDEX files_incomplete ON files (id) WHERE complete = 0",
    """CREATE TABLE chunks (
        file INTEGER NOT NULL,          -- files.id
        number INTEGER NOT NULL,
        checksum INTEGER NOT NULL,      -- xxh3_64
        stored INTEGER NOT NULL DEFAULT 0,  -- as in files; below 0: as it is, but for so many blocks of zeros
        PRIMARY KEY (file, number)
    ) WITHOUT ROWID""",
    # Evicted, but perhaps not yet removed from the disk: still accounted.
    """CREATE TABLE doomed (
        id INTEGER PRIMARY KEY,
        blocks INTEGER NOT NULL
    )""",
    # One row. Totals change in the transaction that changes what they count, so nothing is ever counted at start.
    """CREATE TABLE state (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        files INTEGER NOT NULL,         -- rows in files
        bytes INTEGER NOT NULL,         -- of the chunks committed
        blocks INTEGER NOT NULL,        -- sum of blocks in files and doomed
        next_id INTEGER NOT NULL,       -- object numbers below may have been used
        settled_id INTEGER NOT NULL,    -- object numbers below have a row or no file
        clean INTEGER NOT NULL,         -- closed with nothing on the disk that is not accounted
        encoded INTEGER NOT NULL DEFAULT 0, -- of `bytes`, those of encoded chunks
        stored INTEGER NOT NULL DEFAULT 0,  -- bytes that stand for them
        scrub_id INTEGER NOT NULL DEFAULT 0,    -- object numbers up to here were looked at in this round of the scrub
        scrub_bytes INTEGER NOT NULL DEFAULT 0, -- in this round so far
        scrub_began INTEGER NOT NULL DEFAULT 0, -- this round, in seconds since the epoch; 0: there was none yet
        scrub_ended INTEGER NOT NULL DEFAULT 0  -- the last round that came to its end
    )""",
    "INSERT INTO state (one, files, bytes, blocks, next_id, settled_id, clean) VALUES (1, 0, 0, 0, 1, 1, 1)",
    # A number that another index hardly has: node ids of the kernel are made of it.
    "CREATE TABLE identity (number INTEGER NOT NULL)",
    "INSERT INTO identity VALUES (abs(random()) % 2097152)",
    # For sources that never change: what stat(2) said of staged files, so that nobody asks the source again.
    """CREATE TABLE attributes (
        file INTEGER PRIMARY KEY,       -- files.id
        folder INTEGER NOT NULL,        -- the directory, and as what: see `attributes`
        directory BLOB NOT NULL,        -- its inode, mtime and ctime
        name BLOB NOT NULL,
        seen BLOB NOT NULL,             -- see core/attributes.py; no device
        proof INTEGER NOT NULL
    )""",
    "CREATE INDEX attributes_by_name ON attributes (folder, name)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)

COLUMNS = (
    "id, source, inode, size, mtime_ns, ctime_ns, chunk_bytes, complete, blocks, last_use, checksum, path, stored, "
    "stamp_inode, stamp_ctime_ns, proof, pinned"
)
SET_STAMP = "stamp_inode = ?, stamp_ctime_ns = ?, proof = ?"

_PROVEN = struct.Struct("<QQQqqQ?QQQq")

_NOT_A_ROW = (ArithmeticError, TypeError, ValueError, struct.error)
"""What comes of columns that hold what nobody has written."""


def signed(number: int) -> int:
    """A 64-bit unsigned number as SQLite stores it."""
    return number - (1 << 64) if number >= 1 << 63 else number


def unsigned(number: int) -> int:
    """The inverse of `signed`."""
    return number + (1 << 64) if number < 0 else number


class Stamp(NamedTuple):
    """How an object was left: as long as it has its stamp and its length, nobody has changed it since."""

    inode: int
    """Another file under its name has another one."""
    ctime_ns: int
    """Time of its last change, by the clock of the file system that holds it."""


class ScrubRow(NamedTuple):
    """How far the scrub is. Times in seconds since the epoch, 0: never."""

    object_id: int
    """Objects up to this number were looked at in this round."""
    bytes: int
    """In this round so far."""
    began_s: int
    """This round, or the last."""
    ended_s: int
    """The last round that came to its end."""


class ChunkRow(NamedTuple):
    """One chunk of a file."""

    number: int
    checksum: int
    """xxh3_64 of its bytes, however they are stored."""
    stored_bytes: int = 0
    """How many bytes stand for it on the disk, if it shrinks; 0: it is stored as it is."""
    hole_blocks: int = 0
    """How many blocks of it, all zeros, are not there, if it is stored as it is. None of the only chunk of a file."""

    @property
    def stored(self) -> int:
        """Both in one number, as the database has them."""
        return self.stored_bytes or -self.hole_blocks


def chunk_row(number: int, checksum: int, stored: int) -> ChunkRow:
    """Of a row of `chunks`."""
    return ChunkRow(number, unsigned(checksum), max(0, stored), max(0, -stored))


@dataclass(frozen=True, slots=True)
class StagedRow:
    """One staged file as the index knows it."""

    object_id: int
    version: Version
    path: bytes
    """Last known, relative to the source."""
    chunk_bytes: int
    complete: bool
    staged_bytes: int
    """Of the chunks committed."""
    room_bytes: int
    """Accounted on the disk: whole blocks and overhead."""
    last_use_s: int
    """Seconds since the epoch; some hours behind at worst."""
    checksum: int | None
    """xxh3_64 of the only chunk of a file of one chunk; None if that is not committed, or there are more."""
    stored_bytes: int
    """As in ChunkRow, of that chunk; 0 if there are more."""
    stamp: Stamp | None = None
    """With which every chunk that is committed was right, and nothing else was in the object; None: not known."""
    proven: bool = True
    """It is the row that was written. If not, none of its chunks may be used."""
    pinned: bool = False
    """It goes only by name."""


@dataclass(frozen=True, slots=True)
class Committed:
    """Chunks of one file that have become durable, for `IndexWriter.commit_chunks`."""

    object_id: int
    is_new: bool
    """No row yet."""
    version: Version
    path: bytes
    chunk_bytes: int
    complete: bool
    size_bytes: int
    """Of these chunks."""
    room_bytes: int
    """Of these chunks, and of the file itself when it is new."""
    last_use_s: int
    chunks: Sequence[ChunkRow]
    stamp: Stamp | None = None
    """As in StagedRow, with these chunks."""

    @property
    def checksum(self) -> int | None:
        """As in StagedRow."""
        return self.chunks[0].checksum if self.version.size <= self.chunk_bytes else None

    @property
    def stored_bytes(self) -> int:
        """As in StagedRow."""
        return self.chunks[0].stored_bytes if self.version.size <= self.chunk_bytes else 0


def new_columns(row: Committed, source: int) -> tuple[object, ...]:
    """The values of COLUMNS for a file that has no row yet."""
    version, checksum = row.version, row.checksum
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
        None if checksum is None else signed(checksum),
        row.path,
        row.stored_bytes,
        *stamp_values(row),
        0,
    )


def stamp_values(row: StagedRow | Committed) -> tuple[int | None, int | None, int]:
    """The values of SET_STAMP in a row that says this."""
    proof = signed(_proof(row))
    return (None, None, proof) if row.stamp is None else (signed(row.stamp.inode), row.stamp.ctime_ns, proof)


def staged_row(columns: Sequence[Any], source_names: Mapping[int, str], database: sqlite3.Connection) -> StagedRow:
    """The row with these values of COLUMNS. `database`: where its chunks are counted."""
    try:
        return _staged_row(columns, source_names, database)
    except _NOT_A_ROW:
        return StagedRow(columns[0], Version("", 0, 0, 0, 0), b"", 1, False, 0, 0, 0, None, 0, proven=False)


def _staged_row(columns: Sequence[Any], source_names: Mapping[int, str], database: sqlite3.Connection) -> StagedRow:
    number, source, inode, size, mtime_ns, ctime_ns, chunk_bytes, complete, *others = columns
    blocks, last_use_s, checksum, path, stored_bytes, stamp_inode, stamp_ctime_ns, proof, pinned = others
    staged_bytes = size if complete else 0
    if not complete and size > chunk_bytes:
        sql = "SELECT COUNT(*), MAX(number) FROM chunks WHERE file = ?"
        count, last = database.execute(sql, (number,)).fetchone()
        staged_bytes = bytes_of(count, last, size, chunk_bytes)
    stamp = None
    if stamp_inode is not None and stamp_ctime_ns is not None:
        stamp = Stamp(unsigned(stamp_inode), stamp_ctime_ns)
    row = StagedRow(
        number,
        Version(source_names.get(source, ""), unsigned(inode), size, mtime_ns, ctime_ns),
        bytes(path),
        chunk_bytes,
        bool(complete),
        staged_bytes,
        blocks * BLOCK_BYTES,
        last_use_s,
        None if checksum is None else unsigned(checksum),
        stored_bytes,
        stamp,
        pinned=bool(pinned),
    )
    return row if unsigned(proof) == _proof(row) else replace(row, proven=False)


def _proof(row: StagedRow | Committed) -> int:
    version, checksum, stamp = row.version, row.checksum, row.stamp or (0, 0)
    nulls = (checksum is not None) << 1 | (row.stamp is not None)
    of_version = version.inode, version.size, version.mtime_ns, version.ctime_ns
    known = row.chunk_bytes, row.complete, checksum or 0, row.stored_bytes << 2 | nulls
    return xxhash.xxh3_64_intdigest(
        _PROVEN.pack(row.object_id, *of_version, *known, *stamp) + version.source_id.encode()
    )


def bytes_of(count: int, last: int | None, size: int, chunk_bytes: int) -> int:
    """Of so many chunks of a file; the last of them has this number."""
    lacks = -size % chunk_bytes if last == chunk_count(size, chunk_bytes) - 1 else 0
    return count * chunk_bytes - lacks
