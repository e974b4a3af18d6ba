"""Rows of the buffer-size study: how long learners wait when a buffer, or a group, is one sample up to a whole file.

As the paper's figures 9 and 10, of which a plot is written too.
"""

import statistics
from dataclasses import replace

from scripts.benchmarks.async_io_learners import ASYNC_DB, LEARNERS, MOUNT_GROUPS, Job, Strategy
from scripts.benchmarks.async_io_plots import Bars, write_plot
from scripts.benchmarks.async_io_samples import (
    A_FILE,
    A_FILE_QUICK,
    COMPUTE,
    FILES,
    part_of,
    samples_set,
)
from scripts.benchmarks.common import BenchError, Work
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row

BUFFERS = (1, 61, 609, 6094)
"""Samples; the paper's sizes, to which the whole file comes."""

STRATEGIES = (ASYNC_DB, MOUNT_GROUPS)


def buffers(work: Work, options: Options, command: str, preset: str = "lustre") -> list[Row]:
    folder = samples_set(work, options)
    a_file = folder.samples // FILES
    sizes = [*(size for size in BUFFERS if size < a_file), a_file]
    got = Results(command)
    compute_s = COMPUTE * folder.bandwidth_s(preset)

    def key(strategy: Strategy, size: int, what: str) -> str:
        return f"{strategy.name} {size} {what}"

    def part(strategy: Strategy, size: int) -> int | None:
        # Buffers of one sample are what TF-Pre does: an epoch of it would take as long.
        return part_of(options, folder.samples, preset) if size == 1 and not strategy.mounted else None

    for seed in range(options.runs):
        job = Job(work, options, folder, preset, seed, compute_s)
        for size in sizes:
            for strategy in STRATEGIES:
                with got.attempt(*(key(strategy, size, what) for what in ("exposed", "epoch"))):
                    epoch = job.epoch(strategy, size, part(strategy, size))
                    got.add(key(strategy, size, "exposed"), epoch.exposed_s)
                    got.add(key(strategy, size, "epoch"), epoch.epoch_s)

    def words(strategy: Strategy, size: int) -> str:
        name = f"  {strategy.name}, {size} sample{'s' * (size > 1)} ({size * folder.sample_bytes / 2**20:.3g} MiB)"
        scaled = part(strategy, size)
        return name if scaled is None else f"{name} [extrapolated from {scaled} of each learner]"

    rows = [
        row
        for strategy in STRATEGIES
        for size in sizes
        for row in (
            got.row(f"{words(strategy, size)}: exposed I/O", key(strategy, size, "exposed"), unit="s"),
            got.row("    epoch", key(strategy, size, "epoch"), unit="s"),
        )
    ]
    title = f"{folder.samples} samples of 19 KB, {LEARNERS} learners, {preset}{options.scale(A_FILE, A_FILE_QUICK)}"
    path = options.plots / f"buffers-{preset}.png"
    charts = [
        Bars(strategy.name, sizes, [_median(got, key(strategy, size, "exposed")) for size in sizes], compute_s)
        for strategy in STRATEGIES
    ]
    write_plot(path, title, charts)
    first = rows[0]
    head = f"buffer or group size, {title}, compute {compute_s:.3g} s, plot in {path}:"
    return [replace(first, row=f"{head}{first.row}"), *rows[1:]]


def _median(got: Results, key: str) -> float | None:
    try:
        return statistics.median(got.values(key))
    except BenchError:
        return None


def buffers_busy(work: Work, options: Options, command: str) -> list[Row]:
    return buffers(work, options, command, "busy")
