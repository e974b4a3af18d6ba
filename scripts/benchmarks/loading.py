"""`scripts/bench loading`: loading data on many nodes, after Yang and Cong, as far as one machine shows it.

`threads` measures their figure 7, the rate of one learner's loader by workers and threads; `planning` what the division
of an epoch costs each of 1 024 learners; `scale` computes what 1 024 nodes would gain. Ratios are taken within a run.
"""

from collections.abc import Callable
from functools import partial

from scripts.benchmarks import data, loading_planning, loading_scale
from scripts.benchmarks.async_io_files import FileSet, job
from scripts.benchmarks.common import Work, seconds, slowfs
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row

RUNS = 3

PRESET = "lustre"
FOLDERS = 1
"""A thousand files: the sixteen cells of the table take 40 s."""
MEAN_BYTES = 42_900
WORKERS = (1, 2, 4, 8)
THREADS = (1, 2, 4, 8)


def threads(work: Work, options: Options, command: str) -> list[Row]:
    """Files are read whole and not decoded, from a source that nobody has in memory; the start of workers counts."""
    make = partial(data.make_batches, folders=FOLDERS, mean_bytes=MEAN_BYTES)
    folder = data.stamped(work.data / f"batches-{FOLDERS}", {"folders": FOLDERS, "mean": MEAN_BYTES}, make)
    files = FileSet(work, folder)
    got = Results(command)
    cells = [(workers, each) for workers in WORKERS for each in THREADS]
    for seed in range(options.runs):
        for workers, each in cells:
            with (
                got.attempt(f"{workers} {each}"),
                slowfs(work, files.folder, PRESET) as source,
                job(files, source.path, workers, threads=each) as program,
            ):
                got.add(f"{workers} {each}", len(files.names) / seconds(program.epoch(1, seed)))
        with got.attempt("one", "best"):
            rates = {cell: got.last(f"{cell[0]} {cell[1]}") for cell in cells}
            got.add("one", rates[1, THREADS[-1]] / rates[1, 1])
            single = max(rate for (_, each), rate in rates.items() if each == 1)
            got.add("best", max(rates.values()) / single)
    return [
        got.row(f"{files}, {PRESET}: one worker, {THREADS[-1]} threads / one thread", "one"),
        got.row("  best of all / best with one thread a worker", "best"),
        *(got.row(f"  {workers} workers x {each} threads", f"{workers} {each}", unit="/s") for workers, each in cells),
    ]


GROUPS: dict[str, Callable[[Work, Options, str], list[Row]]] = {
    "threads": threads,
    "planning": loading_planning.planning,
    "scale": loading_scale.scale,
}
