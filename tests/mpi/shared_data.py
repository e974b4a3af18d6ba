"""The data of the tests of hfs.shared: one file of computed bytes, and layouts of samples that lie in it.

Used by the test, which writes the file, and by the ranks, which know what each sample must be.
"""

import numpy as np

from hfs.layouts.layout import Layout
from tests.support.pattern import pattern

NAME = b"data.bin"
FILE_SEED = 77
FILE_BYTES = 2 << 20
SAMPLES = 300
SHAPE = (5, 7, 13)
"""Of uint16: 910 bytes, a multiple of no power of two but 2."""
_SAMPLE_BYTES = 2 * 5 * 7 * 13


def fixed_layout(*mtime_ns: int) -> Layout:
    """Samples of one extent each, one behind the other; of the version of that time, or of any."""
    return Layout(
        NAME,
        file_sizes=np.array([FILE_BYTES]),
        file_mtimes_ns=np.array(mtime_ns, np.int64),
        extents=np.zeros(SAMPLES, np.int64),
        offsets=np.arange(SAMPLES) * _SAMPLE_BYTES + 11,
        sizes=np.full(SAMPLES, _SAMPLE_BYTES),
    )


def ragged_layout() -> Layout:
    """Samples of 0 to 4 extents, of 1 byte to 5 KB, near, far and one over the other."""
    random = np.random.default_rng(1)
    counts = random.integers(0, 5, SAMPLES)
    total = int(counts.sum())
    sizes = random.choice([1, 100, 5000], total)
    near = np.cumsum(sizes) - sizes
    offsets = np.where(random.random(total) < 0.6, near, random.integers(0, FILE_BYTES - 5000, total))
    return Layout(
        NAME,
        file_sizes=np.array([FILE_BYTES]),
        extents=np.zeros(total, np.int64),
        offsets=offsets,
        sizes=sizes,
        starts=np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))),
    )


def sample_of(layout: Layout, index: int) -> bytes:
    """What the sample must be, without reading anything."""
    extents = range(layout.starts[index], layout.starts[index + 1]) if len(layout.starts) else [index]
    return b"".join(pattern(FILE_SEED, int(layout.offsets[e]), int(layout.sizes[e])) for e in extents)


def batches_of(epoch: int) -> list[list[int]]:
    """All samples in a random order, in batches of 17; the last is shorter. One sample comes twice in its batch."""
    order = np.random.default_rng(epoch).permutation(SAMPLES)
    batches = [order[start : start + 17].tolist() for start in range(0, SAMPLES, 17)]
    batches[1][3] = batches[1][0]
    return batches
