"""Rows of the same reads through rclone and bindfs, and of hfs against rclone, all of data that was read before.

hfs / rclone is the ratio of their speeds, each against native reads at the same time, within one run.
"""

from scripts.benchmarks.common import Work
from scripts.benchmarks.fastpath_access import FILES, OF_LARGE, RANDOM_128K, Access, duel
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.fastpath_rivals import RIVALS, install, rival
from scripts.benchmarks.fastpath_staged import Staged, first_and_again, large_folder, small_folder, staged, title
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_least

TIMES_FASTER = at_least(5)

MODES = {RANDOM_128K: ("auto", "passthrough", "daemon"), FILES: ("stateless", "auto", "passthrough", "daemon")}
"""What is held against rclone, in which modes; the bar is for the first of them. `auto` is what people get who say
nothing, stateless what is meant for small files."""


def _one(work: Work, data: Staged, accesses: tuple[Access, ...], got: Results, options: Options, seed: int) -> None:
    """One run: the rivals one after the other, then the modes of hfs."""
    for name in RIVALS:
        keys = [f"{name} {access.what}" for access in accesses]
        with got.attempt(*keys), rival(work, name, data.source) as path:
            for access, key in zip(accesses, keys, strict=True):
                with duel(access, data.native, options, seed) as reads:
                    got.add(key, reads.again(data.place(path)))
    for access in accesses:
        for mode in MODES.get(access, ()):
            with got.attempt(f"{mode} {access.what}"):
                other = got.last(f"rclone {access.what}")
                _, again = first_and_again(data, access, mode, options, seed)
                got.add(f"{mode} {access.what}", again / other)


def _rows(what: str, auto: str, access: Access, got: Results) -> list[Row]:
    rows = [got.row(f"{what}, {name}, read before: speed / native", f"{name} {access.what}") for name in RIVALS]
    for position, mode in enumerate(MODES.get(access, ())):
        name = f"hfs ({mode}{f': {auto}' if mode == 'auto' else ''}) / rclone"
        if position == 0:
            rows.append(got.row(f"{what}, read before: {name}", f"{mode} {access.what}", TIMES_FASTER))
        else:
            rows.append(got.row(f"  {name}", f"{mode} {access.what}"))
    return rows


def peers(work: Work, options: Options, command: str) -> list[Row]:
    install()
    got = Results(command)
    rows = []
    for folder, accesses in ((large_folder(work, options), OF_LARGE), (small_folder(work, options), (FILES,))):
        with staged(work, folder) as data:
            for seed in range(options.runs):
                _one(work, data, accesses, got, options, seed)
            for access in accesses:
                rows += _rows(title(access, options), data.auto, access, got)
    return rows
