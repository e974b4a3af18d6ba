"""A notice: what a daemon tells the others of its root a few times a second, in two cells of its own record.

One says how its readers wait for the source, one how they wait for the disk of the cache. Both are written by one
write of 96 bytes, each with a checksum; whoever reads a half of one reads nothing. Times are CLOCK_MONOTONIC, which all
of the node share (a container may have one of its own: its notices are out of date, and nobody heeds them). Nothing of
it is ever synced, and after a restart of the machine it is out of date.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

import xxhash

from hfs.mountd.core.waits import Waits

_SOURCE, _DISK = b"hfs-wait", b"hfs-disk"
_CELL = struct.Struct("<8sQQQQQ")  # magic, told, waits, waited, waiting, checksum of what is before
_CELLS_AT = 1024
"""Behind the grant, in the block that has nothing else. Releases that know the first cell alone leave the second."""

_MOST = (1 << 64) - 1


class Notice(NamedTuple):
    """How its readers wait for one of the two, since the daemon began."""

    told_ns: int
    """When it was written."""
    waits: int
    """Times that one has waited."""
    waited_ns: int
    """So long in all."""
    waiting: int
    """Those that wait now."""


class Notices(NamedTuple):
    """Of one daemon. None: there is none, or it is being written."""

    source: Notice | None
    disk: Notice | None


def write_notices(fd: int, told_ns: int, source: Waits, disk: Waits) -> None:
    """Raises OSError."""
    cells = _cell(_SOURCE, told_ns, source) + _cell(_DISK, told_ns, disk)
    os.pwrite(fd, cells, _CELLS_AT)


def read_notices(fd: int) -> Notices:
    """Raises OSError."""
    data = os.pread(fd, 2 * _CELL.size, _CELLS_AT)
    return Notices(_notice(_SOURCE, data[: _CELL.size]), _notice(_DISK, data[_CELL.size :]))


def _cell(magic: bytes, told_ns: int, waits: Waits) -> bytes:
    body = _CELL.pack(magic, *(min(max(0, figure), _MOST) for figure in (told_ns, *waits)), 0)[:-8]
    return body + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")


def _notice(wanted: bytes, cell: bytes) -> Notice | None:
    if len(cell) < _CELL.size or xxhash.xxh3_64_intdigest(cell[:-8]).to_bytes(8, "little") != cell[-8:]:
        return None
    magic, *figures, _ = _CELL.unpack(cell)
    return Notice(*figures) if magic == wanted else None
