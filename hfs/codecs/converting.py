"""The work of `hfs encode` and `hfs decode`: one file after the other, or several at once, each checked.

A sample is decoded again as soon as it is encoded: what a lossless codec wrote is compared, what a lossy one wrote is
measured (`Accuracy`). Files appear under their name when they are complete.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import multiprocessing
import os
import signal
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Literal, TypeVar

import numpy as np

from hfs.codecs.codec import Array, CodecError, WantedOutput, find_codec
from hfs.codecs.dataset import SUFFIX, read
from hfs.codecs.sample import decode_all, decode_entry, encode_entry, pack, unpack
from hfs.training.atomic_write import whole_file

_Item = TypeVar("_Item")

_MOST_TOGETHER = 16
"""Samples that a process is given at a time: of a million, one by one, what waits would fill a gigabyte."""


OFF = 0.1
"""A value is off if it differs by more than this share of itself: the measure of the paper (section V.A)."""

NEAR_ZERO = 0.01
"""A value is near zero if it is smaller than this share of its channel's standard deviation. What is off there is off
by a thousandth of what the channel varies by, or little more."""


Many = Literal["auto", "one", "many"]

_HDF5 = (".h5", ".hdf5", ".he5")
_SUFFIXES = (*_HDF5, ".npy", ".npz")


@dataclasses.dataclass(frozen=True)
class SampleSource:
    """Samples in the files that people have: HDF5, .npy and .npz; one sample a file, or many along its first axis.

    Never runs in a training job.

    A sample: the array `name` of the file, or its row `index`; `output`: its path below DST, without a suffix.
    """

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


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """values, and how many of them are off; near zero, the same; the largest error in standard deviations.

    Values that are not finite are none of them, and must have come back as they were.
    """

    values: int = 0
    off: int = 0
    near_zero: int = 0
    near_zero_off: int = 0
    worst: float = 0.0

    def __add__(self, other: Accuracy) -> Accuracy:
        return Accuracy(
            self.values + other.values,
            self.off + other.off,
            self.near_zero + other.near_zero,
            self.near_zero_off + other.near_zero_off,
            max(self.worst, other.worst),
        )


def accuracy(original: Array, decoded: Array, channels: str | None = None) -> Accuracy:
    """Of two arrays of one shape; `channels` says which axis, "first" or "last", has them, if any."""
    axis = {"first": 0, "last": -1}.get(channels or "")
    total = Accuracy()
    for before, after in (
        [(original, decoded)]
        if axis is None
        else zip(np.moveaxis(original, axis, 0), np.moveaxis(decoded, axis, 0), strict=True)
    ):
        finite = np.isfinite(before)
        true = before[finite].astype(np.float64)
        error = np.abs(after[finite].astype(np.float64) - true)
        size = np.abs(true)
        off = error > OFF * size
        spread = float(true.std()) if len(true) else 0.0
        near_zero = size < NEAR_ZERO * spread
        worst = float(error.max() / spread) if spread else 0.0
        total += Accuracy(len(true), int(off.sum()), int(near_zero.sum()), int((off & near_zero).sum()), worst)
    return total


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a sample: bytes before and after, and how close it is; or `fault`, one line."""

    name: str
    codec: str = ""
    raw_bytes: int = 0
    encoded_bytes: int = 0
    accuracy: Accuracy | None = None
    fault: str | None = None


def encode_sample(source: SampleSource, folder: str, codec: str, options: Mapping[str, Any]) -> Outcome:
    """Encode it into a file below `folder`. Never raises for what is wrong with one sample."""
    name = source.path if source.index is None else f"{source.path}[{source.index}]"
    try:
        data, beside = load(source)
        entries = [encode_entry(source.name, data, codec, options)]
        entries += [encode_entry(other, array, "plain", {}) for other, array in beside.items()]
        packed = pack(entries)
        made = unpack(packed)[0]
        chosen = find_codec(made.codec)
        close = None
        if chosen.lossless:
            if not np.array_equal(decode_entry(made, WantedOutput()), data):
                raise CodecError("what was encoded does not decode to what it was: please report this")
        else:
            close = accuracy(data, decode_entry(made, WantedOutput(dtype="float32")), made.parameters.get("channels"))
        write(os.path.join(folder, source.output + SUFFIX), packed)
        raw_bytes = data.nbytes + sum(array.nbytes for array in beside.values())
        return Outcome(name, made.codec, raw_bytes, len(packed), close)
    except CodecError as error:
        return Outcome(name, fault=str(error))


def decode_file(path: str, output: str, wanted: WantedOutput) -> Outcome:
    """Decode an .hfsc file into .npy, or .npz if there are arrays beside. Never raises for what is wrong with it."""
    try:
        data = read(path)
        found = decode_all(data, wanted)
        file = io.BytesIO()
        if len(found) == 1:
            np.save(file, next(iter(found.values())))
        else:
            # Not np.savez: to it an array called "file" is an argument.
            with zipfile.ZipFile(file, "w") as archive:
                for name, array in found.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, array, allow_pickle=False)
        write(f"{output}.npy" if len(found) == 1 else f"{output}.npz", file.getbuffer())
        return Outcome(
            path, unpack(data, verify=False)[0].codec, sum(array.nbytes for array in found.values()), len(data)
        )
    except CodecError as error:
        return Outcome(path, fault=str(error))


def write(path: str, data: bytes | memoryview) -> None:
    """The file, all of it or nothing. Raises CodecError."""
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with whole_file(path) as file:
            file.write(data)
    except OSError as error:
        raise CodecError(f"{path}: cannot be written ({error.strerror})") from None


def in_processes(
    work: Callable[..., Outcome], items: Sequence[_Item], arguments: Iterable[Any], jobs: int
) -> Iterator[Outcome]:
    """work(item, *arguments) for each, in `jobs` processes."""
    rest = tuple(arguments)
    if jobs <= 1 or len(items) <= 1:
        for item in items:
            yield work(item, *rest)
        return
    # Spawned: libraries for HDF5 keep locks and threads that a fork would tear apart.
    with ProcessPoolExecutor(
        min(jobs, len(items)),
        multiprocessing.get_context("spawn"),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),  # Ctrl-C is for who waits for them
    ) as pool:
        together = max(1, min(_MOST_TOGETHER, len(items) // (8 * jobs)))
        yield from pool.map(work, items, *map(itertools.repeat, rest), chunksize=together)
