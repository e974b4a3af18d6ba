"""What `hfs plan` works with: rates as people write them, where each input came from, the epochs at each size of a job.

Decides and computes nothing by itself: the equations are in `policies/cluster/cost_model.py`.
"""

from __future__ import annotations

import io
import math
import os
import random
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hfs.mountd.core.config.key import parse_size
from hfs.mountd.core.errors import ConfigError, HfsError
from hfs.policies.cluster.cost_model import WAYS, Job, costs, expected_imbalance, gains_end, stops_scaling

Origin = Literal["given", "measured", "recorded", "assumed"]

RATES = {
    "storage": "what SOURCE gives to all nodes together",
    "train": "what one node trains on",
    "preprocess": "what one node prepares",
    "remote": "what all nodes together read from each other's caches",
    "local": "what one node reads from its own cache",
}
"""Each rate and whose it is."""

MOST_NODES = 65_536


LIMIT_S = 5.0
"""Longer than the bursts that caches of disks and servers take; three measurements are then a quarter of a minute."""
THREADS = 16
"""As many as the daemon has for fetching ahead; more of them do not get more from the sources it was tried on."""
_PIECE_BYTES = 1 << 20
_FOLDER_BYTES = 256 << 20
_FILES = 20_000
"""Of a data set that are looked at to be read: at 4 000 files a second all that the time limit is enough for."""


class NotMeasured(HfsError):
    """A rate could not be measured; the message says why."""


@dataclass(frozen=True)
class DataSet:
    """What lies below a path."""

    files: int
    bytes: int
    paths: Sequence[str]
    """Some of them, at random."""


@dataclass(frozen=True)
class Rate:
    """What was read, or decoded, in how long: of a data set, of the cache disk, of pictures.

    Each measurement ends after LIMIT_S, or the `limit_s` that is given. Files are read whole, in random order, by
    several threads, as a loader does, and what the page cache holds of them is dropped before (only of these files, and
    where the file system lets go of it). Writes nothing but one file in the cache directory, without a name, gone at
    the end.
    """

    files: int
    bytes: int
    seconds: float

    @property
    def bytes_a_second(self) -> float:
        """Of all threads together."""
        return self.bytes / self.seconds

    @property
    def files_a_second(self) -> float:
        """Of all threads together."""
        return self.files / self.seconds


def look_through(path: str) -> DataSet:
    """The regular files at or below `path`, with a stat each. Raises NotMeasured where there are none."""
    keep = random.Random(0)  # the same files each time
    count = size = 0
    chosen: list[str] = []
    for file, file_bytes in _files(path):
        count += 1
        size += file_bytes
        # Each file is kept with the same probability (Vitter's algorithm R).
        if len(chosen) < _FILES:
            chosen.append(file)
        elif (place := keep.randrange(count)) < _FILES:
            chosen[place] = file
    if not size:
        raise NotMeasured(f"{path}: no files with anything in them")
    keep.shuffle(chosen)
    return DataSet(count, size, chosen)


def _files(path: str) -> Iterator[tuple[str, int]]:
    try:
        if os.path.isfile(path):
            yield path, os.stat(path).st_size
            return
        waiting = [path]
        while waiting:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.is_file():
                        yield entry.path, entry.stat().st_size
    except OSError as error:
        raise NotMeasured(f"{path}: cannot be read ({error.strerror})") from None


