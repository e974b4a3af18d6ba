"""What is known of each chunk of a staged file: its checksum, and as how many bytes it is stored.

As small as it can be: tens of thousands of files are in memory at a time, most of them of one chunk.
"""

from __future__ import annotations

from array import array

from hfs.mountd.cache.index import ChunkRow


class ChunkRecords:
    """By the number of the chunk. What is not entered counts as stored as it is."""

    __slots__ = ("_checksums", "_count", "_shrunk", "_stored")

    def __init__(self, count: int) -> None:
        self._count = count
        self._checksums: array[int] | None = None
        self._stored: array[int] | None = None
        """As how many bytes, or less how many blocks, below 0."""
        self._shrunk = 0
        """How many in `_stored` are above 0."""

    @property
    def plain(self) -> bool:
        """Every chunk is stored as it is."""
        return not self._shrunk

    def checksum(self, number: int) -> int:
        """xxh3_64 of a chunk that was entered."""
        return self._checksums[number] if self._checksums is not None else 0

    def stored_bytes(self, number: int) -> int:
        """How many bytes stand on the disk for a chunk that shrinks; 0: it is there as it is."""
        return max(0, self._stored[number]) if self._stored is not None else 0

    def hole_blocks(self, number: int) -> int:
        """How many blocks of zeros of a chunk that does not are not on the disk."""
        return max(0, -self._stored[number]) if self._stored is not None else 0

    def row(self, number: int) -> ChunkRow:
        """As the index has it."""
        return ChunkRow(number, self.checksum(number), self.stored_bytes(number), self.hole_blocks(number))

    def enter(self, row: ChunkRow) -> None:
        """A chunk is on the disk."""
        if self._checksums is None:
            self._checksums = array("Q", bytes(8 * self._count))
        self._checksums[row.number] = row.checksum
        self._store(row.number, row.stored_bytes or -row.hole_blocks)

    def discard(self, number: int) -> None:
        """Nothing is left of the chunk: it is about to be written anew."""
        self._store(number, 0)

    def clear(self) -> None:
        """Nothing is left of any."""
        self._checksums = self._stored = None
        self._shrunk = 0

    def _store(self, number: int, stored: int) -> None:
        if self._stored is None:
            if not stored:
                return
            self._stored = array("q", bytes(8 * self._count))
        self._shrunk += (stored > 0) - (self._stored[number] > 0)
        self._stored[number] = stored
