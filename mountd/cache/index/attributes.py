"""What stat(2) said of staged files, as the index keeps it for later mounts of a source that never changes.

A row is found by the directory that it was seen in: a number made of the inode, mtime and ctime that this had. So it is
found whatever SOURCE leads there, and no more once a name in that directory was made, renamed or removed. It goes with
the row of its file.

All methods block, and raise IndexFailed; those called `_nowait` use the event loop's connection.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import xxhash

from hfs.mountd.cache.index.database import IndexDatabase
from hfs.mountd.cache.index.rows import signed, unsigned
from hfs.mountd.core.attributes import Attributes

_DIRECTORY = struct.Struct("<Qqq")
_NUMBER = struct.Struct("<Q")

_COLUMNS = "file, folder, directory, name, seen, attributes.proof FROM attributes"
_OF_WHOLE = "JOIN files ON id = file WHERE complete = 1 AND folder = ? AND name"

_KEEP = "INSERT OR REPLACE INTO attributes SELECT id, ?, ?, ?, ?, ? FROM files WHERE id = ?"


class AttributesRow(NamedTuple):
    """What was seen of a staged file."""

    object_id: int
    folder: int
    """The number of the directory as it was; see `Folder`."""
    directory: bytes
    """Its inode, mtime and ctime."""
    name: bytes
    seen: bytes
    """SEEN_BYTES of `core.attributes`, without the device."""
    proof: int
    """A checksum of all of it and of the directory (`Folder.proof`)."""


class Folder:
    """A directory as it was: what rows are found by, and proven with."""

    def __init__(self, identity: int, source: bytes, directory: bytes) -> None:
        self.directory = directory
        self._key = b"%d %s " % (identity, source) + directory
        self.number: int = xxhash.xxh3_64_intdigest(self._key)

    @classmethod
    def of(cls, identity: int, source_id: str, attributes: Attributes) -> Folder:
        """`identity`: see `AttributeRows.identity_nowait`."""
        directory = _DIRECTORY.pack(attributes.inode, attributes.mtime_ns, attributes.ctime_ns)
        return cls(identity, f"{source_id} {attributes.file_system}".encode(), directory)

    def row(self, object_id: int, name: bytes, seen: bytes) -> AttributesRow:
        """What is to be kept of a file in it."""
        return AttributesRow(object_id, self.number, self.directory, name, seen, self.proof(object_id, name, seen))

    def proves(self, row: AttributesRow) -> bool:
        """Whether it is a row that was written of a file in this directory."""
        is_here = row.folder == self.number and row.directory == self.directory
        return is_here and row.proof == self.proof(row.object_id, row.name, row.seen)

    def proof(self, object_id: int, name: bytes, seen: bytes) -> int:
        """A checksum of all that decides which file is shown as what."""
        return xxhash.xxh3_64_intdigest(self._key + _NUMBER.pack(object_id) + seen + name)


class AttributeRows:
    """What the index keeps of attributes."""

    def __init__(self, database: IndexDatabase) -> None:
        self._database = database

    def identity_nowait(self) -> int:
        """A number below 2**21 that another index hardly has, and this one until `renew`."""
        with self._database.guarded():
            return int(self._database.quick.execute("SELECT number FROM identity").fetchone()[0])

    def forget(self) -> None:
        """What is kept is not to be found any more, durably."""
        with self._database.guarded():
            if self._database.reader.execute("SELECT 1 FROM attributes LIMIT 1").fetchone() is None:
                return
        with self._database.transaction(durable=True) as database:
            database.execute("UPDATE identity SET number = (number + 1 + abs(random()) % 2097151) % 2097152")

    def keep(self, rows: Sequence[AttributesRow]) -> int:
        """Those of files that have a row; all others are ignored. How many are kept."""
        with self._database.transaction(durable=False) as database:
            return database.executemany(_KEEP, map(_values, rows)).rowcount

    def after(self, folder: int, name: bytes, limit: int) -> list[AttributesRow]:
        """The next of the complete files in this directory, by name, after `name`."""
        sql = f"SELECT {_COLUMNS} {_OF_WHOLE} > ? ORDER BY name LIMIT ?"
        with self._database.guarded():
            found = self._database.reader.execute(sql, (signed(folder), name, limit)).fetchall()
        return [_row(*columns) for columns in found]

    def below(self, path: bytes, after_object: int, limit: int) -> list[AttributesRow]:
        """The next of the files at or below this path (empty: all), by object number."""
        sql = f"SELECT {_COLUMNS} JOIN files ON id = file WHERE file > ?"
        values: list[object] = [after_object]
        if path:
            sql += " AND (path = ? OR (path > ? AND path < ?))"
            values += [path, path + b"/", path + b"0"]  # which comes behind the slash
        with self._database.guarded():
            found = self._database.reader.execute(f"{sql} ORDER BY file LIMIT ?", (*values, limit)).fetchall()
        return [_row(*columns) for columns in found]

    def forget_those(self, objects: Sequence[int]) -> None:
        """Nothing is kept of these objects, durably."""
        with self._database.transaction(durable=True) as database:
            database.executemany("DELETE FROM attributes WHERE file = ?", [(number,) for number in objects])

    def named_nowait(self, folder: int, name: bytes) -> AttributesRow | None:
        """That of the complete file with this name."""
        sql = f"SELECT {_COLUMNS} {_OF_WHOLE} = ?"
        with self._database.guarded():
            found = self._database.quick.execute(sql, (signed(folder), name)).fetchone()
        return _row(*found) if found is not None else None

    def drop_some(self, limit: int) -> int:
        """So many rows go, whosever they are. How many did."""
        sql = "DELETE FROM attributes WHERE file IN (SELECT file FROM attributes LIMIT ?)"
        with self._database.transaction(durable=False) as database:
            return database.execute(sql, (limit,)).rowcount


def _row(object_id: int, folder: int, directory: bytes, name: bytes, seen: bytes, proof: int) -> AttributesRow:
    return AttributesRow(object_id, unsigned(folder), bytes(directory), bytes(name), bytes(seen), unsigned(proof))


def _values(row: AttributesRow) -> tuple[object, ...]:
    """For `_KEEP`."""
    return signed(row.folder), row.directory, row.name, row.seen, signed(row.proof), row.object_id
