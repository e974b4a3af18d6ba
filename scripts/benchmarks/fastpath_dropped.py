"""Rows of staged data that is in nobody's page cache: what is left of the ratios when memory does not help.

Before each pass of a ratio the pages of the staged files and of the files of the mount are dropped, of no
others. With O_DIRECT the reader goes past its own page cache, too.
"""

from dataclasses import replace

from scripts.benchmarks.common import Mount, Work, files_at, forget
from scripts.benchmarks.fastpath_access import FILES, MMAP, RANDOM_4K, RANDOM_128K, SEQUENTIAL, Access, duel
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.fastpath_staged import Staged, large_folder, small_folder, staged, title
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row

BLOCKS, PAGES = 2000, 4000
"""Parts of the file: a disk needs a tenth of a millisecond and more for each."""

OF_LARGE_COLD = (
    replace(RANDOM_128K, count=BLOCKS),
    replace(RANDOM_128K, what=f"{RANDOM_128K.what}, O_DIRECT", count=BLOCKS, direct=True),
    replace(RANDOM_4K, count=PAGES),
    SEQUENTIAL,
    replace(SEQUENTIAL, what=f"{SEQUENTIAL.what}, O_DIRECT", direct=True),
    replace(MMAP, count=PAGES),
)


def _drop(data: Staged, mount: Mount) -> None:
    """Those of the mount first: it may have the others in use."""
    forget(files_at(mount.path))
    forget(data.copies())


def _one(data: Staged, mode: str, accesses: tuple[Access, ...], got: Results, options: Options, seed: int) -> None:
    """One run of one mode: every access natively and through one mount, which has been told all names."""
    with got.attempt(*(f"{access.what} {mode}" for access in accesses)), data.mounted(mode) as mount:
        for access in accesses:
            with duel(access, data.native, options, seed) as reads:
                ratio = reads.cold(data.place(mount.path), lambda: _drop(data, mount))
                got.add(f"{access.what} {mode}", ratio)


def dropped(work: Work, options: Options, command: str) -> list[Row]:
    got = Results(command)
    rows = []
    for folder, accesses, modes in (
        (large_folder(work, options), OF_LARGE_COLD, ("passthrough", "daemon")),
        (small_folder(work, options), (FILES,), ("passthrough", "daemon", "stateless")),
    ):
        with staged(work, folder) as data:
            for seed in range(options.runs):
                for mode in modes:
                    _one(data, mode, accesses, got, options, seed)
        rows += [
            got.row(
                f"{title(access, options)}, {mode}, page cache dropped for both: speed / native",
                f"{access.what} {mode}",
            )
            for access in accesses
            for mode in modes
        ]
    return rows
