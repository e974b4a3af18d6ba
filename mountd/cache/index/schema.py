"""The index's file: its tables, its format version, opening, making it anew, setting a broken one aside.

One SQLite database in WAL mode per cache directory. Only the process that holds `DIR/lock` opens it. Opening does the
same small work whatever the number of rows: no scan, no integrity check; a damaged page found later is reported by the
query that meets it.

Numbers that may exceed a signed 64-bit integer (inodes, checksums) are stored as their two's complement.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable
from typing import Any

from hfs.mountd.base.errors import CacheFormatError
from hfs.mountd.core.cache_directory import CacheDirectory

log = logging.getLogger(__name__)

NAME = "index.sqlite"
_MARK = "index.damaged"

APPLICATION_ID = 0x68667331
""""hfs1": what file(1) and we tell an index of ours by."""

FORMAT = 7
"""user_version. A release reads its own format and older ones; each change of TABLES is a new number.

2: chunks may be encoded (`stored`, and their totals in `state`).
3: objects have a stamp, rows a proof; the state knows how far the scrub is.
4, 5: attributes of files may be kept.
6: files may be pinned.
7: chunks may have holes (`stored` below 0)."""

_PIN_INDEXES = (
    # Whoever looks for what was used longest ago never comes by what is pinned, however much that is.
    "CREATE INDEX files_by_use ON files (last_use) WHERE pinned = 0",
    "CREATE INDEX files_pinned ON files (id, blocks) WHERE pinned = 1",
    "CREATE INDEX files_pinned_by_path ON files (path) WHERE pinned = 1",
)

_ATTRIBUTES = (
    # A number that another index hardly has: node ids of the kernel are made of it.
    "CREATE TABLE identity (number INTEGER NOT NULL)",
    "INSERT INTO identity VALUES (abs(random()) % 2097152)",
    # For sources that never change: what stat(2) said of staged files, so that nobody asks the source again.
    """CREATE TABLE attributes (
        file INTEGER PRIMARY KEY,       -- files.id, also of one that has gone since
        folder INTEGER NOT NULL,        -- the directory, and as what: see attribute_rows
        directory BLOB NOT NULL,        -- its inode, mtime and ctime
        name BLOB NOT NULL,
        seen BLOB NOT NULL,             -- see base/seen.py; no device
        proof INTEGER NOT NULL
    )""",
    "CREATE INDEX attributes_by_name ON attributes (folder, name)",
)

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
        proof INTEGER,                  -- see index_columns; NULL: from before format 3
        pinned INTEGER NOT NULL DEFAULT 0   -- goes only by name: see cache.pins
    )""",
    "CREATE INDEX files_by_inode ON files (inode)",
    *_PIN_INDEXES,
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
    *_ATTRIBUTES,
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)

_FROM_6 = (f"PRAGMA user_version = {FORMAT}",)
_FROM_5 = (
    "ALTER TABLE files ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0",
    "DROP INDEX files_by_use",
    *_PIN_INDEXES,
    *_FROM_6,
)
_FROM_3 = (*_ATTRIBUTES, *_FROM_5)
_FROM_4 = (
    "DROP TRIGGER IF EXISTS attributes_go_with_their_file",
    "DROP TABLE attributes",
    "DROP TABLE identity",
    *_FROM_3,
)

_FROM_2 = (
    "ALTER TABLE files ADD COLUMN stamp_inode INTEGER",
    "ALTER TABLE files ADD COLUMN stamp_ctime_ns INTEGER",
    "ALTER TABLE files ADD COLUMN proof INTEGER",
    "ALTER TABLE state ADD COLUMN scrub_id INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE state ADD COLUMN scrub_bytes INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE state ADD COLUMN scrub_began INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE state ADD COLUMN scrub_ended INTEGER NOT NULL DEFAULT 0",
    *_FROM_3,
)

_FROM_1 = (
    "ALTER TABLE files ADD COLUMN stored INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE chunks ADD COLUMN stored INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE state ADD COLUMN encoded INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE state ADD COLUMN stored INTEGER NOT NULL DEFAULT 0",
    *_FROM_2,
)

_UPGRADES = {1: _FROM_1, 2: _FROM_2, 3: _FROM_3, 4: _FROM_4, 5: _FROM_5, 6: _FROM_6}
"""What makes an index of an older format one of this, in one transaction. No row is touched, however many there are (of
a million an index is sorted anew, in a second): rows from before have no stamp, so their objects are verified when they
are first used."""

_DISK_REFUSES = {
    *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM),
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_PROTOCOL),
}

Connect = Callable[..., sqlite3.Connection]


def signed(number: int) -> int:
    """A 64-bit unsigned number as SQLite stores it."""
    return number - (1 << 64) if number >= 1 << 63 else number


