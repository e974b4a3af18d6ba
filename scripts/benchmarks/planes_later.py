"""Rows of the first epoch of a later job: all is staged, and the daemon has just been started."""

from scripts.benchmarks.common import Work
from scripts.benchmarks.fastpath_access import duel
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.fastpath_staged import Staged, small_folder, staged, title
from scripts.benchmarks.options import Options
from scripts.benchmarks.planes_warm import ONE
from scripts.benchmarks.table import Row, at_least, at_most

MODES = {"auto": 0.18, "stateless": 0.2, "daemon": None, "auto --immutable": None}
"""Each with its bar."""


def _one(data: Staged, mode: str, options: Options, seed: int, got: Results) -> None:
    wanted, *more = mode.split()
    if wanted == "stateless" or more:
        _keep(data, options, seed)
    with duel(ONE, data.native, options, seed) as reads:
        reads.pass_s(data.native, once=True)  # the cache's own files are in memory too: somebody has just written them
        native_s = min(reads.pass_s(data.native, once=True) for _ in range(3))
        with data.mounted(wanted, *more) as mount:
            before = mount.status()["counters"]["source_stats"]["value"]
            got.add(mode, native_s / reads.pass_s(data.place(mount.path), once=True))
            stats = mount.status()["counters"]["source_stats"]["value"] - before
            got.add(f"{mode} stats", stats / len(data.names))


def _keep(data: Staged, options: Options, seed: int) -> None:
    """A job before this one that was told that the source never changes: attributes are kept. Others have them
    forgotten."""
    with data.mounted("auto", "--immutable") as mount, duel(ONE, data.native, options, seed) as reads:
        reads.pass_s(data.place(mount.path), once=True)


def later(work: Work, options: Options, command: str) -> list[Row]:
    got = Results(command)
    with staged(work, small_folder(work, options)) as data:
        for seed in range(options.runs):
            for mode in MODES:
                with got.attempt(mode, f"{mode} stats"):
                    _one(data, mode, options, seed, got)
    rows = []
    for mode, bar in MODES.items():
        what = f"first epoch of a later job, {title(ONE, options)}, {mode}"
        rows.append(got.row(f"{what}: speed / native", mode, at_least(bar) if bar is not None else None))
        if mode != "daemon":
            none = at_most(0.01) if "immutable" in mode or mode == "stateless" else None
            rows.append(got.row("  stats of the source a file", f"{mode} stats", none, ""))
    return rows