def file_rate(paths: Sequence[str], limit_s: float | None = None, threads: int = THREADS) -> Rate:
    """How fast files are read, each whole, once each. Raises NotMeasured."""

    def read(path: str) -> int:
        with open(path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            size = 0
            buffer = bytearray(_PIECE_BYTES)
            while count := file.readinto(buffer):
                size += count
                if time.monotonic() > end_s:
                    break
        return size

    end_s = _end_s(limit_s)
    return _together(paths, read, end_s, threads)


def folder_rate(directory: str, limit_s: float | None = None, threads: int = THREADS, size: int | None = None) -> Rate:
    """How fast a file of `size` bytes in `directory` is read in random pieces of 1 MiB. Raises NotMeasured."""
    size = _FOLDER_BYTES if size is None else size
    try:
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            block = os.urandom(_PIECE_BYTES)
            for _ in range(0, size, _PIECE_BYTES):
                file.write(block)
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            pieces = [str(offset) for offset in range(0, size, _PIECE_BYTES)]
            random.Random(0).shuffle(pieces)
            return _together(
                pieces,
                lambda offset: len(os.pread(file.fileno(), _PIECE_BYTES, int(offset))),
                _end_s(limit_s),
                threads,
            )
    except OSError as error:
        raise NotMeasured(f"{directory}: cannot be measured ({error.strerror})") from None


def decode_rate(paths: Sequence[str], limit_s: float | None = None, threads: int | None = None) -> Rate:
    """How fast pictures are decoded by all cores, when their bytes are in memory. Raises NotMeasured.

    Needs Pillow, which gives up the interpreter's lock while it decodes.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise NotMeasured("Pillow is not installed") from None
    few = {}
    for path in paths[:64]:
        try:
            with open(path, "rb") as file:
                few[path] = file.read()
        except OSError as error:
            raise NotMeasured(f"{path}: cannot be read ({error.strerror})") from None

    def decode(path: str) -> int:
        try:
            with Image.open(io.BytesIO(few[path])) as picture:
                picture.load()
        except (UnidentifiedImageError, OSError, ValueError) as error:
            raise NotMeasured(f"{path}: no picture that Pillow can read") from error
        return len(few[path])

    names = list(few) * (1 + 4096 // len(few))
    return _together(names, decode, _end_s(limit_s), threads or len(os.sched_getaffinity(0)))


def _end_s(limit_s: float | None) -> float:
    return time.monotonic() + (LIMIT_S if limit_s is None else limit_s)


def _together(names: Sequence[str], work: Callable[[str], int], end_s: float, threads: int) -> Rate:
    """`work` on each name by so many threads, until all are done or the time is over."""

    def one(name: str) -> int | None:
        return work(name) if time.monotonic() < end_s else None

    began_s = time.monotonic()
    pool = ThreadPoolExecutor(threads)
    try:
        done = [size for size in pool.map(one, names) if size is not None]
    except OSError as error:
        raise NotMeasured(f"{error.filename}: cannot be read ({error.strerror})") from None
    finally:
        pool.shutdown(cancel_futures=True)
    return Rate(len(done), sum(done), max(time.monotonic() - began_s, 1e-9))


@dataclass(frozen=True)
class Given:
    """One input: samples a second, or bytes, or a number; and where it is from."""

    value: float
    origin: Origin
    note: str = ""


@dataclass(frozen=True)
class Inputs:
    """Of one plan."""

    dataset_bytes: Given
    samples: Given
    rates: dict[str, Given]
    """Samples a second, by the names of RATES."""
    cache_bytes: Given
    """Of each node; infinite: all fits."""
    step_samples: Given
    """Samples that one node trains on in a step."""

    @property
    def job(self) -> Job:
        """For the equations."""
        rate = {name: given.value for name, given in self.rates.items()}
        return Job(
            samples=int(self.samples.value),
            train_rate=rate["train"],
            preprocess_rate=rate["preprocess"],
            storage_rate=rate["storage"],
            remote_rate=rate["remote"],
            local_rate=rate["local"],
            node_cached=min(1.0, self.cache_bytes.value / self.dataset_bytes.value),
            step_samples=int(self.step_samples.value),
        )

    def shown(self) -> dict[str, dict[str, Any]]:
        """For JSON; what is infinite is null."""
        found = {
            "dataset_bytes": self.dataset_bytes,
            "samples": self.samples,
            **{f"{name}_rate": given for name, given in self.rates.items()},
            "cache_bytes": self.cache_bytes,
            "step_samples": self.step_samples,
        }
        return {
            name: {**asdict(given), "value": given.value if math.isfinite(given.value) else None}
            for name, given in found.items()
        }


def rate_of(option: str, text: str, sample_bytes: float) -> float:
    """Samples a second of "200MB/s", "1.5GiB/s" or "1300 samples/s". Raises ConfigError.

    Sizes are written as everywhere in hfs: MB is a million bytes, MiB and M are 2**20.
    """
    match = re.fullmatch(r"\s*(.*?)\s*/\s*s\s*", text)
    if match is not None:
        samples = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*samples?", match[1])
        try:
            # At least a letter of a unit: a bare 200/s could be either.
            size = parse_size(match[1]) if match[1][-1:].isalpha() and samples is None else 0
        except (ValueError, TypeError):
            size = 0
        value = float(samples[1]) if samples is not None else size / sample_bytes
        if value > 0:
            return value
    raise ConfigError(f"{option} is {text!r}: give more than 0 with its unit, like 200MB/s or '1300 samples/s'")


def nodes_of(text: str) -> list[int]:
    """ "1,2,64" in ascending order. Raises ConfigError."""
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or not 1 <= found[0] <= found[-1] <= MOST_NODES:
        raise ConfigError(f"--nodes is {text!r}: give numbers of nodes, 1 to {MOST_NODES}, like 1,8,64")
    return found


def epochs(inputs: Inputs, nodes: Sequence[int]) -> dict[str, Any]:
    """What `hfs plan --json` prints: the inputs, an epoch at each number of nodes, and where each way stops scaling.

    Seconds; epochs after the first. `waits_from`: the fewest nodes that wait for data; `gains_end`: the fewest that are
    not worth doubling (less than 10 %); null: none up to 4096.
    """
    job = inputs.job
    rows = []
    for count in nodes:
        found = costs(job, count)
        moved = expected_imbalance(count, int(inputs.step_samples.value)) if count > 1 else 0.0
        rows.append({"nodes": count, "train_s": found.train_s, "moved": moved})
        rows[-1] |= {f"{way}_s": getattr(found, f"{way}_s") for way in WAYS}
    ways = {way: {"waits_from": stops_scaling(job, way), "gains_end": gains_end(job, way)} for way in WAYS}
    return {"inputs": inputs.shown(), "epochs": rows, "ways": ways}
