"""The layout model: which bytes of which files each sample of a data set is.

One model for both ends: training jobs make it and send it as a `LayoutFrame`, the daemon makes it again from what came
and so never believes a layout that names bytes outside its files. Samples are whole files, or extents of files
("provenance" in LMDBIO: Pumma et al., 2019). Opens nothing and knows no format: the file of a layout is read by
`hfs.layouts`, and the division into units that are fetched is `mountd.hints`'.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hfs.mountd.core.errors import HfsError
from hfs.mountd.wire.hints import LayoutFrame

Integers: TypeAlias = npt.NDArray[Any]
"""One-dimensional, of any integer type."""

NO_INTEGERS: Integers = np.empty(0, np.int64)

_Ints = npt.NDArray[np.int64]

_BLOCK = 1 << 18
"""Extents that are widened at a time: 6 MiB, which the processor's cache nearly holds."""


_PIECE = 1 << 19
"""Bytes of a layout that are written out at a time."""

_FIELDS = {"extents": "<i4", "offsets": "<i8", "sizes": "<i8", "starts": "<i8", "file_sizes": "<i8"}
"""Of a LayoutFrame, after the names of the files."""

_COUNTED_BYTES = 1 << 22
"""A millisecond in which no other thread can go on."""


class LayoutError(HfsError):
    """A layout, its file, a file that one is made of, or an order over it, that cannot be; the message says where."""


class SampleExtents:
    """Which bytes of which files each sample is.

    Without `extents` sample i is the whole of file i. With them it is the extents `starts[i]` to `starts[i + 1]`
    (half-open; none for a sample without bytes), or the one extent i if `starts` is empty; extent j is `sizes[j]` bytes
    at `offsets[j]` of file `extents[j]`. All are one-dimensional and of any integers, kept as they are given and shown
    as int64. Nothing is changed after it was made.
    """

    def __init__(
        self,
        names: bytes,
        file_sizes: Integers = NO_INTEGERS,
        extents: Integers = NO_INTEGERS,
        offsets: Integers = NO_INTEGERS,
        sizes: Integers = NO_INTEGERS,
        starts: Integers = NO_INTEGERS,
    ) -> None:
        """Raises LayoutError where they do not fit together."""
        self.names = names
        """Paths of the files relative to a root, joined by zero bytes."""
        self._file_count = 1 + sum(
            int(np.count_nonzero(np.frombuffer(names, np.uint8, min(_COUNTED_BYTES, len(names) - first), first) == 0))
            for first in range(0, len(names), _COUNTED_BYTES)
        )
        self._file_sizes = file_sizes
        self._extents, self._offsets, self._sizes, self._starts = extents, offsets, sizes, starts
        self._check()

    @classmethod
    def of_frame(cls, frame: LayoutFrame) -> SampleExtents:
        """As it was sent. Raises LayoutError."""
        return SampleExtents(
            frame.files,
            _array(frame.file_sizes, "<i8", "file sizes"),
            _array(frame.extents, "<i4", "extents"),
            _array(frame.offsets, "<i8", "offsets"),
            _array(frame.sizes, "<i8", "sizes"),
            _array(frame.starts, "<i8", "starts"),
        )

    def frame(self, part: str = "") -> LayoutFrame:
        """As it is sent to the daemon. `part`: the directory, relative to the mount's root, that its paths begin at."""
        files = self.names
        if part:
            prefix = os.fsencode(part) + b"/"
            files = prefix + files.replace(b"\0", b"\0" + prefix)
        if not self.extent_count:
            return LayoutFrame(files=files)
        return LayoutFrame(
            files=files,
            extents=self._extents.astype("<i4").tobytes(),
            offsets=self._offsets.astype("<i8").tobytes(),
            sizes=self._sizes.astype("<i8").tobytes(),
            starts=self._starts.astype("<i8").tobytes(),
            file_sizes=self._file_sizes.astype("<i8").tobytes(),
        )

    def fields_in_pieces(self) -> dict[str, tuple[int, Iterator[bytes]]]:
        """What `frame` says, as `encode_layout_pieces` takes it: nothing is copied at once."""
        names = memoryview(self.names)
        fields: dict[str, tuple[int, Iterator[bytes]]] = {
            "files": (len(names), (bytes(names[at : at + _PIECE]) for at in range(0, len(names), _PIECE)))
        }
        for name, dtype in _FIELDS.items():
            values: Integers = getattr(self, f"_{name}") if self.extent_count else NO_INTEGERS
            fields[name] = (len(values) * np.dtype(dtype).itemsize, _pieces(values, dtype))
        return fields

    def _check(self) -> None:
        for name in ("_file_sizes", "_extents", "_offsets", "_sizes", "_starts"):
            values = getattr(self, name)
            if values.ndim != 1 or values.dtype.kind not in "iu":
                raise LayoutError(f"{name[1:]} is not a list of integers")
        if not self.names:
            raise LayoutError("the layout names no file")
        files, count = self.file_count, len(self._extents)
        if len(self._file_sizes) != files and (len(self._file_sizes) or count):
            raise LayoutError(f"{files} files with {len(self._file_sizes)} sizes")
        if not count == len(self._offsets) == len(self._sizes):
            raise LayoutError(f"{count} extents with {len(self._offsets)} offsets and {len(self._sizes)} sizes")
        for first in range(0, count, _BLOCK):
            self._check_extents(first, files)
        starts = self._starts
        if len(starts):
            if not count or len(starts) < 2 or starts[0] != 0 or starts[-1] != count:
                raise LayoutError(f"the samples' extents are not 0 to {count}: wrong starts")
            refuse(starts[1:], starts[1:] < starts[:-1], "the extents of sample {} end at {}, before they begin")

    def _check_extents(self, first: int, files: int) -> None:
        """Some of them, from number `first` on."""
        block = slice(first, first + _BLOCK)
        extents, offsets, sizes = (
            values[block].astype(np.int64, copy=False) for values in (self._extents, self._offsets, self._sizes)
        )
        refuse(extents, (extents < 0) | (extents >= files), f"extent {{}} lies in file {{}} of {files}", first)
        refuse(offsets, offsets < 0, "extent {} starts at {}", first)
        refuse(sizes, sizes < 1, "extent {} has {} bytes", first)
        # The sum may not fit; the difference always does.
        beyond = sizes > self._file_sizes[extents].astype(np.int64, copy=False) - offsets
        refuse(sizes, beyond, "extent {} of {} bytes reaches past the end of its file", first)

    @property
    def file_sizes(self) -> _Ints:
        """Bytes of each file when the layout was made, -1: not known; or empty."""
        return self._file_sizes.astype(np.int64, copy=False)

    @property
    def extents(self) -> _Ints:
        """The number of the file of each extent. This and what follows may be a copy: 8 bytes an extent."""
        return self._extents.astype(np.int64, copy=False)

    @property
    def offsets(self) -> _Ints:
        """Of each extent in its file."""
        return self._offsets.astype(np.int64, copy=False)

    @property
    def sizes(self) -> _Ints:
        """Bytes of each extent, at least 1."""
        return self._sizes.astype(np.int64, copy=False)

    @property
    def starts(self) -> _Ints:
        """The first extent of each sample, and the end of the last's; empty where each sample has one extent."""
        return self._starts.astype(np.int64, copy=False)

    @property
    def file_count(self) -> int:
        """How many files there are."""
        return self._file_count

    @property
    def files(self) -> list[bytes]:
        """Their paths relative to the root."""
        return self.names.split(b"\0")

    @property
    def samples(self) -> int:
        """How many samples there are; indices are 0 <= i < samples."""
        if len(self._starts):
            return len(self._starts) - 1
        return len(self._extents) or self.file_count

    @property
    def extent_count(self) -> int:
        """How many extents there are; 0: samples are whole files."""
        return len(self._extents)

    def extents_of(self, sample: int) -> list[tuple[int, int, int]]:
        """(file, offset, bytes) of each extent of a sample; -1 bytes of a whole file whose size is not known."""
        if not self.extent_count:
            return [(sample, 0, int(self._file_sizes[sample]) if len(self._file_sizes) else -1)]
        first, end = (sample, sample + 1) if not len(self._starts) else self._starts[sample : sample + 2].tolist()
        rows = (self._extents[first:end], self._offsets[first:end], self._sizes[first:end])
        return list(zip(*(row.tolist() for row in rows), strict=True))

    def extents_of_each(self, samples: _Ints) -> tuple[_Ints, _Ints, _Ints, _Ints]:
        """Of many samples, in their order: how many extents each has, and file, offset and bytes of all these extents.

        -1 bytes of a whole file whose size is not known. Raises IndexError, which names the first that there is not.
        """
        if len(samples) and (samples.min() < 0 or samples.max() >= self.samples):
            wrong = int(samples[(samples < 0) | (samples >= self.samples)][0])
            raise IndexError(f"sample {wrong}: there are {self.samples}, from 0")
        counts = np.ones(len(samples), np.int64)
        if not self.extent_count:
            known = self._file_sizes[samples] if len(self._file_sizes) else np.full(len(samples), -1)
            return counts, samples, np.zeros(len(samples), np.int64), known.astype(np.int64)
        numbers = samples
        if len(self._starts):
            first, end = self._starts[samples].astype(np.int64), self._starts[samples + 1].astype(np.int64)
            counts = end - first
            numbers, _ = ranges(first, end)
        files, offsets, sizes = (of[numbers].astype(np.int64) for of in (self._extents, self._offsets, self._sizes))
        return counts, files, offsets, sizes

    @property
    def sample_bytes(self) -> int | None:
        """Bytes of all samples together, those in common counted each time; None if not known."""
        if len(self._extents):
            return int(self._sizes.sum(dtype=np.int64))
        if len(self._file_sizes) and self._file_sizes.min() >= 0:
            return int(self._file_sizes.sum(dtype=np.int64))
        return None


