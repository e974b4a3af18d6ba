"""Rows of cold listings: the names of a huge folder of a slow source, through a fresh mount and directly.

Both sides start with a fresh slowfs, of which nothing is in memory.
"""

from pathlib import Path

from scripts.benchmarks import data
from scripts.benchmarks.common import BenchError, Work, hfs_mount, reader, seconds, slowfs
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_most

NAMES, NAMES_QUICK = 100_000, 10_000
STATS, STATS_QUICK = 10_000, 1_000
PRESET = "lustre"


def _folder(work: Work, count: int) -> Path:
    def make(root: Path) -> None:
        for number in range(count):
            (root / f"{number:06d}.jpg").touch()

    return data.stamped(work.data / f"names-{count}", {"count": count}, make)


def _list_s(path: Path, count: int, stat: bool) -> float:
    with reader("listing.py") as program:
        answer = program.do(folder=str(path), stat=stat)
    if answer["names"] != count:
        raise BenchError(f"{answer['names']} names were listed of {count}: {answer.get('error', 'no error')}")
    return seconds(answer)


def _one(work: Work, folder: Path, count: int, stat: bool) -> tuple[float, float]:
    """Seconds directly and through hfs."""
    with slowfs(work, folder, PRESET) as source:
        direct = _list_s(source.path, count, stat)
    with slowfs(work, folder, PRESET) as source, hfs_mount(work, source.path) as mount:
        return direct, _list_s(mount.path, count, stat)


def listing(work: Work, options: Options, command: str) -> list[Row]:
    got = Results(command)
    names, stats = options.size(NAMES, NAMES_QUICK), options.size(STATS, STATS_QUICK)
    for _ in range(options.runs):
        for key, count, stat in (("names", names, False), ("stats", stats, True)):
            with got.attempt(key, f"{key} direct", f"{key} hfs"):
                direct, spent = _one(work, _folder(work, count), count, stat)
                got.add(key, spent / direct)
                got.add(f"{key} direct", direct)
                got.add(f"{key} hfs", spent)
    rows = []
    for key, words, bar in (
        ("names", f"{NAMES} names with their types, no stat{options.scale(NAMES, NAMES_QUICK)}", at_most(1.2)),
        ("stats", f"{STATS} names, stat of each{options.scale(STATS, STATS_QUICK)}", None),
    ):
        rows += [
            got.row(f"cold scandir of {words}, {PRESET}: time / direct", key, bar),
            got.row("  direct", f"{key} direct", unit="s"),
            got.row("  hfs", f"{key} hfs", unit="s"),
        ]
    return rows
