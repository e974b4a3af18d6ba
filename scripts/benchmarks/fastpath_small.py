"""Rows of many small staged files, each opened, read and closed once an epoch in random order."""

from scripts.benchmarks.common import Work
from scripts.benchmarks.fastpath_access import FILES
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.fastpath_staged import first_and_again, small_folder, staged, title
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_least

EPOCHS = {"second": "second epoch", "first": "first epoch of a new mount on a warm cache directory"}
MODES = ("passthrough", "auto", "daemon", "stateless")

ROWS = (
    ("second", "passthrough", at_least(0.15)),
    ("second", "auto", None),
    ("second", "daemon", at_least(0.15)),
    ("second", "stateless", at_least(0.50)),
    ("first", "passthrough", at_least(0.12)),
    ("first", "auto", None),
    ("first", "daemon", at_least(0.06)),
    ("first", "stateless", at_least(0.20)),
)


def small(work: Work, options: Options, command: str) -> list[Row]:
    got = Results(command)
    with staged(work, small_folder(work, options)) as data:
        for seed in range(options.runs):
            for mode in MODES:
                keys = [f"{epoch} {mode}" for epoch in ("first", "second")]
                with got.attempt(*keys):
                    for key, ratio in zip(keys, first_and_again(data, FILES, mode, options, seed), strict=True):
                        got.add(key, ratio)
    return [
        got.row(
            f"{'' if bar else '  '}{title(FILES, options)}, {EPOCHS[epoch]}, {mode}: speed / native",
            f"{epoch} {mode}",
            bar,
        )
        for epoch, mode, bar in ROWS
    ]
