"""A layout in units: what the samples of a layout are fetched in, the numbers that `policies.schedule` works with.

A unit is a whole file where samples are files, since whoever uses one reads all of it and its size is not known yet;
otherwise a chunk of a file. The paths are only looked at when they are needed. Knows nothing of the source; opens
nothing.
"""

from __future__ import annotations

import time
from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from hfs.mountd.wire.layout import LayoutError, SampleExtents, ranges, refuse

_SEPARATOR = 0
_LARGEST_FILE_BYTES = 1 << 62

_BYTES_A_FILE, _BYTES_AN_EXTENT = 20, 24
_MAKING_BYTES_A_FILE = 40
"""Ends and hashes while they are put in order."""


_HASHED_AT_ONCE = 512
"""Half a millisecond."""
_REST_S = 1e-4

hash_of = xxh3_64_intdigest
"""Of a path."""


def layout_bytes(layout: SampleExtents) -> int:
    """What a `UnitLayout` takes while it is made, about."""
    return len(layout.names) + _MAKING_BYTES_A_FILE * layout.file_count + _BYTES_AN_EXTENT * layout.extent_count


class UnitLayout:
    """Memory: the names and 20 bytes for each file; 24 bytes for each extent."""

    def __init__(self, digest: str, layout: SampleExtents, chunk_bytes: int) -> None:
        """In a thread: it takes seconds where there are millions of files. `layout` itself is not kept. Raises
        LayoutError where it cannot be divided."""
        self.digest = digest
        self.chunk_bytes = chunk_bytes
        self.whole = not layout.extent_count
        """Samples are whole files."""
        names = np.frombuffer(layout.names, np.uint8)
        ends = np.flatnonzero(names == _SEPARATOR)
        self._ends: NDArray[np.int64] = np.append(ends, len(names)).astype(np.int64)
        # What came holds the extents too, as they were sent.
        self._names = (names if self.whole else names.copy()).data
        self.files = len(self._ends)
        self.samples = layout.samples
        self._starts: NDArray[np.int64] | None = None
        self._counts: NDArray[np.int64] | None = None
        """Units of each sample, where it may be several."""
        if self.whole:
            self.units = self.files
            self.bytes: int | None = None
            hashes = self._hashes_of_paths()
            self._by_hash = np.argsort(hashes, kind="stable").astype(np.int32)
            self._hashes = hashes[self._by_hash].data
            return
        self._divide(layout)

    def _divide(self, layout: SampleExtents) -> None:
        file_sizes, where, offsets, sizes = layout.file_sizes, layout.extents, layout.offsets, layout.sizes
        refuse(file_sizes, (file_sizes < 0) | (file_sizes > _LARGEST_FILE_BYTES), "file {} has {} bytes")
        self._sample_bytes = int(sizes.mean())
        if len(layout.starts):
            self._starts = layout.starts
        chunks = -(-file_sizes // self.chunk_bytes)
        if float(chunks.sum(dtype=np.float64)) >= 1 << 31:  # which cannot overflow
            raise LayoutError(f"{chunks.sum(dtype=np.float64):.0f} chunks are more than can be planned")
        self._first_units = np.concatenate(([0], np.cumsum(chunks)))
        self.units = int(self._first_units[-1])
        self._first = (self._first_units[where] + offsets // self.chunk_bytes).astype(np.int32)
        last = self._first_units[where] + (offsets + sizes - 1) // self.chunk_bytes
        self._extra = (last - self._first).astype(np.int32)
        """Chunks of each extent after its first."""
        if self._starts is not None:
            # Not reduceat: it counts one extent for a sample that has none.
            ends = np.append(0, np.cumsum(self._extra + np.int64(1)))
            self._counts = np.diff(ends[self._starts])
        elif self._extra.any():
            self._counts = self._extra + np.int64(1)
        self._file_sizes = file_sizes
        self.bytes = int(file_sizes.sum())

    @property
    def memory_bytes(self) -> int:
        """What it takes, about."""
        held = len(self._names) + _BYTES_A_FILE * self.files
        return held if self.whole else held + _BYTES_AN_EXTENT * len(self._first)

    def sample_bytes(self) -> int:
        """Bytes of an extent, on average; of whole files it is not known."""
        return 0 if self.whole else self._sample_bytes

    def path(self, file: int) -> bytes:
        """Of file number `file`, relative to the root of the mount."""
        start = int(self._ends[file - 1]) + 1 if file else 0
        return bytes(self._names[start : int(self._ends[file])])

    def find(self, path: bytes, path_hash: int) -> int | None:
        """The sample that is all of the file at `path`, of which `path_hash` is `hash_of`; the last one, if there are
        several.

        One step, whatever the names are: of names with the same hash only the last is ever found. Whoever makes such
        names has made only his own layout of less use.
        """
        place = bisect_right(self._hashes, path_hash) - 1
        if place < 0 or self._hashes[place] != path_hash:
            return None
        file = int(self._by_hash[place])
        return file if self.path(file) == path else None

    def _hashes_of_paths(self) -> NDArray[np.uint64]:
        """In a thread: rests now and then, since it holds the interpreter that the event loop needs."""
        hashes = np.empty(self.files, np.uint64)
        for first in range(0, self.files, _HASHED_AT_ONCE):
            end = min(first + _HASHED_AT_ONCE, self.files)
            hashes[first:end] = [hash_of(self.path(file)) for file in range(first, end)]
            if end < self.files:
                time.sleep(_REST_S)
        return hashes

    def unit_bytes(self) -> NDArray[np.int64] | None:
        """Bytes of each unit; None if they are not known before they are looked at."""
        if self.whole:
            return None
        sizes = np.full(self.units, self.chunk_bytes, np.int64)
        held = np.flatnonzero(self._file_sizes)
        last = self._first_units[held + 1] - 1
        sizes[last] = self._file_sizes[held] - (self._file_sizes[held] - 1) // self.chunk_bytes * self.chunk_bytes
        return sizes

    def file_size(self, file: int) -> int | None:
        """Bytes of a file when the layout was made, if it says so."""
        return None if self.whole else int(self._file_sizes[file])

    def place(self, unit: int) -> tuple[int, int | None]:
        """The file of a unit, and its chunk there; None for all of the file."""
        if self.whole:
            return unit, None
        file = int(np.searchsorted(self._first_units, unit, side="right")) - 1
        return file, unit - int(self._first_units[file])

    def unit(self, file: int, chunk: int) -> int:
        """The inverse of `place`."""
        return file if self.whole else int(self._first_units[file]) + chunk

    def count_uses(self, indices: NDArray[np.int64]) -> int:
        """How many units `uses` would give. Raises LayoutError for an index out of range."""
        self._check_indices(indices)
        if self._counts is None:
            return len(indices)
        return int(self._counts[indices].sum(dtype=np.float64))  # which cannot overflow

    def _check_indices(self, indices: NDArray[np.int64]) -> None:
        wrong = (indices < 0) | (indices >= self.samples)
        refuse(indices, wrong, f"at position {{}} the order names sample {{}} of {self.samples}")

    def uses(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64] | None]:
        """What reading these samples in this order needs: units, and for each the position of its sample.

        `None` for the positions: use i belongs to the sample at position i. Raises LayoutError for an index out of
        range.
        """
        self._check_indices(indices)
        if self.whole:
            return indices.astype(np.int32), None
        if self._starts is None:
            extents, at = indices, None
        else:
            extents, at = ranges(self._starts[indices], self._starts[indices + 1])
        extra = self._extra[extents]
        if not extra.any():
            return self._first[extents], at
        first = self._first[extents].astype(np.int64)
        units, of = ranges(first, first + extra + 1)
        return units.astype(np.int32), of if at is None else at[of]
