"""Version: which bytes of which file. All bytes of one handle belong to one version.

The source id is a stable identity of the source file system; st_dev is never part of it, because it changes at every
remount and differs between nodes. ctime is: a rewrite of the same size with the mtime put back shows only there.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Version", "stored_ns"]


_LAST_NS = (1 << 63) - 1
"""2262-04-11. Broken headers and careless copies bring later times, which no database column and no kernel interface in
nanoseconds can hold."""


def stored_ns(time_ns: int) -> int:
    """A time as a version has it: nanoseconds since the epoch, at most what 64 bits hold."""
    return max(-_LAST_NS, min(time_ns, _LAST_NS))


class Version(NamedTuple):
    """One state of one source file. Two equal versions have equal bytes."""

    source_id: str
    """16 hexadecimal digits."""
    inode: int
    """st_ino at the source: hard links share it, and so share what is staged."""
    size: int
    """Bytes."""
    mtime_ns: int
    ctime_ns: int
