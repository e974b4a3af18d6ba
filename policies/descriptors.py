"""Descriptors: how many of a process's open files each cache of them may keep.

A limit of a quarter of a million is usual and all caches have what they wish for; 1024, 256 or less are found in
containers, batch systems and old service files. Then some are left for what calls under way open, each for a moment,
and the caches share the rest. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

_FIXED = 64
"""The cache's index, sockets, event descriptors, memory of the mount: some 40, and a few for `hfs status`."""

_UNDER_WAY = 4
"""A quarter of what is there is for calls that open and close: look-ups, listings, reads and writes of one file."""

_DIRECTORIES = 1024
"""Of the source: the 1 000 classes of ImageNet fit."""
_STAGED = 1024
"""Enough for every large file of a job; for small ones the open costs 10 us in a thread that is needed anyway."""
_IDLE_FILES = 128
"""Of the source, between the chunks of large files. An open costs 2 ms on a busy Lustre."""

_DELEGATED = 1024

_LEAST = 4
"""Of each kind: what is used again at once."""


@dataclass(frozen=True, slots=True)
class Shares:
    """What each cache may keep."""

    directories: int
    staged: int
    idle_files: int
    delegated: int
    """Directories of the source that the data plane may have besides."""
    scarce: bool
    """Less than the caches wish for."""


def shares(limit: int) -> Shares:
    """The shares of a process that may have `limit` files open."""
    left = max(0, limit - _FIXED - max(_FIXED, limit // _UNDER_WAY))
    # Directories first: without theirs, each file of a tree with many classes costs a walk from the root.
    wanted = (_DIRECTORIES, _STAGED, _IDLE_FILES)
    parts = (left // 2, left * 3 // 8, left // 8)
    found = [max(_LEAST, min(want, part)) for want, part in zip(wanted, parts, strict=True)]
    scarce = any(part < want for want, part in zip(wanted, parts, strict=True))
    delegated = 0 if scarce else min(_DELEGATED, (left - sum(found)) // 2)
    return Shares(found[0], found[1], found[2], delegated, scarce)
