"""Whether an index that SQLite calls malformed is: looked at, never believed at once.

SQLite says so of a page that the disk did not give for a moment, too (it takes EIO for a file system that is damaged).
Who believes that gives up a cache of terabytes for one error of the disk.

Blocks for as long as reading the index takes, a second for a million files.
"""

from __future__ import annotations

import os
import sqlite3

from hfs.mountd.cache.index.schema import NAME, Connect, connect_to
from hfs.mountd.core.cache_directory import CacheDirectory

_PIECE_BYTES = 1 << 20


def is_sound(directory: CacheDirectory, connect: Connect) -> bool:
    """Whether a new connection finds every page in order. May be asked while others use the index."""
    return _fault(directory, connect) is None


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
    try:
        fd = directory.open(name, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        offset = 0
        while piece := os.pread(fd, _PIECE_BYTES, offset):
            offset += len(piece)
    finally:
        os.close(fd)
