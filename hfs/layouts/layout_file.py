"""The file of a layout: an uncompressed .npz of integer arrays without pickles, written whole and read by mapping it.

`layout.py` knows what the arrays mean. Inside training jobs: all processes of a node that use a layout share its pages
in the page cache, and none has a copy of its own. What is there was once written whole and put in place by a rename;
who rebuilds a layout does it with `hfs layout build` and never writes into the old file, since a mapped file that
shrinks ends whoever reads the bytes that went (SIGBUS). Checksums are verified once, at the beginning.
"""

from __future__ import annotations

import io
import mmap
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping

import numpy as np

from hfs.mountd.wire.layout import Integers, LayoutError
from hfs.training.atomic_write import whole_file

FORMAT = b"hfs-layout 1"

_LOCAL_HEADER_BYTES = 30
_ARRAY_HEADER_BYTES = 1024
"""At most, of an array: NumPy writes 128 for those of a layout."""
_CHECKED_BYTES = 1024**2
"""At a time, so that a checksum of gigabytes leaves nothing behind in the processor's cache but what it looks at."""
_SPREAD = 1 << 26
"""Values of a pattern that repeats are written out only so far without as many offsets beside them."""


def write(path: str, arrays: Mapping[str, Integers]) -> None:
    """Write the file, all of it or nothing. Raises LayoutError."""
    try:
        with whole_file(path) as file:
            np.savez(file, **{"format": text(FORMAT), **arrays})  # type: ignore[arg-type] # allow_pickle may be any name
    except OSError as error:
        raise LayoutError(f"{path}: cannot be written ({error.strerror}); give another with -o") from None


def mapped(path: str) -> dict[str, Integers]:
    """The arrays in the file, read-only and in the file's own pages. Raises LayoutError, which names the file."""
    try:
        with open(path, "rb") as file:
            with zipfile.ZipFile(file) as archive:
                members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if "format" not in members:
                raise LayoutError(f"{path}: not a layout")
            pages = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        said = _array(pages, members["format"]).tobytes()
        if said != FORMAT:
            raise LayoutError(
                f"{path}: of another format ({said.decode(errors='replace')}); this version reads {FORMAT.decode()}. "
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


def text(data: bytes) -> Integers:
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
