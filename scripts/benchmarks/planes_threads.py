"""Rows of the data plane's threads: how many serve how much, and how long they wait for each other."""

import os
import statistics
import time

from scripts.benchmarks.common import Mount, Work
from scripts.benchmarks.fastpath_access import TURNS, duel
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.fastpath_staged import Staged, small_folder, staged, title
from scripts.benchmarks.options import Options
from scripts.benchmarks.planes_warm import FOUR
from scripts.benchmarks.table import Row, at_most

THREADS = (1, 2, 4)


def _waited_ns(mount: Mount) -> int:
    return int(mount.status()["data_plane"]["lock_wait_ns"])


def _one(data: Staged, threads: int, options: Options, seed: int, got: Results) -> None:
    with (
        data.mounted("auto", "-o", f"answer-threads={threads}") as mount,
        duel(FOUR, data.native, options, seed) as reads,
    ):
        place = data.place(mount.path)
        for _ in range(2):
            reads.pass_s(place, once=True)  # brings pages, and what Python has to be asked for once
        waited_ns, began_ns = _waited_ns(mount), time.monotonic_ns()
        spent_s = [reads.pass_s(place, once=True) for _ in range(TURNS)]
        passed_ns = time.monotonic_ns() - began_ns
        opens = len(data.names) * FOUR.processes
        # Of each file the open and the close are requests; its pages are in memory.
        got.add(f"{threads} requests", 2 * opens / statistics.median(spent_s))
        got.add(f"{threads} waiting", (_waited_ns(mount) - waited_ns) / passed_ns / threads * 100)


def threads(work: Work, options: Options, command: str) -> list[Row]:
    got = Results(command)
    with staged(work, small_folder(work, options)) as data:
        for seed in range(options.runs):
            for count in THREADS:
                with got.attempt(f"{count} requests", f"{count} waiting"):
                    _one(data, count, options, seed, got)
    rows = []
    for count in THREADS:
        what = f"{title(FOUR, options)}, {count} threads on {len(os.sched_getaffinity(0))} cores"
        rows += [
            got.row(f"{what}: requests", f"{count} requests", None, "/s"),
            got.row("  share of their time that they wait for locks", f"{count} waiting", at_most(5), "%"),
        ]
    return rows
