"""The data sets of `scripts/bench nodes`: nothing in them repeats, so that no byte that is wrong goes unseen."""

from pathlib import Path

import numpy as np

from scripts.benchmarks import data
from scripts.benchmarks.common import Work
from scripts.benchmarks.options import Options

SMALL, SMALL_QUICK = 384, 96
LARGE, LARGE_QUICK = 8, 2
LARGE_BYTES = 6 * 1024**2


def _make(root: Path, small: int, large: int) -> None:
    draw = np.random.default_rng([small, large])
    for number in range(small):
        path = root / f"class_{number % 8}" / f"{number:06d}.bin"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(draw.bytes(int(draw.integers(50_000, 150_000))))
    for number in range(large):
        (root / f"large_{number}.bin").write_bytes(draw.bytes(LARGE_BYTES))


def mixed(work: Work, options: Options) -> Path:
    """38 MB in files of 50 to 150 KB and 50 MB in files of six chunks."""
    small, large = options.size(SMALL, SMALL_QUICK), options.size(LARGE, LARGE_QUICK)
    spec: dict[str, object] = {"small": small, "large": large, "large_bytes": LARGE_BYTES, "form": 1}
    return data.stamped(work.data / f"nodes-{small}-{large}", spec, lambda root: _make(root, small, large))
