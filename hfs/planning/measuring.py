"""Rates of this machine, for `hfs plan --measure`: how fast it reads a data set, its cache disk, and decodes pictures.

Each measurement ends after LIMIT_S, or the `limit_s` that is given. Files are read whole, in random order, by several
threads, as a loader does, and what the page cache holds of them is dropped before (only of these files, and where the
file system lets go of it). Writes nothing but one file in the cache directory, without a name, gone at the end.
"""

from __future__ import annotations

import io
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from hfs.mountd.core.errors import HfsError

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
    """What was read, or decoded, in how long."""

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
