"""The layout of a data set: which bytes of which files each sample is, of which versions of the files, and its file.

Made by the other files of this package, used by `hfs/hint.py` inside training jobs and by the command line. What it
says of samples is `mountd.wire.layout.SampleExtents`, the same that the daemon has. Its file, beside the data set or
anywhere, is an uncompressed .npz without pickles, with a few bytes a sample:

    format        uint8    "hfs-layout 1"
    names         uint8    paths of the files relative to a root (the mount, or its source), joined by zero bytes
    file_sizes    int64    bytes of each file when the layout was made, -1: not known
    file_mtimes   int64    nanoseconds since the epoch, before 1970 negative; not known where the size is not
    made_from     uint8    UTF-8, for people; the name of the format up to the first colon
    extents, offsets, sizes, starts     only if a sample is less than a whole file, see `SampleExtents`; of starts the
                  extents of each sample
    keys          uint64   XXH3-64 of each sample's key, only if it was built with them

Arrays of one value are kept as that one, and all in the narrowest integers that hold them. The file is read by mapping
it: all processes of a node that use a layout share its pages in the page cache. It is written whole and put in place by
a rename; who rebuilds a layout does it with `hfs layout build` and never writes into the old file, since a mapped file
that shrinks ends whoever reads the bytes that went (SIGBUS). Checksums are verified once, at the beginning.

Opens no file but the layout's own, and those that `Layout.changed` is asked to look at.
"""

from __future__ import annotations

import copy
import io
import mmap
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from hfs.mountd.wire.layout import NO_INTEGERS, Integers, LayoutError, SampleExtents
from hfs.training.atomic_write import whole_file

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
        _write(path, self._arrays())

    def _arrays(self) -> dict[str, Integers]:
        """What its file has."""
        arrays: dict[str, Integers] = {
            "names": _text(self.names),
            "made_from": _text(self.made_from.encode("utf-8", "backslashreplace")),
            "file_sizes": self.file_sizes,
            "file_mtimes": self.file_mtimes_ns,
            "samples": np.array([self.samples]),
        }
        if self.extent_count:
            arrays |= {
                "extents": packed(self._rows(self._extents)),
                "offsets": packed(self._offsets),
                "sizes": packed(self._rows(self._sizes)),
                "starts": packed(np.diff(self._starts)),
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
        read = _mapped(path)
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
                arrays[name] = spread(read[name], count, whole)
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


_FORMAT = b"hfs-layout 1"

_LOCAL_HEADER_BYTES = 30
_ARRAY_HEADER_BYTES = 1024
"""At most, of an array: NumPy writes 128 for those of a layout."""
_CHECKED_BYTES = 1024**2
"""At a time, so that a checksum of gigabytes leaves nothing behind in the processor's cache but what it looks at."""
_SPREAD = 1 << 26
"""Values of a pattern that repeats are written out only so far without as many offsets beside them."""


def _write(path: str, arrays: Mapping[str, Integers]) -> None:
    """Write the file, all of it or nothing. Raises LayoutError."""
    try:
        with whole_file(path) as file:
            np.savez(file, **{"format": _text(_FORMAT), **arrays})  # type: ignore[arg-type] # allow_pickle may be any name
    except OSError as error:
        raise LayoutError(f"{path}: cannot be written ({error.strerror}); give another with -o") from None


def _mapped(path: str) -> dict[str, Integers]:
    """The arrays in the file, read-only and in the file's own pages. Raises LayoutError, which names the file."""
    try:
        with open(path, "rb") as file:
            with zipfile.ZipFile(file) as archive:
                members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if "format" not in members:
                raise LayoutError(f"{path}: not a layout")
            pages = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        said = _array(pages, members["format"]).tobytes()
        if said != _FORMAT:
            raise LayoutError(
                f"{path}: of another format ({said.decode(errors='replace')}); this version reads {_FORMAT.decode()}. "
                "Build it again"
            )
        return {name: _array(pages, info) for name, info in members.items()}
    except FileNotFoundError:
        raise LayoutError(f"{path}: no such file") from None
    except OSError as error:
        raise LayoutError(f"{path}: cannot be read ({error.strerror or error})") from None
    except zipfile.BadZipFile:
        raise LayoutError(f"{path}: not a layout, or cut short: it does not end as one") from None
    except (
        *(EOFError, ValueError, KeyError, IndexError, TypeError, OverflowError, MemoryError),
        *(NotImplementedError, SyntaxError, tokenize.TokenError, struct.error),
    ) as error:
        raise LayoutError(f"{path}: not a layout, or cut short ({error})") from None


def _array(pages: memoryview, info: zipfile.ZipInfo) -> Integers:
    """The array of a member, where it lies. Raises ValueError."""
    at = info.header_offset
    header = bytes(pages[at : at + _LOCAL_HEADER_BYTES])
    name_bytes, extra_bytes = struct.unpack_from("<HH", header, 26)
    begin = at + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes
    member = pages[begin : begin + info.file_size]
    if info.compress_type != zipfile.ZIP_STORED or len(member) != info.file_size:
        raise ValueError(f"{info.filename} does not lie in it as it was written")
    checksum = 0
    for place in range(0, len(member), _CHECKED_BYTES):
        checksum = zlib.crc32(member[place : place + _CHECKED_BYTES], checksum)
    if checksum != info.CRC:
        raise ValueError(f"wrong checksum of {info.filename} at offset {begin:,}")
    head = io.BytesIO(member[:_ARRAY_HEADER_BYTES])
    if np.lib.format.read_magic(head) != (1, 0):
        raise ValueError(f"{info.filename} is of another version of NumPy's format")
    shape, _, dtype = np.lib.format.read_array_header_1_0(head)
    if len(shape) != 1 or dtype.kind not in "iu":
        raise ValueError(f"{info.filename} is not a list of integers")
    return np.frombuffer(member, dtype, shape[0], head.tell()) if shape[0] else np.empty(0, dtype)


def _text(data: bytes) -> Integers:
    """As an array."""
    return np.frombuffer(data, np.uint8)


def packed(values: Integers) -> Integers:
    """The same in the narrowest unsigned integers; one value if all are the same."""
    if len(values) and (values == values[0]).all():
        values = values[:1]
    return values.astype(np.min_scalar_type(int(values.max()) if len(values) else 0))


def spread(values: Integers, count: int, beside: int) -> Integers:
    """`count` values, of as many, or of those that repeat; `beside`: how many there are of what does not repeat.

    Raises LayoutError.
    """
    if len(values) == count:
        return values
    if len(values) == 1:
        return np.broadcast_to(values, count)
    if not len(values) or count % len(values) or max(beside, _SPREAD) < count:
        raise LayoutError(f"it has {len(values)} values where {count} belong")
    return np.tile(values, count // len(values))
