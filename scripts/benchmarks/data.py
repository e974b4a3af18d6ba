"""Data sets of the benchmarks: made once below build/bench/data and kept for the next run.

Everything is deterministic: the same arguments give the same bytes (of one version of Pillow and HDF5). A stamp beside
a data set says what it was made with; another stamp, or none, and it is made anew. Never writes outside the folder
it is given.
"""

import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import h5py
import numpy as np

from scripts.quickstart_files.make_images import picture

IMAGE_CLASSES = 10
BASE_PICTURES = 200
"""Drawing one takes some 50 ms; 4 000 files are these with a comment of their own each."""

COMMENT_BYTES = 8000
"""Longest comment. It spreads the sizes of the files a little, as those of real ones are spread."""

SAMPLE_SHAPE = (1600, 3)
SAMPLE_BYTES = 1600 * 3 * 4
"""19 200: a sample of the Neuron Inverter benchmark."""

SAMPLES_A_BLOCK = 1000

VOLUME_SHAPE = (128, 128, 128, 12)
VOLUME_BYTES = 128**3 * 12 * 2
"""48 MiB: a sample of the CosmoFlow benchmark."""


def stamped(folder: Path, spec: dict[str, object], make: Callable[[Path], None]) -> Path:
    """`folder`, as `make` filled it for this `spec`: now, or in an earlier run that came to its end."""
    stamp = folder.with_name(folder.name + ".stamp")
    wanted = json.dumps(spec, sort_keys=True)
    if stamp.exists() and stamp.read_text() == wanted and folder.is_dir():
        return folder
    stamp.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    make(folder)
    stamp.write_text(wanted)
    return folder


def with_comment(jpeg: bytes, number: int) -> bytes:
    """The same picture as another file: a comment segment with unique bytes behind the start-of-image marker.

    Raises ValueError for what is no JPEG file.
    """
    if jpeg[:2] != b"\xff\xd8":
        raise ValueError("not a JPEG file")
    random = np.random.default_rng([number, COMMENT_BYTES])
    comment = number.to_bytes(8, "big") + random.bytes(int(random.integers(0, COMMENT_BYTES)))
    # The length counts itself.
    return jpeg[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment + jpeg[2:]


def _write_images(root: Path, count: int, base: int) -> None:
    """All files that are made of one base picture."""
    jpeg = picture(base)
    for number in range(base, count, BASE_PICTURES):
        # Consecutive numbers have different base pictures, so every class has all of them in the end.
        label = (number // BASE_PICTURES + number) % IMAGE_CLASSES
        (root / f"class_{label}" / f"{number:06d}.jpg").write_bytes(with_comment(jpeg, number))


def make_images(root: Path, count: int) -> None:
    """`count` JPEG files of about 110 KB in IMAGE_CLASSES class folders."""
    for label in range(IMAGE_CLASSES):
        (root / f"class_{label}").mkdir(parents=True, exist_ok=True)
    # Threads: drawing is NumPy's and Pillow's work, most of it outside the interpreter's lock.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(partial(_write_images, root, count), range(min(BASE_PICTURES, count))):
            pass


def make_samples(path: Path, count: int, first: int = 0) -> None:
    """One HDF5 file with a contiguous float32 data set "samples" of `count` x SAMPLE_SHAPE. The first number of a
    sample is its index, counted from `first`: readers check it."""
    block = np.random.default_rng(1).random((SAMPLES_A_BLOCK, *SAMPLE_SHAPE), dtype=np.float32)
    _write_samples(path, block, count, first)


def make_volumes(path: Path, count: int, first: int = 0) -> None:
    """The same of `count` x VOLUME_SHAPE, uint16: particle counts, most of them small."""
    # One of its own for each would take longer to draw than to read a hundred times.
    block = np.random.default_rng(1).geometric(0.2, (1, *VOLUME_SHAPE)).astype(np.uint16)
    _write_samples(path, block, count, first)


def _write_samples(path: Path, block: np.ndarray, count: int, first: int) -> None:
    with h5py.File(path, "w") as file:
        samples = file.create_dataset("samples", (count, *block.shape[1:]), block.dtype)
        for start in range(0, count, len(block)):
            stop = min(start + len(block), count)
            block.reshape(len(block), -1)[: stop - start, 0] = np.arange(first + start, first + stop)
            samples[start:stop] = block[: stop - start]


def make_sparse(path: Path, size: int) -> None:
    """A file of `size` bytes, all of them a hole."""
    with path.open("wb") as file:
        file.truncate(size)


def make_random(path: Path, size: int, seed: int) -> None:
    """A file of `size` bytes that do not repeat within 16 MiB and cannot be compressed."""
    block = bytearray(np.random.default_rng(seed).bytes(16 * 1024**2))
    with path.open("wb") as file:
        for number, start in enumerate(range(0, size, len(block))):
            block[:8] = number.to_bytes(8, "big")
            file.write(memoryview(block)[: min(len(block), size - start)])


def tree_bytes(root: Path) -> tuple[int, int]:
    """How many regular files lie at or below `root`, and their bytes together."""
    paths = [root] if root.is_file() else [path for path in root.rglob("*") if path.is_file()]
    return len(paths), sum(path.stat().st_size for path in paths)


def make_batches(root: Path, folders: int, mean_bytes: int) -> None:
    """Folders of 1000 files each of random bytes, as ImageNet has classes. Sizes are drawn evenly from half the mean
    to one and a half of it."""
    for folder in range(folders):
        draw = np.random.default_rng([folder, mean_bytes])
        path = root / f"n{folder:08d}"
        path.mkdir()
        for number, size in enumerate(draw.integers(mean_bytes // 2, mean_bytes + mean_bytes // 2, 1000)):
            (path / f"n{folder:08d}_{number}.jpg").write_bytes(draw.bytes(int(size)))
