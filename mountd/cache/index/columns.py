"""Rows of the index as the database has them: their columns, and what proves that one is the row that was written.

SQLite does not notice a bit that was turned in its file. In a row that bit could give a file the bytes of another one
(inode numbers one apart, equal sizes and times), or call a chunk present that is a hole. So each row has a checksum of
all that decides which bytes are whose. What merely orders evictions or helps people (last use, pin, path) is left out,
and so are the rows of chunks: a wrong one of these makes right bytes look damaged, never the reverse.

Writes nothing.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Mapping
from typing import Any

import xxhash

from hfs.mountd.base.version import Version
from hfs.mountd.cache.index.rows import IndexState, StagedRow, Stamp
from hfs.mountd.cache.index.schema import signed, unsigned
from hfs.policies.cache.admission import BLOCK_BYTES
from hfs.policies.geometry import chunk_count

COLUMNS = (
    "id, source, inode, size, mtime_ns, ctime_ns, chunk_bytes, complete, blocks, last_use, checksum, path, stored, "
    "stamp_inode, stamp_ctime_ns, proof"
)
READ_COLUMNS = f"{COLUMNS}, pinned"
SET_STAMP = "stamp_inode = ?, stamp_ctime_ns = ?, proof = ?"

_PROVEN = struct.Struct("<QQQqqQ?QQQq")

_NOT_A_ROW = (ArithmeticError, TypeError, ValueError, struct.error)
"""What comes of columns that hold what nobody has written."""


def stamp_values(
    object_id: int,
    version: Version,
    chunk_bytes: int,
    complete: bool,
    checksum: int | None,
    stored_bytes: int,
    stamp: Stamp | None,
) -> tuple[int | None, int | None, int]:
    """The values of SET_STAMP in a row with these others."""
    proof = signed(_proof(object_id, version, chunk_bytes, complete, checksum, stored_bytes, stamp))
    return (None, None, proof) if stamp is None else (signed(stamp.inode), stamp.ctime_ns, proof)


def staged_row(columns: tuple[Any, ...], source_names: Mapping[int, str], database: sqlite3.Connection) -> StagedRow:
    """The row with these values of READ_COLUMNS. `database`: where its chunks are counted."""
    try:
        return _staged_row(columns, source_names, database)
    except _NOT_A_ROW:
        return StagedRow(columns[0], Version("", 0, 0, 0, 0), b"", 1, False, 0, 0, 0, None, 0, None, proven=False)


def read_state(database: sqlite3.Connection) -> IndexState:
    """The totals. Raises sqlite3.Error."""
    sql = "SELECT files, bytes, blocks, next_id, settled_id, clean, encoded, stored FROM state"
    found = database.execute(sql).fetchone()
    if found is None:
        raise sqlite3.DatabaseError("the index has no state")
    files, size_bytes, blocks, next_id, settled_id, clean, shrunk_bytes, stored_bytes = found
    used_bytes = blocks * BLOCK_BYTES
    return IndexState(files, size_bytes, used_bytes, next_id, settled_id, bool(clean), shrunk_bytes, stored_bytes)


def shrunk_in(row: StagedRow, database: sqlite3.Connection) -> tuple[int, int]:
    """(bytes of those chunks of a file that are stored in fewer, bytes that stand for them)."""
    size, chunk_bytes = row.version.size, row.chunk_bytes
    if size <= chunk_bytes:
        return (size, row.stored_bytes) if row.stored_bytes else (0, 0)
    sql = "SELECT COUNT(*), MAX(number), SUM(stored) FROM chunks WHERE file = ? AND stored > 0"
    count, last, stored_bytes = database.execute(sql, (row.object_id,)).fetchone()
    if not count:
        return 0, 0
    short = -size % chunk_bytes if last == chunk_count(size, chunk_bytes) - 1 else 0
    return count * chunk_bytes - short, stored_bytes


def _staged_row(columns: tuple[Any, ...], source_names: Mapping[int, str], database: sqlite3.Connection) -> StagedRow:
    number, source, inode, size, mtime_ns, ctime_ns, chunk_bytes, complete, blocks, last_use, *rest = columns
    checksum, path, stored_bytes, stamp_inode, stamp_ctime_ns, proof, pinned = rest
    staged_bytes = size if complete else 0
    if not complete and size > chunk_bytes:
        sql = "SELECT COUNT(*), MAX(number) FROM chunks WHERE file = ?"
        held, last = database.execute(sql, (number,)).fetchone()
        staged_bytes = held * chunk_bytes
        if held and last == chunk_count(size, chunk_bytes) - 1:
            staged_bytes -= -size % chunk_bytes  # what the last chunk lacks to a whole one
    version = Version(source_names.get(source, ""), unsigned(inode), size, mtime_ns, ctime_ns)
    stamp = None
    if proof is not None and stamp_inode is not None and stamp_ctime_ns is not None:
        stamp = Stamp(unsigned(stamp_inode), stamp_ctime_ns)
    checksum = None if checksum is None else unsigned(checksum)
    # Those of formats without a proof have none.
    proven = proof is None or unsigned(proof) == _proof(
        number, version, chunk_bytes, bool(complete), checksum, stored_bytes, stamp
    )
    room_bytes = blocks * BLOCK_BYTES
    return StagedRow(
        number,
        version,
        bytes(path),
        chunk_bytes,
        bool(complete),
        staged_bytes,
        room_bytes,
        last_use,
        checksum,
        stored_bytes,
        stamp,
        proven,
        bool(pinned),
    )


def _proof(
    object_id: int,
    version: Version,
    chunk_bytes: int,
    complete: bool,
    checksum: int | None,
    stored_bytes: int,
    stamp: Stamp | None,
) -> int:
    inode, ctime_ns = stamp if stamp is not None else (0, 0)
    nulls = (checksum is not None) << 1 | (stamp is not None)
    times = (version.mtime_ns, version.ctime_ns)
    stored = stored_bytes << 2 | nulls
    row = _PROVEN.pack(
        object_id, version.inode, version.size, *times, chunk_bytes, complete, checksum or 0, stored, inode, ctime_ns
    )
    return xxhash.xxh3_64_intdigest(row + version.source_id.encode())
