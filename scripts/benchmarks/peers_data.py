"""The data sets of `scripts/bench peers`: files that begin with their own names, which readers check."""

from pathlib import Path

import numpy as np

from scripts.benchmarks import data
from scripts.benchmarks.common import Work
from scripts.benchmarks.options import Options
from scripts.benchmarks.peers_nodes import Data, list_names
from scripts.benchmarks.readers.node_learner_stamp import stamp

PICTURES, PICTURES_QUICK = 428, 107
PICTURE_BYTES = 150_000
LARGE, LARGE_QUICK = 8, 2
LARGE_BYTES = 8 * 1024**2
"""Eight chunks of 1 MiB, which eight nodes share."""
ONE, ONE_QUICK = 64, 16
"""Chunks of the file that all read."""
MIDDLE, MIDDLE_QUICK = 1280, 640
MIDDLE_BYTES = 40_000
TINY, TINY_QUICK = 12_288, 3072
"""Homes are drawn by a hash: of so many files each of eight nodes has its share within some percent."""
TINY_BYTES = 8000


def _make(root: Path, count: int, mean_bytes: int, spread: float) -> None:
    draw = np.random.default_rng([count, mean_bytes])
    for name in _names(count):
        size = int(mean_bytes * (1 + spread * draw.uniform(-1, 1)))
        path = root / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(stamp(name) + draw.bytes(size - len(stamp(name))))


def _names(count: int) -> list[str]:
    return [f"class_{number % 10}/{number:06d}.bin" for number in range(count)]


def _data(work: Work, what: str, count: int, mean_bytes: int, spread: float) -> Data:
    spec: dict[str, object] = {"count": count, "mean": mean_bytes, "spread": spread, "form": 1}
    folder = data.stamped(
        work.data / f"peers-{what}-{count}", spec, lambda root: _make(root, count, mean_bytes, spread)
    )
    return list_names(work, folder, _names(count))


def pictures(work: Work, options: Options) -> Data:
    """64 MB in files of 100 to 200 KB."""
    return _data(work, "pictures", options.size(PICTURES, PICTURES_QUICK), PICTURE_BYTES, 1 / 3)


def large(work: Work, options: Options) -> Data:
    """67 MB in files of some eight chunks."""
    return _data(work, "large", options.size(LARGE, LARGE_QUICK), LARGE_BYTES, 0)


def one_large(work: Work, options: Options) -> Data:
    """67 MB in one file."""
    chunks = options.size(ONE, ONE_QUICK)
    return _data(work, f"one-{chunks}", 1, chunks << 20, 0)


def tiny(work: Work, options: Options) -> Data:
    """98 MB in many files, for what is a matter of numbers."""
    return _data(work, "tiny", options.size(TINY, TINY_QUICK), TINY_BYTES, 0)


def middle(work: Work, options: Options) -> Data:
    """51 MB in files of 40 KB: many enough for 20 steps of eight nodes."""
    return _data(work, "middle", options.size(MIDDLE, MIDDLE_QUICK), MIDDLE_BYTES, 0)
