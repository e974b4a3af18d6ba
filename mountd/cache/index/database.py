"""The database of the index while it is open: its connections, transactions and errors.

One connection writes, one reads, and one answers from the event loop beside the threads. Each is used by one thread at
a time: the callers' limiters see to that. Errors: IndexFailed for whatever SQLite reports.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

from hfs.mountd.base.errors import StagingError
from hfs.mountd.cache.index.columns import read_state
from hfs.mountd.cache.index.schema import (
    Connect,
    check_opened,
    connect_to,
    is_damage,
    is_damage_at_start,
    is_marked,
    mark_damaged,
    open_database,
    set_aside,
    unmark,
)
from hfs.mountd.cache.index.verdict import is_sound, verdict
from hfs.mountd.core.cache_directory import CacheDirectory


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
            if is_marked(directory):
                self._judge()
            try:
                self._open(on_new)
            except sqlite3.Error as error:
                if not is_damage_at_start(error):
                    raise
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
        if failure.damaged and is_sound(self._directory, self._connect):
            failure.damaged = False  # the disk did not give a page for a moment
        elif failure.damaged:
            mark_damaged(self._directory)
        return failure
