"""Faults: page faults that reach us though their chunk is staged, and when the chunk is put into the page cache again.

A chunk that random readers want goes into the kernel's page cache when it arrives, so their page faults never reach us.
Where memory is tight the kernel lets pages go, of each chunk some; each is then a request of 4 KiB, and a read of that
size from the cache disk (0.3 ms together, where pushing all of 8 MiB again takes 6). As in renting: after as many
faults as cost half of a push it is pushed again. Each time that was in vain, or was not seen since the reader goes past
the page cache (O_DIRECT), it takes twice as many.

`read_path` keeps one for each file with such readers. Bounded memory. Pure.
"""

from __future__ import annotations

__all__ = ["Faults"]

_FIRST_FAULTS = 8
"""A tenth of a chunk's pages gone are 200 faults, 60 ms; with this it is 8 of them and one push."""

_MAX_CHUNKS = 4096
"""Chunks that are counted; past it counts start again."""


class Faults:
    """The counts of one file."""

    __slots__ = ("_by_chunk",)

    def __init__(self) -> None:
        self._by_chunk: dict[int, tuple[int, int]] = {}
        """Chunk -> faults since it was pushed, and how many it takes."""

    def push_again(self, index: int) -> bool:
        """A page of chunk `index` was asked for. True: put all of the chunk into the page cache, which begins a new
        count.
        """
        count, limit = self._by_chunk.get(index, (0, _FIRST_FAULTS))
        count += 1
        if count < limit:
            if len(self._by_chunk) >= _MAX_CHUNKS and index not in self._by_chunk:
                self._by_chunk.clear()
            self._by_chunk[index] = count, limit
            return False
        self._by_chunk[index] = 0, 2 * limit
        return True
