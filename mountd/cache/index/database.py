"""The file of the index: one SQLite database in WAL mode per cache directory; its connections, transactions and damage.

Only the process that holds `DIR/lock` opens it. Opening does the same small work whatever the number of rows: no scan,
no integrity check; a damaged page found later is reported by the query that meets it. SQLite says "malformed" of a page
that the disk did not give for a moment, too (it takes EIO for a file system that is damaged), and who believes that
gives up a cache of terabytes for one error of the disk: so damage is looked at, never believed at once.

One connection writes, one reads, and one answers from the event loop beside the threads. Each is used by one thread at
a time: the callers' limiters see to that. Errors: IndexFailed for whatever SQLite reports.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import astuple, dataclass, fields
from typing import Any

from hfs.mountd.cache.index.rows import APPLICATION_ID, FORMAT, TABLES
from hfs.mountd.core.cache_directory import CacheDirectory
from hfs.mountd.core.errors import CacheFormatError, StagingError

log = logging.getLogger(__name__)

NAME = "index.sqlite"
_MARK = "index.damaged"
_PIECE_BYTES = 1 << 20
_ANY_TABLE = "SELECT 1 FROM sqlite_master LIMIT 1"

_DISK_REFUSES = {
    *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM),
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_PROTOCOL),
}

Connect = Callable[..., sqlite3.Connection]


@dataclass(slots=True)
class Counts:
    """The totals of the index, and what one transaction adds to them or takes away. They change in the transaction that
    changes what they count, so nothing is ever counted at start."""

    files: int = 0
    bytes: int = 0
    """Of the chunks committed."""
    blocks: int = 0
    """Accounted for everything in the index, evicted objects that are not yet removed included."""
    shrunk_bytes: int = 0
    """Of `bytes`, those of chunks that are stored in fewer bytes than they have."""
    shrunk_stored_bytes: int = 0
    """How many stand for them on the disk."""

    def add_chunk(self, size_bytes: int, stored_bytes: int) -> None:
        """A chunk, and the bytes that stand for it; 0: it is stored as it is. Its blocks are not counted here."""
        self.bytes += size_bytes
        if stored_bytes:
            self.add_shrunk(size_bytes, stored_bytes)

    def add_shrunk(self, size_bytes: int, stored_bytes: int) -> None:
        """Chunks whose bytes are counted already are stored in fewer."""
        self.shrunk_bytes += size_bytes
        self.shrunk_stored_bytes += stored_bytes

    def add(self, other: Counts, sign: int = 1) -> None:
        """Add what a transaction has changed; it was taken away if `sign` is -1."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + sign * getattr(other, field.name))

    def write(self, database: sqlite3.Connection, sign: int = 1) -> None:
        """Add these to the row of totals, within the caller's transaction; they are taken away if `sign` is -1."""
        sql = """UPDATE state SET files = files + ?, bytes = bytes + ?, blocks = blocks + ?,
            encoded = encoded + ?, stored = stored + ?"""
        database.execute(sql, [sign * figure for figure in astuple(self)])


@dataclass(frozen=True, slots=True)
class IndexState:
    """What is known without looking at any row of a file."""

    counts: Counts
    next_id: int
    """The first object number that was certainly never used."""
    settled_id: int
    """Objects from here to next_id without a row are garbage."""
    clean: bool
    """The last run left nothing on the disk that is not accounted."""


def read_state(database: sqlite3.Connection) -> IndexState:
    """The totals. Raises sqlite3.Error."""
    sql = "SELECT files, bytes, blocks, encoded, stored, next_id, settled_id, clean FROM state"
    found = database.execute(sql).fetchone()
    if found is None:
        raise sqlite3.DatabaseError("the index has no state")
    *figures, next_id, settled_id, clean = found
    return IndexState(Counts(*figures), next_id, settled_id, bool(clean))


class IndexFailed(StagingError):
    """SQLite refused. `damaged`: the database file itself is broken and of no more use."""

    def __init__(self, error: sqlite3.Error) -> None:
        super().__init__(f"the index of the cache failed: {error}")
        self.damaged = is_damage(error)


