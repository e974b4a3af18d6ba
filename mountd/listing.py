"""One directory's names, compactly: a snapshot that is read from start to end while the directory changes.

A Python list of 200 000 names would cost 25 MB a reader; the names in one byte string, ended by NULs (which no name can
hold), cost what they are long. Positions are indexes, so any readdir offset can be resumed, and no entry is shown twice
or skipped within one open directory. Made by `source`, kept by `namespace`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

__all__ = ["Listing"]


class Listing:
    """Names in the order of the source. `len(listing)` entries, numbered from 0."""

    __slots__ = ("_names", "_starts")

    def __init__(self, names: Iterable[bytes]) -> None:
        blob = bytearray()
        starts = array("I")  # 4 GiB of names is past anything a directory can hold
        for name in names:
            starts.append(len(blob))
            blob += name
            blob.append(0)
        self._names = bytes(blob)
        self._starts = starts

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, position: int) -> bytes:
        start = self._starts[position]
        return self._names[start : self._names.index(0, start)]

    def __iter__(self) -> Iterator[bytes]:
        return (self[i] for i in range(len(self)))

    @property
    def memory_bytes(self) -> int:
        """Bytes this listing holds."""
        return len(self._names) + len(self._starts) * self._starts.itemsize
