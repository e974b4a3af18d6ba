"""Whole objects that are found right before anybody asks for them, many in one call of a thread.

Whoever answers reads without us (`native/plane/staged.c`) compares no checksum: it is given objects that were compared
here, and sees by their stamps that they are as they were. What was read for it is in memory afterwards. Blocks.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import xxhash

from hfs.mountd.base.errors import StagingError
from hfs.mountd.cache.index import StagedRow
from hfs.mountd.cache.objects import Disk


def right_objects(disk: Disk, rows: Sequence[StagedRow]) -> list[StagedRow]:
    """Those of them that are one chunk, stored as it is, and right. What is not is left to who reads it."""
    return [row for row in rows if _is_one_chunk(row) and _is_right(disk, row)]


def _is_one_chunk(row: StagedRow) -> bool:
    size = row.version.size
    return (
        row.proven and row.complete and 0 < size <= row.chunk_bytes and not row.stored_bytes and row.stamp is not None
    )


def _is_right(disk: Disk, row: StagedRow) -> bool:
    try:
        fd = disk.open_read(row.object_id)
    except (OSError, StagingError):
        return False
    try:
        found = os.fstat(fd)
        as_left = row.stamp == (found.st_ino, found.st_ctime_ns) and found.st_size == row.version.size
        return as_left and xxhash.xxh3_64_intdigest(os.pread(fd, row.version.size, 0)) == row.checksum
    except OSError:
        return False
    finally:
        os.close(fd)
