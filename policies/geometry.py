"""Extents and chunks: all offset arithmetic of the project, in one place.

An extent is a half-open byte range `[start, end)` of one file. A chunk is the unit of source I/O and staging: chunk
`i` of a file covers `[i * chunk_bytes, (i + 1) * chunk_bytes)` cut off at the end of the file. Everybody who divides an
offset by a chunk size calls this file instead. Nothing here knows what a file, a version or a cache is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Extent:
    """A half-open byte range: `start` is the first byte in it, `end` the first byte after it."""

    start: int
    end: int

    @property
    def size(self) -> int:
        """Bytes in the extent."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of an extent that lies in one chunk. `start` and `end` are offsets in the file, half-open."""

    index: int
    start: int
    end: int


def clamp(offset: int, size: int, file_size: int) -> Extent:
    """The bytes of `[offset, offset + size)` that exist in a file of `file_size` bytes; empty past its end."""
    start = min(max(offset, 0), file_size)
    return Extent(start, max(start, min(offset + size, file_size)))


def chunk_count(file_size: int, chunk_bytes: int) -> int:
    """How many chunks a file of `file_size` bytes has; 0 for an empty file."""
    return -(-file_size // chunk_bytes)


def chunk_extent(index: int, file_size: int, chunk_bytes: int) -> Extent:
    """The bytes of chunk `index`; the last chunk ends at the end of the file.

    Raises ValueError if the file has no such chunk.
    """
    start = index * chunk_bytes
    if index < 0 or start >= file_size:
        raise ValueError(f"chunk {index} lies outside a file of {file_size} bytes in chunks of {chunk_bytes}")
    return Extent(start, min(start + chunk_bytes, file_size))


def chunk_range(extent: Extent, chunk_bytes: int) -> range:
    """The indexes of the chunks that hold at least one byte of `extent`."""
    if extent.size <= 0:
        return range(0)
    return range(extent.start // chunk_bytes, -(-extent.end // chunk_bytes))


def split(extent: Extent, chunk_bytes: int) -> list[Piece]:
    """`extent` cut at chunk boundaries, in order. The pieces are adjacent and together are the extent."""
    return [
        Piece(i, max(extent.start, i * chunk_bytes), min(extent.end, (i + 1) * chunk_bytes))
        for i in chunk_range(extent, chunk_bytes)
    ]


_MOST = 1 << 20
"""A file of 8 TiB in chunks of 8 MiB: 25 bytes each in memory, and the event loop goes over them in a second."""
_WORD_BITS = 4096
_WORD = (1 << _WORD_BITS) - 1


class ChunkSet:
    """A mutable set of chunk indexes `0 .. count-1`, kept as the bits of one integer.

    A million staged files of one chunk each must not cost a Python set each: this is 40 bytes and two slots.
    """

    __slots__ = ("_bits", "count")

    def __init__(self, count: int) -> None:
        self.count = count
        self._bits = 0

    def add(self, index: int) -> None:
        """Put chunk `index` in. Raises IndexError if it is not in `[0, count)`."""
        if not 0 <= index < self.count:
            raise IndexError(f"chunk {index} of {self.count}")
        self._bits |= 1 << index

    def discard(self, index: int) -> None:
        """Take chunk `index` out, if it is in."""
        if index >= 0:
            self._bits &= ~(1 << index)

    def clear(self) -> None:
        """Take every chunk out."""
        self._bits = 0

    def includes(self, other: ChunkSet) -> bool:
        """Whether every chunk of `other` is in."""
        return not other._bits & ~self._bits

    def __contains__(self, index: int) -> bool:
        return index >= 0 and bool(self._bits >> index & 1)

    def __len__(self) -> int:
        return self._bits.bit_count()

    def __bool__(self) -> bool:
        return self._bits != 0

    def __iter__(self) -> Iterator[int]:
        return (base + i for base, bits in self._words() for i in range(bits.bit_length()) if bits >> i & 1)

    @property
    def full(self) -> bool:
        """True when every chunk is in; an empty file's set is full."""
        return self._bits.bit_count() == self.count  # never a number as long as the file: sizes may be absurd

    @property
    def too_many(self) -> bool:
        """More than are kept account of: such a file is read, and never staged."""
        return self.count > _MOST

    def missing(self) -> Iterator[int]:
        """The indexes that are not in, ascending."""
        for base, bits in self._words():
            for i in range(min(_WORD_BITS, self.count - base)):
                if not bits >> i & 1:
                    yield base + i

    def _words(self) -> Iterator[tuple[int, int]]:
        """(first index, bits) of some at a time: to shift all of them for each index would take the square of the
        count."""
        for base in range(0, self.count, _WORD_BITS):
            yield base, self._bits >> base & _WORD