class IndexDatabase:
    """`on_new` is called before an index is made anew. The caller owns the directory."""

    def __init__(self, directory: CacheDirectory, on_new: Callable[[], None], connect: Connect) -> None:
        """Raises CacheFormatError, ConfigError, IndexFailed, OSError."""
        self._directory, self._connect = directory, connect
        try:
            if directory.exists(_MARK):  # a damaged page was met in an earlier run
                self._judge()
            try:
                self._open(on_new)
            except sqlite3.Error as error:
                if _code(error) in _DISK_REFUSES:
                    raise  # whatever else is wrong with an index that cannot be opened, it is of no use
                self._judge(error)
                self._open(on_new)
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def _open(self, on_new: Callable[[], None]) -> None:
        with ExitStack() as made:
            self.writer = made.enter_context(closing(open_database(self._directory, self._connect, on_new)))
            self.reader = made.enter_context(closing(connect_to(self._directory, self._connect)))
            self.quick = made.enter_context(closing(connect_to(self._directory, self._connect)))
            self.opened_sources: dict[str, int] = dict(self.reader.execute("SELECT name, id FROM sources"))
            """Numbers by identity, when it was opened."""
            self.opened = read_state(self.reader)
            """The totals when it was opened."""
            self.quick.execute("SELECT 1 FROM state").fetchone()
            check_opened(self._directory, 3)
            # From here on a crash leaves garbage.
            with self._transaction(durable=True) as writer:
                writer.execute("UPDATE state SET clean = 0")
            made.pop_all()  # they stay open

    def _judge(self, error: sqlite3.Error | None = None) -> None:
        """Before anything is open: set the index aside if it is damaged, or is sound and cannot be used (`error`)."""
        fault = verdict(self._directory, self._connect)
        if fault is None and error is not None and not is_damage(error):
            fault = str(error)
        if fault is None:
            unmark(self._directory)
        else:
            set_aside(self._directory, fault)

    def close(self) -> None:
        """Close all connections. May be called twice. Raises IndexFailed."""
        with self.guarded():
            self.quick.close()
            self.reader.close()
            self.writer.close()

    @contextmanager
    def transaction(self, *, durable: bool) -> Iterator[sqlite3.Connection]:
        """Write all of what the block does, or nothing. Raises IndexFailed.

        `durable`: it is on the disk when the block is left, and every commit before it.
        """
        with self.guarded(), self._transaction(durable=durable) as writer:
            yield writer

    @contextmanager
    def _transaction(self, *, durable: bool) -> Iterator[sqlite3.Connection]:
        writer = self.writer
        if writer.in_transaction:
            writer.execute("ROLLBACK")  # of a transaction that the disk did not even let us end
        # In WAL mode FULL syncs the log at the commit.
        writer.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        writer.execute("BEGIN IMMEDIATE")
        try:
            yield writer
            writer.execute("COMMIT")
        except BaseException:
            try:
                if writer.in_transaction:
                    writer.execute("ROLLBACK")
            except sqlite3.Error:
                pass  # the first error is the one to tell
            raise

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """What SQLite raises inside becomes IndexFailed."""
        try:
            yield
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def _failed(self, error: sqlite3.Error) -> IndexFailed:
        failure = IndexFailed(error)
        if failure.damaged and _fault(self._directory, self._connect) is None:
            failure.damaged = False  # the disk did not give a page for a moment
        elif failure.damaged:
            mark_damaged(self._directory)
        return failure


