"""Layouts of NumPy files: where row i (along axis 0) of an array lies, in .npy files and the members of .npz ones.

Never runs in a training job. Headers are read with NumPy's own functions, members found with zipfile; no data is read.
"""

from __future__ import annotations

import io
import struct
import tokenize
import zipfile
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hfs.layouts.layout import Layout
from hfs.layouts.reading import SourceFile
from hfs.layouts.registry import DATASET, Format
from hfs.layouts.shards import Shard, layout_of, shard_of_arrays, shards_of
from hfs.mountd.core.errors import ConfigError
from hfs.mountd.wire.layout import LayoutError

_MAX_HEADER_BYTES = 65536
"""Of an array's header: what NumPy writes is below 200 bytes but for types of very many fields."""
_LOCAL_HEADER_BYTES = 30


def build_npy(paths: str | Sequence[str], root: str) -> Layout:
    """The layout in which sample i is row i of the array in the .npy file at `paths` below `root`; of several files,
    those of the first come first.

    Raises LayoutError for arrays in Fortran order, of objects, without rows, and files cut short; ConfigError for a
    path outside `root`.
    """
    return layout_of(shards_of(paths, _array), root, "npy")


def build_npz(paths: str | Sequence[str], root: str, *, dataset: Sequence[str] = ()) -> Layout:
    """The layout in which sample i is row i of each array named in `dataset` of the .npz file at `paths`.

    They may be left out where a file has one array only. Raises LayoutError as `build_npy`, and for compressed members
    (np.savez_compressed), arrays that differ in their number of rows, and names that are not there.
    """
    shards = shards_of(paths, lambda file: _members(file, dataset))
    return layout_of(shards, root, f"npz: {', '.join(dataset) or 'its array'}")


def _array(file: SourceFile) -> Shard:
    offsets, size = _rows(file, 0, file.size, "the array")
    return Shard(file.path, file.size, file.mtime_ns, offsets, np.full(len(offsets), size))


def _members(file: SourceFile, dataset: Sequence[str]) -> Shard:
    try:
        with open(file.fd, "rb", closefd=False) as raw, zipfile.ZipFile(raw) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, struct.error) as error:
        raise LayoutError(f"{file.path}: not an .npz file, or cut short at offset {file.size:,} ({error})") from None
    there = ", ".join(list(members)[:20]) or "none"
    if not dataset and len(members) != 1:
        raise ConfigError(f"{file.path}: say which arrays a sample is of (--dataset); there are {there}")
    parts = []
    for name in dataset or members:
        if name not in members:
            raise LayoutError(f"{file.path}: no array {name!r}; there are {there}")
        offsets, size = _rows(file, *_stored(file, members[name], name), name)
        parts.append((np.ones(len(offsets), np.int64), offsets, np.full(len(offsets), size)))
    return shard_of_arrays(file, "arrays", dataset or list(members), parts)


def _stored(file: SourceFile, info: zipfile.ZipInfo, name: str) -> tuple[int, int]:
    """(offset, bytes) of a member in the file."""
    if info.compress_type != zipfile.ZIP_STORED:
        raise LayoutError(
            f"{file.path}: {name} is compressed, its rows have no place in the file; write it with np.savez"
        )
    if info.flag_bits & 1:
        raise LayoutError(f"{file.path}: {name} is encrypted")
    at = info.header_offset
    if not 0 <= at <= file.size - _LOCAL_HEADER_BYTES:
        raise LayoutError(f"{file.path}: damaged: {name} lies at offset {at:,} of {file.size:,}")
    header = file.read(at, _LOCAL_HEADER_BYTES)
    if header[:4] != b"PK\3\4":
        raise LayoutError(f"{file.path}: damaged: no header of {name} at offset {at:,}")
    name_bytes, extra_bytes = struct.unpack_from("<HH", header, 26)
    if file.read(at + _LOCAL_HEADER_BYTES, name_bytes) != info.orig_filename.encode(
        "utf-8" if info.flag_bits & 0x800 else "cp437"
    ):
        raise LayoutError(f"{file.path}: damaged: the header of another member than {name} at offset {at:,}")
    return at + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes, info.file_size


def _rows(file: SourceFile, at: int, size: int, name: str) -> tuple[npt.NDArray[np.int64], int]:
    """(offsets of the rows, bytes of each) of the array whose header is at `at` and has `size` bytes with its data."""
    head = io.BytesIO(file.read(at, min(size, _MAX_HEADER_BYTES, max(file.size - at, 0))))
    try:
        version = np.lib.format.read_magic(head)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(head)
        elif version == (2, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(head)
        else:
            raise LayoutError(f"{file.path}: {name} is of .npy version {version}; known are 1.0 and 2.0")
    except (
        ValueError,
        TypeError,
        OverflowError,
        SyntaxError,
        tokenize.TokenError,
        RecursionError,
        MemoryError,
    ) as error:
        raise LayoutError(f"{file.path}: no header of an array at offset {at:,} ({str(error)[:100]})") from None
    if dtype.hasobject:
        raise LayoutError(f"{file.path}: {name} is of Python objects, whose bytes are pickled and no rows")
    if not shape:
        raise LayoutError(f"{file.path}: {name} has no rows: it is one number")
    if fortran and len(shape) > 1:
        raise LayoutError(
            f"{file.path}: {name} is in Fortran order, its rows are scattered; write np.ascontiguousarray of it"
        )
    row_bytes = dtype.itemsize
    for length in shape[1:]:
        row_bytes *= length
    data = at + head.tell()
    if min(shape) < 0 or data + row_bytes * shape[0] > at + size or at + size > file.size:
        raise LayoutError(
            f"{file.path}: cut short: {name} has {shape[0]:,} rows of {row_bytes:,} bytes from offset {data:,} on, and "
            f"ends at {min(at + size, file.size):,}"
        )
    if shape[0] > file.size and not row_bytes:
        raise LayoutError(f"{file.path}: {name}: none of its {shape[0]:,} rows has a byte")
    return data + row_bytes * np.arange(shape[0]), row_bytes


FORMAT = Format("npy", lambda _, head: head.startswith(b"\x93NUMPY"), build_npy)
FORMAT_OF_SEVERAL = Format(
    "npz",
    lambda path, head: head.startswith(b"PK") and path.endswith(".npz"),
    build_npz,
    [DATASET],
)
