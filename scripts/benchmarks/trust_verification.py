"""Rows of what verification costs: the first epoch of a later job over a warm cache, with it and without.

A new daemon each time, the cache's pages cold (as after a reboot) or in memory. `verify=first-use` is the default;
`verify=changed` believes what has its stamp. Both in turns, the ratio taken of each pair.
"""

import itertools
import statistics
from pathlib import Path

from scripts.benchmarks import data
from scripts.benchmarks.common import HFS, Work, forget, hfs_mount, objects_of, preload, reader, run, seconds
from scripts.benchmarks.options import Options
from scripts.benchmarks.readers.pattern import block
from scripts.benchmarks.table import Row, at_most, median_row

PAIRS, PAIRS_QUICK = 9, 3
LARGE_BYTES, LARGE_BYTES_QUICK = 512 << 20, 256 << 20
SMALL, SMALL_QUICK = 3000, 600
SMALL_BYTES = 110_000
BLOCK_BYTES = 1 << 20
PIECE_BYTES = 16 << 20
VERIFY = {True: "first-use", False: "changed"}
MODES = ("auto", "daemon")


def verification(work: Work, options: Options, command: str) -> list[Row]:
    rows = []
    small = options.size(SMALL, SMALL_QUICK)
    large = options.size(LARGE_BYTES, LARGE_BYTES_QUICK)
    kinds = {f"a file of {large >> 20} MiB": _large(work, large), f"{small} files of 110 KB": _small(work, small)}
    for (what, folder), mode in itertools.product(kinds.items(), MODES):
        cache = work.new("cache")
        with hfs_mount(work, folder, cache, ("--io-mode", mode)) as mount:
            run(HFS, "cache", "warm", mount.path)
        for cold in (True, False):
            found = _pairs(work, folder, cache, mode, cold=cold, pairs=options.size(PAIRS, PAIRS_QUICK))
            ratios = [on / off for on, off in found]
            pages = "cold" if cold else "in memory"
            name = f"{what}, io-mode {mode}, pages {pages}: verified / not"
            rows.append(median_row(name, ratios, "", command, at_most(1.1)))
            rows.append(median_row("  verified", [statistics.median(on for on, _ in found)], "s", command))
    return rows


def _pairs(work: Work, folder: Path, cache: Path, mode: str, *, cold: bool, pairs: int) -> list[tuple[float, float]]:
    """Seconds with verification, and without."""
    found = []
    for number in range(pairs):
        took: dict[bool, float] = {}
        for on in (True, False) if number % 2 else (False, True):
            options = ("--io-mode", mode, "-o", f"verify={VERIFY[on]}", "-o", "scrub=off")
            with hfs_mount(work, folder, cache, options) as mount, reader("blocks.py") as program:
                # Now, and not before: a kernel that reclaims idle pages by itself takes some within the second.
                (forget if cold else _preload)(objects_of(cache))
                paths = [str(mount.path / path.relative_to(folder)) for path in objects_of(folder)]
                if len(paths) == 1:
                    took[on] = seconds(program.do(sequential=paths[0], size=BLOCK_BYTES))
                else:
                    took[on] = seconds(program.do(files=paths))
        found.append((took[True], took[False]))
    return found


def _preload(paths: list[Path]) -> None:
    for path in paths:
        preload(path)


def _large(work: Work, size: int) -> Path:
    def make(root: Path) -> None:
        with (root / "0").open("wb") as file:
            for offset in range(0, size, PIECE_BYTES):
                file.write(block(0, offset, PIECE_BYTES))

    return data.stamped(work.data / f"verification-large-{size >> 20}", {"bytes": size}, make)


def _small(work: Work, count: int) -> Path:
    def make(root: Path) -> None:
        for number in range(count):
            path = root / str(number % 20) / str(number)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(block(number, 0, SMALL_BYTES))

    return data.stamped(work.data / f"verification-small-{count}", {"files": count, "bytes": SMALL_BYTES}, make)
