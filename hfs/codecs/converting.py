"""The work of `hfs encode` and `hfs decode`: one file after the other, or several at once, each checked.

A sample is decoded again as soon as it is encoded: what a lossless codec wrote is compared, what a lossy one wrote is
measured (`Accuracy`). Files appear under their name when they are complete.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import multiprocessing
import os
import signal
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

import numpy as np

from hfs.codecs.codec import Array, CodecError, WantedOutput, find_codec
from hfs.codecs.container import pack, unpack
from hfs.codecs.dataset import SUFFIX, read
from hfs.codecs.sample import decode_all, decode_entry, encode_entry
from hfs.codecs.sources import SampleSource, load
from hfs.training.atomic_write import whole_file

_Item = TypeVar("_Item")

_MOST_TOGETHER = 16
"""Samples that a process is given at a time: of a million, one by one, what waits would fill a gigabyte."""


OFF = 0.1
"""A value is off if it differs by more than this share of itself: the measure of the paper (section V.A)."""

NEAR_ZERO = 0.01
"""A value is near zero if it is smaller than this share of its channel's standard deviation. What is off there is off
by a thousandth of what the channel varies by, or little more."""


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