def unsigned(number: int) -> int:
    """The inverse of `signed`."""
    return number + (1 << 64) if number < 0 else number


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the database file itself is broken, rather than the disk full or an operation refused."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def is_damage_at_start(error: sqlite3.Error) -> bool:
    """Whether an index that cannot be opened is of no use: whatever is wrong with it, except that the disk refuses."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF not in _DISK_REFUSES


def is_marked(directory: CacheDirectory) -> bool:
    """Whether a damaged page was met in an earlier run."""
    return directory.exists(_MARK)


def unmark(directory: CacheDirectory) -> None:
    """The index was looked at and is sound."""
    with contextlib.suppress(FileNotFoundError):
        directory.unlink(_MARK)


def mark_damaged(directory: CacheDirectory) -> None:
    """Remember that a damaged page was met: the next start looks at the whole index."""
    try:
        os.close(directory.open(_MARK, os.O_WRONLY | os.O_CREAT))
    except OSError as error:
        log.debug("the damaged index could not be marked: %s", error)  # the next start meets the damage again


def open_database(directory: CacheDirectory, connect: Connect, on_new: Callable[[], None]) -> sqlite3.Connection:
    """The writing connection. `on_new` is called before an index is made anew: what the objects directory holds then is
    known to nobody.

    Raises CacheFormatError for a format of a newer release, ConfigError, sqlite3.Error and OSError.
    """
    # Made here, for its mode, and never again while it is open: closing any descriptor of a file drops all the locks
    # that this process holds on it (POSIX), and then whoever else looks into the index removes its log when he closes.
    os.close(directory.open(NAME, os.O_RDWR | os.O_CREAT))
    database = connect_to(directory, connect)
    try:
        application = _pragma(database, "application_id")
        found = _pragma(database, "user_version")
        if application not in {0, APPLICATION_ID} or (application == 0 and _tables(database)):
            raise CacheFormatError(f"{directory.path}/{NAME} belongs to another program: use another --cache directory")
        if found > FORMAT:
            raise CacheFormatError(
                f"the cache {directory.path} was written by a newer hfs (format {found}, this release knows {FORMAT}): "
                "use that release, use another --cache directory, or delete this one"
            )
        # Readers never wait for the writer, and a commit is one append; rolled into the database from time to time.
        database.execute("PRAGMA journal_mode = WAL").fetchone()
        database.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
        check_opened(directory, 1)
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("PRAGMA wal_autocheckpoint = 4000")  # pages: 16 MB, a checkpoint for 40 000 small files
        database.execute("PRAGMA journal_size_limit = 33554432")
        if application == 0:
            on_new()
        statements = TABLES if application == 0 else _UPGRADES.get(found, ())
        if statements:
            database.execute("PRAGMA synchronous = FULL")
            database.execute("BEGIN IMMEDIATE")
            for statement in statements:
                database.execute(statement)
            database.execute("COMMIT")
    except BaseException:
        database.close()
        raise
    return database


def connect_to(directory: CacheDirectory, connect: Connect) -> sqlite3.Connection:
    """A connection with the settings that every one needs. Used by one thread at a time, not always the same.

    Raises ConfigError if what it has opened lies elsewhere; nothing was read of that.
    """
    path = f"{directory.real_path}/{NAME}"  # it makes any path one without links, so there is none by a descriptor
    database = connect(path, isolation_level=None, check_same_thread=False, cached_statements=64)
    try:
        directory.check_opened(NAME, 1)
        # No other process has it open (DIR/lock), so whoever holds it is another thread of ours, for milliseconds.
        database.execute("PRAGMA busy_timeout = 10000")
        database.execute("PRAGMA cache_size = -16000")  # 16 MB: the inner pages of the index of a million files
    except BaseException:
        database.close()
        raise
    return database


def in_memory() -> Connect:
    """For an index that lies on no disk: one connection, which all share, and that goes with the last of them."""
    shared: list[sqlite3.Connection] = []

    def connect(_path: str, **how: Any) -> sqlite3.Connection:
        if not shared:
            shared.append(sqlite3.connect(":memory:", **how))
        return shared[0]

    return connect


def _pragma(database: sqlite3.Connection, name: str) -> int:
    return int(database.execute(f"PRAGMA {name}").fetchone()[0])


def _tables(database: sqlite3.Connection) -> bool:
    return database.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None


def check_opened(directory: CacheDirectory, connections: int) -> None:
    """See that so many connections, which have read, have all their files in this directory. Raises ConfigError."""
    for name in (NAME, f"{NAME}-wal"):
        directory.check_opened(name, connections)
    directory.check_opened(f"{NAME}-shm", 1)  # one of the whole process


def set_aside(directory: CacheDirectory, why: str) -> None:
    """Rename the broken index, with its log, so that it can be looked at; nothing uses it again."""
    n = 1
    while directory.exists(f"{NAME}.broken-{n}"):
        n += 1
    for suffix in ("-shm", "-wal", ""):  # the database last: a crash between leaves it broken, not without its log
        try:
            directory.rename(NAME + suffix, f"{NAME}.broken-{n}{suffix}")
        except FileNotFoundError:
            continue
    unmark(directory)
    path = f"{directory.path}/{NAME}"
    log.warning("%s is damaged (%s): set aside as index.sqlite.broken-%d, the cache starts empty", path, why, n)
