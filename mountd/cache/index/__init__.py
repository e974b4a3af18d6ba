"""The index: what of which file is staged and committed: files, chunks, checksums, stamps. A database of SQLite.

Nobody else opens it. It never touches an object; what it does not know is garbage. Rows come in with a group of synced
chunks, go out durably before their object is removed, and never name an object number twice. A cache may fail: the
caller counts an IndexFailed and goes on without.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace

from hfs.mountd.cache.index.attributes import AttributeRows, AttributesRow, Folder
from hfs.mountd.cache.index.database import Connect, IndexDatabase, IndexFailed, Sources, in_memory
from hfs.mountd.cache.index.rows import ChunkRow, Committed, ScrubRow, StagedRow, Stamp
from hfs.mountd.cache.index.statements import FoundRow, IndexReader, IndexWriter
from hfs.mountd.core.attributes import is_lasting
from hfs.mountd.core.cache_directory import CacheDirectory


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
        self.database = IndexDatabase(directory, on_new, connect)
        self.opened = opened = self.database.opened
        """The totals when it was opened."""
        self.sources = Sources(self.database)
        self.opened_passing = frozenset(name for name in self.sources.names.values() if not is_lasting(name))
        """File systems that only an earlier run knew; see `mountd/core/attributes.py`."""
        self.counts = replace(opened.counts)
        """The totals after the last commit; may be read by any thread."""
        self.reader = IndexReader(self.database, self.sources)
        self.writer = IndexWriter(self.database, self.sources, self.counts)
        self.attributes = AttributeRows(self.database)
        try:
            self.opened_pins = self.reader.pinned()
        except IndexFailed:
            self.database.close()
            raise
        """The numbers of the objects that were pinned when it was opened, and the blocks that they took."""

    def close(self) -> None:
        """Close all connections. May be called twice. Raises IndexFailed."""
        self.database.close()
