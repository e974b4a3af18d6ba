"""The group `small` of `scripts/bench trust`: small files in random order are never slower than without hfs.

The benchmark of 1 000 mini-batches (async_io_chainer.py), with and without a hint, held against what hfs promises and
not against the paper. Its rows have the first batch and the daemon's CPU time a file too.
"""

from scripts.benchmarks.async_io_chainer import Bars, measured
from scripts.benchmarks.common import Work
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row

BARS = Bars(hinted={2: 4, 8: 1.2}, first=1.5, unhinted={2: 1.2, 8: 0.95}, unhinted_first=1.5)


def small(work: Work, options: Options, command: str) -> list[Row]:
    return measured(work, options, command, BARS)[2]
