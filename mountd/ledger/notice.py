"""A notice: what a daemon tells the others of its root a few times a second, in a cell of its own record.

Written by one write of 48 bytes with a checksum; whoever reads a half of it reads nothing. Times are CLOCK_MONOTONIC,
which all of the node share (a container may have one of its own: its notices are out of date, and nobody heeds them).
Nothing of it is ever synced, and after a restart of the machine it is out of date.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

import xxhash

_MAGIC = b"hfs-wait"
_CELL = struct.Struct("<8sQQQQQ")  # magic, told, waits, waited, waiting, checksum of what is before
_CELL_AT = 1024
"""Behind the grant, in the block that has nothing else."""

_MOST = (1 << 64) - 1


class Notice(NamedTuple):
    """How its readers wait for the source, since the daemon began."""

    told_ns: int
    """When it was written."""
    waits: int
    """Times that one has waited."""
    waited_ns: int
    """So long in all."""
    waiting: int
    """Those that wait now."""


def write_notice(fd: int, notice: Notice) -> None:
    """Raises OSError."""
    body = _CELL.pack(_MAGIC, *(min(max(0, figure), _MOST) for figure in notice), 0)[:-8]
    os.pwrite(fd, body + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little"), _CELL_AT)


def read_notice(fd: int) -> Notice | None:
    """None: there is none, or it is being written. Raises OSError."""
    data = os.pread(fd, _CELL.size, _CELL_AT)
    if len(data) < _CELL.size or xxhash.xxh3_64_intdigest(data[:-8]).to_bytes(8, "little") != data[-8:]:
        return None
    magic, *figures, _ = _CELL.unpack(data)
    return Notice(*figures) if magic == _MAGIC else None
