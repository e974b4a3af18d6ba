"""Rows of random reads of one large staged file through a new mount: nothing of it is in the kernel's pages yet."""

import statistics
from dataclasses import replace

from scripts.benchmarks.common import Work, preload
from scripts.benchmarks.fastpath_access import RANDOM_4K, RANDOM_128K, Access, Place, duel
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.fastpath_staged import Staged, large_folder, staged, title
from scripts.benchmarks.options import Options
from scripts.benchmarks.planes_floor import floor
from scripts.benchmarks.planes_warm import THREADS
from scripts.benchmarks.table import Row, at_least

READS = (replace(RANDOM_128K, count=3000), replace(RANDOM_4K, count=30_000))
"""Not all of the file: others push pages of so much out again before they are read natively."""

PAIRS = 3
"""Of one run: a new floor and a new mount each."""


def _first(data: Staged, access: Access, options: Options, seed: int, got: Results) -> None:
    spent_s: dict[str, list[float]] = {"native": [], "floor": [], "mount": []}
    with duel(access, data.native, options, seed) as reads:
        for _ in range(PAIRS):
            preload(data.cache)
            spent_s["native"].append(reads.pass_s(data.native, once=True))
            with floor(data.work, data.native.root, THREADS) as lowest:
                spent_s["floor"].append(reads.pass_s(Place(lowest, data.native.names), once=True))
            with data.mounted("daemon") as mount:
                spent_s["mount"].append(reads.pass_s(data.place(mount.path), once=True))
    median = {name: statistics.median(times_s) for name, times_s in spent_s.items()}
    got.add(f"{access.what} floor", median["floor"] / median["mount"])
    got.add(f"{access.what} native", median["native"] / median["mount"])
    got.add(f"{access.what} floor/native", median["native"] / median["floor"])


def random(work: Work, options: Options, command: str) -> list[Row]:
    """The first time, in mode daemon: what a plain user has."""
    got = Results(command)
    with staged(work, large_folder(work, options)) as data:
        for seed in range(options.runs):
            for access in READS:
                with got.attempt(*(f"{access.what} {what}" for what in ("floor", "native", "floor/native"))):
                    _first(data, access, options, seed, got)
    rows = []
    for access in READS:
        words = f"{title(access, options)}, daemon, first time"
        bar = at_least(0.7)
        rows.append(got.row(f"{words}: speed / floor with {THREADS} threads", f"{access.what} floor", bar))
        rows.append(got.row("  speed / native", f"{access.what} native"))
        rows.append(got.row("  floor / native", f"{access.what} floor/native"))
    return rows
