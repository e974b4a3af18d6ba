"""Samples in the files that people have: HDF5, .npy and .npz; one sample a file, or many along its first axis.

Never runs in a training job.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np

from hfs.codecs.codec import Array, CodecError

Many = Literal["auto", "one", "many"]

_HDF5 = (".h5", ".hdf5", ".he5")
_SUFFIXES = (*_HDF5, ".npy", ".npz")


@dataclasses.dataclass(frozen=True)
class SampleSource:
    """A sample: the array `name` of the file, or its row `index`; `output`: its path below DST, without a suffix."""

    path: str
    name: str
    index: int | None
    output: str


def found(path: str, name: str | None, many: Many) -> tuple[list[SampleSource], dict[str, CodecError]]:
    """The samples of a file, or of all files below a directory, in order; and what is wrong with those of these files
    that have none, by their paths. Raises CodecError for a file that was named itself, and where there are none.

    name    of the array to encode; None: the largest of a file
    many    whether rows along the first axis are samples; auto: if there is an axis more than a sample has (counts
            4: three of space and the redshifts; fields 3: channels, y, x)
    """
    if not os.path.isdir(path):
        return _of_file(path, os.path.splitext(os.path.basename(path))[0], name, many), {}
    samples: list[SampleSource] = []
    faults: dict[str, CodecError] = {}
    for folder, folders, files in os.walk(path, onerror=_cannot_list):
        folders.sort()
        for file in sorted(files):
            if file.endswith(_SUFFIXES):
                full = os.path.join(folder, file)
                try:
                    samples += _of_file(full, os.path.splitext(os.path.relpath(full, path))[0], name, many)
                except CodecError as error:
                    faults[full] = error
    if not samples and not faults:
        raise CodecError(f"{path}: no file that ends with {', '.join(_SUFFIXES)} lies below it")
    return samples, faults


def load(source: SampleSource) -> tuple[Array, dict[str, Array]]:
    """The array to encode, and those beside it (of many samples: their rows, where they have as many). CodecError."""
    with _opened(source.path) as arrays:
        data = arrays[source.name]
        rows = None if source.index is None else len(data)
        beside: dict[str, Array] = {}
        for name, other in arrays.items():
            if name == source.name or other.dtype.kind not in "biuf":
                continue
            by_row = rows is not None and other.ndim and len(other) == rows
            beside[name] = np.asarray(other[source.index] if by_row else other[()])
        return np.asarray(data[()] if source.index is None else data[source.index]), beside


def _of_file(path: str, output: str, name: str | None, many: Many) -> list[SampleSource]:
    with _opened(path) as arrays:
        chosen = name or _largest(path, arrays)
        if chosen not in arrays:
            raise CodecError(f"{path}: has no array {chosen!r}; it has {', '.join(arrays) or 'none'}")
        data = arrays[chosen]
        axes = 4 if data.dtype.kind in "iu" else 3
        if many == "one" or (many == "auto" and data.ndim <= axes):
            return [SampleSource(path, chosen, None, output)]
        if not data.ndim:
            raise CodecError(f"{path}: {chosen} is one number, and no samples lie along its first axis")
        digits = len(str(max(0, len(data) - 1)))
        return [SampleSource(path, chosen, index, f"{output}-{index:0{digits}d}") for index in range(len(data))]


def _largest(path: str, arrays: Mapping[str, Any]) -> str:
    numbers = {name: array.size for name, array in arrays.items() if array.dtype.kind in "biuf"}
    if not numbers:
        raise CodecError(f"{path}: there is no array of numbers in it")
    return max(numbers, key=lambda name: numbers[name])


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Mapping[str, Any]]:
    """The arrays of a file by name, each read when it is indexed. Raises CodecError."""
    try:
        if path.endswith(_HDF5):
            with _h5py().File(path, "r") as file:
                arrays: dict[str, Any] = {}

                def keep(name: str, item: Any) -> None:  # noqa: ANN401 - h5py has no types
                    # Texts and records have no dtype of numbers; empty ones no shape.
                    if hasattr(item, "dtype") and item.shape is not None:
                        arrays[name] = item

                file.visititems(keep)
                yield arrays
        elif path.endswith(".npz"):
            # Opened here: NumPy leaves that of a damaged one open.
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
                yield {name: archive[name] for name in archive.files}
        elif path.endswith(".npy"):
            yield {"data": np.load(path, mmap_mode="r", allow_pickle=False)}
        else:
            raise CodecError(f"{path}: ends with none of {', '.join(_SUFFIXES)}")
    except CodecError:
        raise
    except Exception as error:  # noqa: BLE001 - h5py, NumPy and zipfile have many for damage, and one file ends nothing
        raise CodecError(f"{path}: cannot be read, or is damaged ({error})") from None


def _h5py() -> Any:  # noqa: ANN401 - h5py has no types
    try:
        import h5py  # type: ignore[import-untyped] # it has no types
    except ImportError:
        raise CodecError("h5py is missing: pip install h5py") from None
    return h5py


def _cannot_list(error: OSError) -> None:
    raise CodecError(f"{error.filename}: cannot be listed ({error.strerror})")
