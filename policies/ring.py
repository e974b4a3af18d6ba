"""A ring of bytes: where batches of differing sizes go in one piece of memory, first in, first out; and who gets which
part of a batch.

Pure arithmetic: touches no memory, never waits.
"""

from __future__ import annotations

from collections import deque


class Ring:
    """Places pieces in [0, capacity_bytes), each contiguous; the oldest is freed first. At most `pieces` at a time.

    A piece that is not larger than the capacity always finds a place once all before it have been freed. Sizes are
    rounded up to `align` (a power of two), so every piece begins at a multiple of it.
    """

    def __init__(self, capacity_bytes: int, pieces: int, align: int = 64) -> None:
        self.capacity_bytes = capacity_bytes // align * align
        self._pieces = pieces
        self._align = align
        self._places: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        """Pieces that are placed and not freed."""
        return len(self._places)

    @property
    def used_bytes(self) -> int:
        """Of the pieces that are placed; what is lost between them is not counted."""
        return sum(end - start for start, end in self._places)

    def holds(self, size: int) -> bool:
        """Whether a piece of this size finds a place when all others have been freed."""
        return self._rounded(size) <= self.capacity_bytes

    def place_nowait(self, size: int) -> int | None:
        """The offset of a new piece of `size` >= 0 bytes, or None: there is no room now.

        Raises ValueError if there will never be.
        """
        size = self._rounded(size)
        if size > self.capacity_bytes:
            raise ValueError(f"{size} bytes do not fit into {self.capacity_bytes}")
        if not self._places:
            start = 0
        elif len(self._places) == self._pieces:
            return None
        else:
            tail, head = self._places[0][0], self._places[-1][1]
            if head <= tail:  # Wrapped. Equal is full, since no piece is empty.
                room, start = tail - head, head
            elif self.capacity_bytes - head >= size:
                room, start = size, head
            else:
                room, start = tail, 0
            if size > room:
                return None
        self._places.append((start, start + size))
        return start

    def free(self) -> None:
        """The oldest piece is needed no more. IndexError if there is none."""
        self._places.popleft()

    def _rounded(self, size: int) -> int:
        return max(1, -(-size // self._align)) * self._align


def part(count: int, rank: int, world: int) -> tuple[int, int]:
    """The half-open range of `count` rows that `rank` of `world` gets: in order, each once, sizes at most 1 apart."""
    return rank * count // world, (rank + 1) * count // world
