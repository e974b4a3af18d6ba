"""A layout: which bytes of which files each sample of a data set is; and what its file says.

Made by the other files of this package, used by `hfs/hint.py` inside training jobs and by the command line. The file
(`layout_file.py`) has a few bytes a sample, beside the data set or anywhere, and is mapped where it is used:

    format        uint8    "hfs-layout 1"
    names         uint8    paths of the files relative to a root (the mount, or its source), joined by zero bytes
    file_sizes    int64    bytes of each file when the layout was made, -1: not known
    file_mtimes   int64    nanoseconds since the epoch, -1: not known
    made_from     uint8    UTF-8, for people; the name of the format up to the first colon
    extents, offsets, sizes, starts     only if a sample is less than a whole file, see `Layout`; of starts the extents
                  of each sample
    keys          uint64   XXH3-64 of each sample's key, only if it was built with them

Arrays of one value are kept as that one, and all in the narrowest integers that hold them. Opens no file but the
layout's own, and those that `Layout.changed` is asked to look at.
"""

from __future__ import annotations

import os
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from hfs.layouts import layout_file
from hfs.layouts.layout_file import Integers, LayoutError
from mountd.wire.hints import LayoutFrame

__all__ = ["Layout", "LayoutError"]

_Ints = npt.NDArray[np.int64]

_NONE: Integers = np.empty(0, np.int64)

_BLOCK = 1 << 18
"""Extents that are widened at a time: 6 MiB, which the processor's cache nearly holds."""


_MOST_EXTENTS = 1 << 31
"""Forty times as many as fit into what is sent to a daemon."""


