"""The layout of a data set: which bytes of which files each sample is, of which versions of the files, and its file.

Made by the other files of this package, used by `hfs/hint.py` inside training jobs and by the command line. What it
says of samples is `mountd.wire.layout.SampleExtents`, the same that the daemon has. The file (`layout_file.py`) has a
few bytes a sample, beside the data set or anywhere, and is mapped where it is used:

    format        uint8    "hfs-layout 1"
    names         uint8    paths of the files relative to a root (the mount, or its source), joined by zero bytes
    file_sizes    int64    bytes of each file when the layout was made, -1: not known
    file_mtimes   int64    nanoseconds since the epoch, before 1970 negative; not known where the size is not
    made_from     uint8    UTF-8, for people; the name of the format up to the first colon
    extents, offsets, sizes, starts     only if a sample is less than a whole file, see `SampleExtents`; of starts the
                  extents of each sample
    keys          uint64   XXH3-64 of each sample's key, only if it was built with them

Arrays of one value are kept as that one, and all in the narrowest integers that hold them. Opens no file but the
layout's own, and those that `Layout.changed` is asked to look at.
"""

from __future__ import annotations

import copy
import os
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from hfs.layouts import layout_file
from hfs.mountd.wire.layout import NO_INTEGERS, Integers, LayoutError, SampleExtents

_MOST_EXTENTS = 1 << 31
"""Forty times as many as fit into what is sent to a daemon."""


class Layout(SampleExtents):
    """Which bytes of which files each sample of a data set is (see `SampleExtents`), and of which versions of them."""

    def __init__(
        self,
        names: bytes,
        file_sizes: Integers = NO_INTEGERS,
        file_mtimes_ns: Integers = NO_INTEGERS,
        extents: Integers = NO_INTEGERS,
        offsets: Integers = NO_INTEGERS,
        sizes: Integers = NO_INTEGERS,
        starts: Integers = NO_INTEGERS,
        made_from: str = "",
    ) -> None:
        """Raises LayoutError where they do not fit together."""
        super().__init__(names, file_sizes, extents, offsets, sizes, starts)
        if file_mtimes_ns.ndim != 1 or file_mtimes_ns.dtype.kind not in "iu":
            raise LayoutError("file_mtimes_ns is not a list of integers")
        if len(file_mtimes_ns) not in {0, self.file_count}:
            raise LayoutError(f"{self.file_count} files with {len(file_mtimes_ns)} times")
        self._file_mtimes_ns = file_mtimes_ns
        self.made_from = made_from
        """For people: the format and the names of the data sets."""
        self.keys: npt.NDArray[np.uint64] | None = None
        """XXH3-64 of each sample's key, for `keys.positions`; None: not known."""

    def with_keys(self, keys: npt.NDArray[np.uint64] | None) -> Self:
        """The same, which knows XXH3-64 of each sample's key: uint64 [samples]. Raises LayoutError."""
        if keys is not None and (keys.dtype != np.uint64 or keys.shape != (self.samples,)):
            raise LayoutError("it has not one key for each sample")
        other = copy.copy(self)
        other.keys = keys
        return other

    @property
    def file_mtimes_ns(self) -> npt.NDArray[np.int64]:
        """One for each file, or empty; of a file whose size is -1 it is not known."""
        return self._file_mtimes_ns.astype(np.int64, copy=False)

    def changed(self, root: str) -> list[str]:
        """What is wrong with each file below `root` that is not the version the layout was made of.

        Costs a stat for each file whose version is known.
        """
        wrong: list[str] = []
        if not len(self._file_sizes) or not len(self._file_mtimes_ns):
            return wrong
        for name, size, mtime_ns in zip(self.files, self.file_sizes, self.file_mtimes_ns, strict=True):
            if size < 0:
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
        layout_file.write(path, self._arrays())

    def _arrays(self) -> dict[str, Integers]:
        """What its file has."""
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
        return arrays

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
        except (KeyError, IndexError, MemoryError):
            raise LayoutError(f"{path}: not a layout, or cut short") from None

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
            **arrays,
        ).with_keys(read.get("keys"))
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
