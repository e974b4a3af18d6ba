"""Layouts of HDF5 data sets: where the bytes of row i of one or more data sets lie in the file.

Never runs in a training job. Through h5py's low-level API: offsets of contiguous data sets, addresses of chunks,
compressed or not (whoever reads a row reads all of its chunks). Reads the file's structure only, no data. What the file
itself needs to be opened (headers, B-trees) is in no layout: it is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from hfs.layouts.layout import Layout
from hfs.layouts.reading import SourceFile, opened
from hfs.layouts.registry import DATASET, Format
from hfs.layouts.shards import Shard, layout_of, shard_of_arrays
from hfs.mountd.core.errors import ConfigError
from hfs.mountd.wire.layout import LayoutError

_Ints = npt.NDArray[np.int64]
_Found = TypeVar("_Found")

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_SMALLEST_USER_BLOCK = 512
_NAMED = 20
"""Of the data sets that are there."""


def build_hdf5(path: str | Sequence[str], datasets: Sequence[str], root: str) -> Layout:
    """The layout in which sample i is row i (along axis 0) of each of `datasets` of the HDF5 file `path` below `root`.

    Of several files, the rows of the first come first. All data sets must have the same number of rows. Raises
    LayoutError for what is stored elsewhere (virtual, external, variable-length), not stored yet, or stored in the
    header (compact); ConfigError for a path outside `root`, and where no data set is named.
    """
    paths = [path] if isinstance(path, str) else path
    if not datasets:
        _, there = _read(paths[0], _dataset_names)
        raise ConfigError(f"{paths[0]}: say which data sets a sample is of (--dataset); there are {there}")
    return layout_of([_shard(one, datasets) for one in paths], root, f"hdf5: {', '.join(datasets)}")


def _read(path: str, look: Callable[[Any], _Found]) -> tuple[SourceFile, _Found]:
    """The file, and what `look` finds in it. Raises LayoutError, which names it."""
    try:
        import h5py  # type: ignore[import-untyped] # it has no types
    except ImportError:
        raise LayoutError("h5py is missing: pip install h5py") from None
    with opened(path) as source:
        try:
            with h5py.File(path, "r") as file:
                return source, look(file)
        except LayoutError as error:
            raise LayoutError(f"{path}: {error}") from None
        except (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError) as error:
            # HDF5 has an exception of Python's for each of its kinds of damage.
            fault = f"not an HDF5 file that can be read, or cut short at offset {source.size:,}"
            raise LayoutError(f"{path}: {fault} ({error})") from None


def _shard(path: str, datasets: Sequence[str]) -> Shard:
    source, parts = _read(path, lambda file: [_extents(file, name) for name in datasets])
    return shard_of_arrays(source, "data sets", datasets, parts)


def _extents(file: Any, name: str) -> tuple[_Ints, _Ints, _Ints]:  # noqa: ANN401 - h5py has no types
    """(extents of each row, offsets, bytes) of one data set. Raises LayoutError."""
    import h5py

    found = file.get(name)
    if not isinstance(found, h5py.Dataset):
        raise LayoutError(f"no data set {name!r}; there are {_dataset_names(file)}")
    if not found.shape or not found.shape[0]:
        raise LayoutError(f"{name}: has no rows")
    if found.file.filename != file.filename:
        raise LayoutError(f"{name}: lies in another file ({found.file.filename}); build the layout of that one")
    plist = found.id.get_create_plist()
    kind = plist.get_layout()
    if found.dtype.hasobject:
        raise LayoutError(f"{name}: its values are of variable length, so they lie elsewhere than its rows")
    if kind == h5py.h5d.VIRTUAL:
        raise LayoutError(f"{name}: virtual, its rows lie in other data sets; build the layout of those")
    if plist.get_external_count():
        raise LayoutError(f"{name}: external, its rows lie in another file")
    if kind == h5py.h5d.COMPACT:
        raise LayoutError(f"{name}: compact, it is read with the file's header and needs no layout")
    if kind == h5py.h5d.CONTIGUOUS:
        return _contiguous(found, name)
    if file.userblock_size and h5py.version.hdf5_version_tuple < (2, 0, 0):
        raise LayoutError(
            f"{name}: the file has a user block, and HDF5 before 2.0 does not agree where chunks then lie"
        )
    return _chunked(found, name)


def _contiguous(found: Any, name: str) -> tuple[_Ints, _Ints, _Ints]:  # noqa: ANN401 - an object of h5py, which is not imported here for its types
    offset, rows = found.id.get_offset(), found.shape[0]
    if offset is None:
        raise LayoutError(f"{name}: nothing has been written to it")
    size = found.id.get_storage_size() // rows
    return np.ones(rows, np.int64), offset + size * np.arange(rows), np.full(rows, size)


def _chunked(found: Any, name: str) -> tuple[_Ints, _Ints, _Ints]:  # noqa: ANN401 - an object of h5py, which is not imported here for its types
    rows, deep = found.shape[0], found.chunks[0]
    places: list[tuple[int, int, int]] = []
    found.id.chunk_iter(lambda info: places.append((info.chunk_offset[0], info.byte_offset, info.size)))
    if not places:
        raise LayoutError(f"{name}: nothing has been written to it")
    table = np.array(places, np.int64)
    table = table[np.lexsort((table[:, 1], table[:, 0]))]
    band = table[:, 0] // deep
    chunks = np.bincount(band, minlength=-(-rows // deep))
    if not chunks.all():
        at = int(np.argmin(chunks)) * deep
        raise LayoutError(f"{name}: rows from {at} on have not been written")
    first = np.append(0, chunks.cumsum())
    of_row = np.arange(rows) // deep
    counts = chunks[of_row]
    ends = counts.cumsum()
    which = np.arange(ends[-1]) - np.repeat(ends - counts, counts) + np.repeat(first[of_row], counts)
    return counts, table[which, 1], table[which, 2]


def _dataset_names(file: Any) -> str:  # noqa: ANN401 - an object of h5py, which is not imported here for its types
    import h5py

    names: list[str] = []
    file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    return f"{', '.join(names[:_NAMED]) or 'none'}{' and more' if len(names) > _NAMED else ''}"


def _build(paths: Sequence[str], root: str, *, dataset: Sequence[str] = ()) -> Layout:
    return build_hdf5(paths, dataset, root)


def _is_hdf5(path: str, head: bytes) -> bool:
    """Its signature stands at the beginning, or after a user block: of 512 bytes or any higher power of two."""
    if head.startswith(_SIGNATURE):
        return True
    if len(head) < _SMALLEST_USER_BLOCK:
        return False
    with opened(path) as file:
        at = _SMALLEST_USER_BLOCK
        while at + len(_SIGNATURE) <= file.size:
            if file.read(at, len(_SIGNATURE)) == _SIGNATURE:
                return True
            at *= 2
    return False


FORMAT = Format(
    "hdf5",
    _is_hdf5,
    _build,
    [DATASET],
)
