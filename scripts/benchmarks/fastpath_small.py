"""Rows of many small staged files, each opened, read and closed once an epoch in random order."""

import os

from scripts.benchmarks.common import Work, preload
from scripts.benchmarks.fastpath_access import FILES, duel
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.fastpath_staged import Staged, first_and_again, small_folder, staged, title
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_least

NEW = "first epoch of a new mount on a warm cache directory"
EPOCHS = {"second": "second epoch", "first": NEW, "listed": f"{NEW}, folders listed before"}
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
    ("listed", "passthrough", None),
    ("listed", "auto", None),
    ("listed", "daemon", None),
    ("listed", "stateless", None),
)
"""The first epoch knows no name of the mount. Most jobs list before, which is no part of the epoch's time."""


def _listed(data: Staged, mode: str, options: Options, seed: int) -> float:
    """Speed / native of the first epoch of a new mount whose names have been listed, as os.walk does it."""
    with data.mounted(mode) as mount, duel(FILES, data.native, options, seed) as reads:
        preload(data.cache)
        for _ in os.walk(mount.path):
            pass
        return reads.first(data.place(mount.path))


def small(work: Work, options: Options, command: str) -> list[Row]:
    got = Results(command)
    with staged(work, small_folder(work, options)) as data:
        for seed in range(options.runs):
            for mode in MODES:
                with got.attempt(*(f"{epoch} {mode}" for epoch in EPOCHS)):
                    first, second = first_and_again(data, FILES, mode, options, seed)
                    got.add(f"first {mode}", first)
                    got.add(f"second {mode}", second)
                    got.add(f"listed {mode}", _listed(data, mode, options, seed))
    return [
        got.row(
            f"{'' if bar else '  '}{title(FILES, options)}, {EPOCHS[epoch]}, {mode}: speed / native",
            f"{epoch} {mode}",
            bar,
        )
        for epoch, mode, bar in ROWS
    ]
