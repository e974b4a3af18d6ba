"""Faults: page faults that reach us though their chunk is staged, and what of it goes into the page cache again.

A chunk that random readers want goes into the kernel's page cache when it arrives, so their page faults never reach us.
Where memory is tight, or a kernel reclaims what is cold (DAMON), it lets pages go, of each chunk some; each is then a
request of 4 KiB, and a read of that size from the cache disk (0.3 ms together, where pushing all of 8 MiB again takes
6). Pages go in rows of 32, so the neighbours of a lost one are put back at once. And as in renting: after as many
faults as cost a push the whole chunk is. Each time that was in vain, or was not seen since the reader goes past the
page cache (O_DIRECT), it takes twice as many, and neighbours are left alone.

`read_path` keeps one for each file with such readers. Bounded memory. Pure.
"""

from __future__ import annotations

from enum import Enum

from hfs.policies.geometry import Extent

_FIRST_FAULTS = 16
"""A quarter of the rows of a chunk of 8 MiB; 16 requests take as long as pushing it whole."""

_NEIGHBOURS_UP_TO = 2 * _FIRST_FAULTS
"""A chunk that was pushed whole twice, and is asked for again, is not one that has lost some pages."""

_ROW_BYTES = 32 * 4096
"""What the kernel reclaims at a time (SWAP_CLUSTER_MAX): pages that came together go together."""

_MAX_CHUNKS = 4096
"""Chunks that are counted; past it counts start again."""


class Again(Enum):
    """What to put into the page cache again."""

    NOTHING = 0
    NEIGHBOURS = 1
    CHUNK = 2


def neighbours(fault: Extent, chunk: Extent) -> Extent:
    """The row of pages that `fault`, within `chunk`, begins in."""
    start = fault.start // _ROW_BYTES * _ROW_BYTES
    return Extent(max(start, chunk.start), min(start + _ROW_BYTES, chunk.end))


class Faults:
    """The counts of one file."""

    __slots__ = ("_by_chunk",)

    def __init__(self) -> None:
        self._by_chunk: dict[int, tuple[int, int]] = {}
        """Chunk -> faults since it was pushed, and how many it takes."""

    def push_again(self, index: int) -> Again:
        """A page of chunk `index` was asked for: what to put into the page cache. All of it begins a new count."""
        count, limit = self._by_chunk.get(index, (0, _FIRST_FAULTS))
        count += 1
        if count < limit:
            if len(self._by_chunk) >= _MAX_CHUNKS and index not in self._by_chunk:
                self._by_chunk.clear()
            self._by_chunk[index] = count, limit
            return Again.NEIGHBOURS if limit <= _NEIGHBOURS_UP_TO else Again.NOTHING
        self._by_chunk[index] = 0, 2 * limit
        return Again.CHUNK