class Sources:
    """Those of staged files: rows name them by number, versions by identity. Read by any thread, changed by the one
    that writes."""

    def __init__(self, database: IndexDatabase) -> None:
        self._database = database
        self._ids = database.opened_sources
        self.names = {number: name for name, number in self._ids.items()}
        """By number."""

    def number(self, name: str) -> int:
        """The number of a source; -1 if nothing of it was ever staged."""
        return self._ids.get(name, -1)

    def enter(self, name: str) -> int:
        """The number of a source, which it gets now if it has none. Raises IndexFailed.

        A new one is committed on its own, before any row uses it: were it rolled back with them, another source could
        be given the same number.
        """
        number = self._ids.get(name)
        if number is None:
            writer = self._database.writer
            with self._database.guarded():
                writer.execute("INSERT OR IGNORE INTO sources (name) VALUES (?)", (name,))
                (found,) = writer.execute("SELECT id FROM sources WHERE name = ?", (name,)).fetchone()
            number = int(found)
            self.names[number] = name
            self._ids[name] = number  # last: whoever finds the number here finds the name too
        return number

    def forget(self, names: Iterable[str]) -> None:
        """Forget these, as far as there is no row of theirs. Raises IndexFailed."""
        sql = "DELETE FROM sources WHERE name = ? AND NOT EXISTS (SELECT 1 FROM files WHERE source = sources.id)"
        with self._database.transaction(durable=False) as database:
            database.executemany(sql, [(name,) for name in names])


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the database file itself is broken, rather than the disk full or an operation refused."""
    return _code(error) in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def _code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


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

    Raises CacheFormatError for a format of a newer release, sqlite3.Error for an older one too, ConfigError, OSError.
    """
    # Made here, for its mode, and never again while it is open: closing any descriptor of a file drops all the locks
    # that this process holds on it (POSIX), and then whoever else looks into the index removes its log when he closes.
    os.close(directory.open(NAME, os.O_RDWR | os.O_CREAT))
    database = connect_to(directory, connect)
    try:
        application = _pragma(database, "application_id")
        found = _pragma(database, "user_version")
        if application not in {0, APPLICATION_ID} or (application == 0 and database.execute(_ANY_TABLE).fetchone()):
            raise CacheFormatError(f"{directory.path}/{NAME} belongs to another program: use another --cache directory")
        if found > FORMAT:
            raise CacheFormatError(
                f"the cache {directory.path} was written by a newer hfs (format {found}, this release knows {FORMAT}): "
                "use that release, use another --cache directory, or delete this one"
            )
        if application and found < FORMAT:
            raise sqlite3.DatabaseError(f"of an older hfs: format {found}, this release has {FORMAT}")
        # Readers never wait for the writer, and a commit is one append; rolled into the database from time to time.
        database.execute("PRAGMA journal_mode = WAL").fetchone()
        database.execute(_ANY_TABLE).fetchone()
        check_opened(directory, 1)
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("PRAGMA wal_autocheckpoint = 4000")  # pages: 16 MB, a checkpoint for 40 000 small files
        database.execute("PRAGMA journal_size_limit = 33554432")
        if application == 0:
            on_new()
            database.execute("PRAGMA synchronous = FULL")
            database.execute("BEGIN IMMEDIATE")
            for statement in TABLES:
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


def check_opened(directory: CacheDirectory, connections: int) -> None:
    """See that so many connections, which have read, have all their files in this directory. Raises ConfigError."""
    for name in (NAME, f"{NAME}-wal"):
        directory.check_opened(name, connections)
    directory.check_opened(f"{NAME}-shm", 1)  # one of the whole process


def set_aside(directory: CacheDirectory, why: str) -> None:
    """Rename an index that is broken or of an older release, with its log; nothing uses it again."""
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
    log.warning("%s cannot be used (%s): set aside as index.sqlite.broken-%d, the cache starts empty", path, why, n)


def verdict(directory: CacheDirectory, connect: Connect) -> str | None:
    """What is wrong with the index; None: nothing. Only while this process has it open nowhere.

    Raises OSError where the disk does not give its bytes: then nobody can tell.
    """
    if not directory.exists(NAME):
        return None
    fault = _fault(directory, connect)
    if fault is not None:
        for name in (NAME, f"{NAME}-wal"):
            _read_through(directory, name)
    return fault


def _fault(directory: CacheDirectory, connect: Connect) -> str | None:
    """What a new connection finds wrong, looking at every page. May be asked while others use the index."""
    try:
        database = connect_to(directory, connect)
        try:
            (said,) = database.execute("PRAGMA quick_check(1)").fetchone()
        finally:
            database.close()
    except sqlite3.Error as error:
        return str(error)
    return None if said == "ok" else str(said)


def _read_through(directory: CacheDirectory, name: str) -> None:
    with contextlib.suppress(FileNotFoundError), open(directory.open(name, os.O_RDONLY), "rb", 0) as file:
        while file.read(_PIECE_BYTES):
            pass