def _pieces(values: Integers, dtype: str) -> Iterator[bytes]:
    for first in range(0, len(values), _PIECE // 8):
        yield values[first : first + _PIECE // 8].astype(dtype).tobytes()


def ranges(starts: _Ints, ends: _Ints) -> tuple[_Ints, _Ints]:
    """The numbers of all the half-open ranges one after the other, and for each which range it is of."""
    counts = ends - starts
    before = np.cumsum(counts) - counts
    # Not np.repeat: it keeps all other threads waiting.
    held = np.flatnonzero(counts)
    of = np.zeros(int(counts.sum()), np.int64)
    of[before[held]] = np.diff(held, prepend=0)
    np.cumsum(of, out=of)
    return np.arange(len(of)) + (starts - before)[of], of


def refuse(values: Integers, wrong: npt.NDArray[np.bool_], message: str, first: int = 0) -> None:
    """Raise LayoutError if any is wrong: `message` with the number of the first one, counted from `first`, and its
    value."""
    if wrong.any():
        i = int(np.argmax(wrong))
        raise LayoutError(message.format(first + i, int(values[i])))


def _array(data: bytes, dtype: str, what: str) -> Integers:
    kind = np.dtype(dtype)
    if len(data) % kind.itemsize:
        raise LayoutError(f"the layout's {what} end in the middle of a number ({len(data)} bytes)")
    return np.frombuffer(data, kind)
