"""Version: which bytes of which file. All bytes of one handle belong to one version.

The source id is the identity of the file system that the file lies on, SOURCE's own or one mounted below it (see
`mountd/source/identity.py`); st_dev is never part of it, because it changes at every remount and differs between nodes.
ctime is: a rewrite of the same size with the mtime put back shows only there.
"""

from __future__ import annotations

import os
from typing import NamedTuple

_LAST_NS = (1 << 63) - 1
"""2262-04-11. Broken headers and careless copies bring later times, which no database column and no kernel interface in
nanoseconds can hold."""

_PASSING = "~"


def stored_ns(time_ns: int) -> int:
    """A time as a version has it: nanoseconds since the epoch, at most what 64 bits hold."""
    return time_ns if -_LAST_NS <= time_ns <= _LAST_NS else max(-_LAST_NS, min(time_ns, _LAST_NS))


def passing_id() -> str:
    """An identity that nobody else has, nor will have: for what cannot be told from others for longer than we look."""
    return _PASSING + os.urandom(8).hex()


def is_lasting(source_id: str) -> bool:
    """Whether a later daemon, and those of other nodes, call the same file system so."""
    return not source_id.startswith(_PASSING)


class Version(NamedTuple):
    """One state of one source file. Two equal versions have equal bytes."""

    source_id: str
    """16 hexadecimal digits; a ~ before them if they are good for one daemon's life only."""
    inode: int
    """st_ino at the source: hard links share it, and so share what is staged."""
    size: int
    """Bytes."""
    mtime_ns: int
    ctime_ns: int
