"""Rows of one large staged file: random reads, sequential reads and a shared mapping of it."""

from scripts.benchmarks.common import Work
from scripts.benchmarks.fastpath_access import MMAP, OF_LARGE, RANDOM_4K, RANDOM_128K, SEQUENTIAL, TOUCH
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.fastpath_staged import first_and_again, large_folder, staged, title
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_least

ROWS = (
    (RANDOM_128K, "passthrough", "second", at_least(0.95)),
    (RANDOM_128K, "passthrough", "first", None),
    (RANDOM_128K, "daemon", "first", at_least(0.10)),
    (RANDOM_128K, "daemon", "second", at_least(0.65)),
    (RANDOM_4K, "passthrough", "second", at_least(0.88)),
    (RANDOM_4K, "passthrough", "first", None),
    (RANDOM_4K, "daemon", "first", None),
    (RANDOM_4K, "daemon", "second", at_least(0.80)),
    (SEQUENTIAL, "passthrough", "second", at_least(0.95)),
    (SEQUENTIAL, "passthrough", "first", None),
    (SEQUENTIAL, "daemon", "first", at_least(0.12)),
    (SEQUENTIAL, "daemon", "second", at_least(0.50)),
    (MMAP, "passthrough", "second", at_least(0.90)),
    (MMAP, "passthrough", "first", None),
    (MMAP, "daemon", "first", None),
    (MMAP, "daemon", "second", at_least(0.25)),
    (TOUCH, "passthrough", "second", None),
    (TOUCH, "daemon", "second", None),
)
"""In passthrough nothing of the mount's own is filled the first time: the bar is held against the steadier second."""

MODES = ("passthrough", "daemon")


def large(work: Work, options: Options, command: str) -> list[Row]:
    got = Results(command)
    with staged(work, large_folder(work, options)) as data:
        for seed in range(options.runs):
            for access in (*OF_LARGE, TOUCH):
                for mode in MODES:
                    keys = [f"{access.what} {mode} {time}" for time in ("first", "second")]
                    with got.attempt(*keys):
                        for key, ratio in zip(keys, first_and_again(data, access, mode, options, seed), strict=True):
                            got.add(key, ratio)
    return [
        got.row(
            f"{'' if bar else '  '}{title(access, options)}, {mode}, {time} time: speed / native",
            f"{access.what} {mode} {time}",
            bar,
        )
        for access, mode, time, bar in ROWS
    ]
