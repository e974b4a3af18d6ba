"""Counts: the totals of the index, and what one transaction adds to them or takes away.

They change in the transaction that changes what they count, so nothing is ever counted at start.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Additive figures."""

    files: int = 0
    bytes: int = 0
    """Of the chunks committed."""
    blocks: int = 0
    """Accounted on the disk."""
    shrunk_bytes: int = 0
    """Of `bytes`, those of chunks that are stored in fewer bytes than they have."""
    shrunk_stored_bytes: int = 0
    """How many stand for them."""

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
        self.files += sign * other.files
        self.bytes += sign * other.bytes
        self.blocks += sign * other.blocks
        self.shrunk_bytes += sign * other.shrunk_bytes
        self.shrunk_stored_bytes += sign * other.shrunk_stored_bytes

    def write(self, database: sqlite3.Connection, sign: int = 1) -> None:
        """The same in the row of totals, within the caller's transaction."""
        sql = """UPDATE state SET files = files + ?, bytes = bytes + ?, blocks = blocks + ?,
            encoded = encoded + ?, stored = stored + ?"""
        figures = (self.files, self.bytes, self.blocks, self.shrunk_bytes, self.shrunk_stored_bytes)
        database.execute(sql, [sign * figure for figure in figures])