class Layout:
    """Which bytes of which files each sample is.

    Without `extents` sample i is the whole of file i. With them it is the extents `starts[i]` to `starts[i + 1]`
    (half-open; none for a sample without bytes), or the one extent i if `starts` is empty; extent j is `sizes[j]` bytes
    at `offsets[j]` of file `extents[j]`. All are one-dimensional and of any integers, kept as they are given (those of
    a layout's file narrow and in its pages) and shown as int64. Nothing is changed after it was made.
    """

    def __init__(
        self,
        names: bytes,
        file_sizes: Integers = _NONE,
        file_mtimes_ns: Integers = _NONE,
        extents: Integers = _NONE,
        offsets: Integers = _NONE,
        sizes: Integers = _NONE,
        starts: Integers = _NONE,
        made_from: str = "",
        keys: npt.NDArray[np.uint64] | None = None,
    ) -> None:
        """Raises LayoutError where they do not fit together."""
        self.names = names
        """Relative to a root, joined by zero bytes."""
        self.made_from = made_from
        """For people: the format and the names of the data sets."""
        self.keys = keys
        """XXH3-64 of each sample's key, for `keys.positions`; None: not known."""
        self._file_sizes, self._file_mtimes_ns = file_sizes, file_mtimes_ns
        self._extents, self._offsets, self._sizes, self._starts = extents, offsets, sizes, starts
        self._check()

    def _check(self) -> None:
        given = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray) and name != "keys"}
        for name, value in given.items():
            if value.ndim != 1 or value.dtype.kind not in "iu":
                raise LayoutError(f"{name[1:]} is not a list of integers")
        files, count = self.file_count, len(self._extents)
        if not self.names or any(len(array) not in {0, files} for array in (self._file_sizes, self._file_mtimes_ns)):
            raise LayoutError("it does not say the same number of files everywhere")
        if len(self._offsets) != count or len(self._sizes) != count:
            raise LayoutError("it does not say the same number of extents everywhere")
        if not count and len(self._starts):
            raise LayoutError("it has starts without extents")
        if count and len(self._file_sizes) != files:
            raise LayoutError("it has extents that lie nowhere")
        file_sizes = self.file_sizes
        for first in range(0, count, _BLOCK):
            block = slice(first, first + _BLOCK)
            extents, offsets, sizes = (
                values[block].astype(np.int64) for values in (self._extents, self._offsets, self._sizes)
            )
            if extents.min() < 0 or extents.max() >= files:
                raise LayoutError(f"it has extents in files that it does not have (there are {files})")
            if offsets.min() < 0 or sizes.min() < 1:
                raise LayoutError("it has extents that lie nowhere")
            # The sum may not fit; the difference always does.
            beyond = sizes > file_sizes[extents] - offsets
            if beyond.any():
                raise LayoutError(f"extent {first + int(np.argmax(beyond))} lies beyond the end of its file")
        starts = self._starts
        if len(starts) and (starts[0] != 0 or starts[-1] != count or (starts[1:] < starts[:-1]).any()):
            raise LayoutError("its starts do not ascend from 0 to the number of extents")
        if self.keys is not None and (self.keys.dtype != np.uint64 or self.keys.shape != (self.samples,)):
            raise LayoutError("it has not one key for each sample")

    @property
    def file_sizes(self) -> _Ints:
        """One for each file, or empty; -1: not known."""
        return self._file_sizes.astype(np.int64, copy=False)

    @property
    def file_mtimes_ns(self) -> _Ints:
        """One for each file, or empty; -1: not known."""
        return self._file_mtimes_ns.astype(np.int64, copy=False)

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
        return self.names.count(b"\0") + 1

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
            return [(sample, 0, int(self.file_sizes[sample]) if len(self._file_sizes) else -1)]
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
            first = self._starts[samples].astype(np.int64)
            counts = self._starts[samples + 1].astype(np.int64) - first
            before = np.cumsum(counts) - counts
            numbers = np.repeat(first - before, counts) + np.arange(counts.sum())
        files, offsets, sizes = (of[numbers].astype(np.int64) for of in (self._extents, self._offsets, self._sizes))
        return counts, files, offsets, sizes

    @property
    def sample_bytes(self) -> int | None:
        """Bytes of all samples together, those in common counted each time; None if not known."""
        if len(self._extents):
            return int(self._sizes.sum(dtype=np.int64))
        if len(self._file_sizes) and self.file_sizes.min() >= 0:
            return int(self.file_sizes.sum())
        return None

    def frame(self) -> LayoutFrame:
        """As it is sent to the daemon."""
        if not self.extent_count:
            return LayoutFrame(files=self.names)
        return LayoutFrame(
            files=self.names,
            extents=self._extents.astype("<i4").tobytes(),
            offsets=self._offsets.astype("<i8").tobytes(),
            sizes=self._sizes.astype("<i8").tobytes(),
            starts=self._starts.astype("<i8").tobytes(),
            file_sizes=self._file_sizes.astype("<i8").tobytes(),
        )

    def changed(self, root: str) -> list[str]:
        """What is wrong with each file below `root` that is not the version the layout was made of.

        Costs a stat for each file whose version is known.
        """
        wrong: list[str] = []
        if not len(self._file_sizes) or not len(self._file_mtimes_ns):
            return wrong
        for name, size, mtime_ns in zip(self.files, self.file_sizes, self.file_mtimes_ns, strict=True):
            if size < 0 or mtime_ns < 0:
                continue
            path = os.path.join(os.fsencode(root), name)
            try:
                found = os.stat(path)
            except OSError as error:
                wrong.append(f"{os.fsdecode(path)}: {error.strerror}")
                continue
            if (found.st_size, found.st_mtime_ns) != (size, mtime_ns):
                wrong.append(f"{os.fsdecode(path)}: changed since the layout was made")
        return wrong

    def save(self, path: str) -> None:
        """Write the file, all of it or nothing. Raises LayoutError."""
        arrays: dict[str, Integers] = {
            "names": layout_file.text(self.names),
            "made_from": layout_file.text(self.made_from.encode("utf-8", "backslashreplace")),
            "file_sizes": self.file_sizes,
            "file_mtimes": self.file_mtimes_ns,
            "samples": np.array([self.samples]),
        }
        if self.extent_count:
            arrays |= {
                "extents": layout_file.packed(self._rows(self._extents)),
                "offsets": layout_file.packed(self._offsets),
                "sizes": layout_file.packed(self._rows(self._sizes)),
                "starts": layout_file.packed(np.diff(self._starts)),
                "extent_count": np.array([self.extent_count]),
            }
        if self.keys is not None:
            arrays["keys"] = self.keys
        layout_file.write(path, arrays)

    def _rows(self, values: Integers) -> Integers:
        """The extents of one sample, if all samples have the same; else all."""
        lengths = np.diff(self._starts)
        if len(lengths) and (step := int(lengths[0])) and (lengths == step).all():
            rows = values.reshape(-1, step)
            if (rows == rows[0]).all():
                return values[:step]
        return values

    @classmethod
    def load(cls, path: str) -> Self:
        """The layout in a file. Raises LayoutError, which names the file and what is wrong with it."""
        read = layout_file.mapped(path)
        try:
            return cls._of(read)
        except LayoutError as error:
            raise LayoutError(f"{path}: damaged: {error}") from None
        except (KeyError, IndexError, MemoryError) as error:
            raise LayoutError(f"{path}: not a layout, or cut short ({error!r})") from None

    @classmethod
    def _of(cls, read: dict[str, Integers]) -> Self:
        samples = int(read["samples"][0])
        arrays: dict[str, Integers] = {}
        if "extents" in read:
            count = int(read["extent_count"][0])
            if not 0 < count < _MOST_EXTENTS:
                raise LayoutError("it says a number of extents that cannot be")
            whole = len(read["offsets"])
            for name in ("extents", "offsets", "sizes"):
                arrays[name] = layout_file.spread(read[name], count, whole)
            if len(read["starts"]):
                arrays["starts"] = _starts(read["starts"], samples, count)
        layout = cls(
            names=read["names"].tobytes(),
            file_sizes=read["file_sizes"],
            file_mtimes_ns=read["file_mtimes"],
            made_from=read["made_from"].tobytes().decode(errors="replace"),
            keys=read.get("keys"),
            **arrays,
        )
        if layout.samples != samples:
            raise LayoutError(f"it has {layout.samples} samples and says {samples}")
        return layout


def _starts(lengths: Integers, samples: int, count: int) -> Integers:
    """Of the extents of each sample, as many values as samples, or one for all."""
    together = int(lengths[0]) * samples if len(lengths) == 1 else float(lengths.sum(dtype=np.float64))
    if samples < 1 or len(lengths) not in {1, samples} or together != count:
        raise LayoutError(f"the extents of its samples are not the {count} that it has")
    narrow: np.dtype[Any] = np.dtype(np.uint32 if count < 1 << 32 else np.int64)
    if len(lengths) == 1:
        return np.arange(0, count + 1, count // samples, dtype=narrow)
    starts = np.zeros(samples + 1, narrow)
    np.cumsum(lengths, out=starts[1:], dtype=narrow)
    return starts
