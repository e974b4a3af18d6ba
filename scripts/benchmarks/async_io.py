"""`scripts/bench async-io`: how long a learner waits for data, with and without a hint, against loaders of its own.

Only the list of the groups of rows; `scripts/bench async-io --only GROUP` measures one. Exposed I/O is the time that a
learner waits for its next batch; computing is emulated by sleeping. Ratios are taken within a run.
"""

from collections.abc import Callable

from scripts.benchmarks import (
    async_io_belady,
    async_io_buffers,
    async_io_chainer,
    async_io_cosmoflow,
    async_io_images,
    async_io_planning,
    async_io_samples,
)
from scripts.benchmarks.common import Work
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row

RUNS = 3

GROUPS: dict[str, Callable[[Work, Options, str], list[Row]]] = {
    "samples": async_io_samples.samples,
    "samples-busy": async_io_samples.samples_busy,
    "cosmoflow": async_io_cosmoflow.cosmoflow,
    "cosmoflow-busy": async_io_cosmoflow.cosmoflow_busy,
    "buffers": async_io_buffers.buffers,
    "buffers-busy": async_io_buffers.buffers_busy,
    "images": async_io_images.images,
    "chainer": async_io_chainer.chainer,
    "belady": async_io_belady.belady,
    "planning": async_io_planning.planning,
}
