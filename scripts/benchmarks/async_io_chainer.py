"""The benchmark of 1 000 mini-batches of Serizawa and Tatebe: 32 files of 42 KB each, in random order, first epoch.

As in the paper nothing is computed and nothing decoded, every row is the job's first look at the files, and the time
begins before the job's workers are started. "SSD only" has a copy of all on the cache disk before it begins (its page
cache dropped, the time of copying not counted); "direct" reads the source; "mount" and "mount + hint" begin with an
empty cache. The paper varies the number of workers, and compares the best of each.
"""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from scripts.benchmarks import data
from scripts.benchmarks.async_io_files import BATCH, FileSet, check_followed, job
from scripts.benchmarks.common import Mount, Work, cpu_seconds, files_at, forget, hfs_mount, seconds, slowfs
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.mount_images import copy_of
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_least, at_most, measured_rows

PRESET = "lustre"
FOLDERS, FOLDERS_QUICK = 32, 2
MEAN_BYTES = 42_900
"""1.31 MiB a batch of 32, the paper's mean of ImageNet."""

WORKERS = (2, 8)
SPEED_UP = 1.26
"""The paper's own, of 116.35 s over 92.4 s."""


@dataclass(frozen=True)
class Bars:
    """What the rows of each number of workers are held against; without a hint only where something is named."""

    hinted: dict[int, float]
    first: float
    unhinted: dict[int, float] = field(default_factory=dict)
    unhinted_first: float | None = None


PAPER = Bars(hinted=dict.fromkeys(WORKERS, SPEED_UP), first=1.2)


def batch_folder(work: Work, options: Options) -> Path:
    folders = options.size(FOLDERS, FOLDERS_QUICK)
    make = partial(data.make_batches, folders=folders, mean_bytes=MEAN_BYTES)
    return data.stamped(work.data / f"batches-{folders}", {"folders": folders, "mean": MEAN_BYTES}, make)


class Runs:
    def __init__(self, files: FileSet, copy: Path, got: Results) -> None:
        self._files, self._copy, self._got = files, copy, got

    def _epoch(self, root: Path, name: str, workers: int, seed: int, hinted: Mount | None = None) -> None:
        with job(self._files, root, workers, hint=hinted is not None) as program:
            answer = program.epoch(1, seed)
            if hinted is not None:
                check_followed(hinted, 1)
        self._got.add(f"{name}_s {workers}", seconds(answer))
        self._got.add(f"{name}_first {workers}", answer["first_s"])

    def one(self, work: Work, workers: int, seed: int) -> None:
        forget(files_at(self._copy))
        self._epoch(self._copy, "ssd", workers, seed)
        with slowfs(work, self._files.folder, PRESET) as source:
            self._epoch(source.path, "direct", workers, seed)
        for name in ("mount", "hint"):
            keys = [f"{name}_{value} {workers}" for value in ("s", "first", "time", "first_time", "cpu")]
            with self._got.attempt(*keys):
                self._mounted(work, name, workers, seed)

    def _mounted(self, work: Work, name: str, workers: int, seed: int) -> None:
        got = self._got
        with slowfs(work, self._files.folder, PRESET) as source, hfs_mount(work, source.path) as mount:
            cpu_s = cpu_seconds(mount.pid)
            self._epoch(mount.path, name, workers, seed, mount if name == "hint" else None)
            cpu_s = cpu_seconds(mount.pid) - cpu_s
        got.add(f"{name}_cpu {workers}", cpu_s / len(self._files.names) * 1000)
        got.add(f"{name}_time {workers}", got.last(f"direct_s {workers}") / got.last(f"{name}_s {workers}"))
        got.add(
            f"{name}_first_time {workers}", got.last(f"{name}_first {workers}") / got.last(f"direct_first {workers}")
        )


def _rows(got: Results, what: str, workers: int, bars: Bars) -> list[Row]:
    unhinted = at_least(bars.unhinted[workers]) if workers in bars.unhinted else None
    unhinted_first = at_most(bars.unhinted_first) if bars.unhinted_first is not None else None
    rows = [
        got.row(
            f"{what}, {workers} workers: mount + hint, speed-up over direct",
            f"hint_time {workers}",
            at_least(bars.hinted[workers]),
        ),
        got.row("  first batch of mount + hint: time / direct", f"hint_first_time {workers}", at_most(bars.first)),
        got.row("  mount without a hint: speed-up over direct", f"mount_time {workers}", unhinted),
        got.row("  first batch of it: time / direct", f"mount_first_time {workers}", unhinted_first),
    ]
    names = (("SSD only", "ssd"), ("direct", "direct"), ("mount", "mount"), ("mount + hint", "hint"))
    for title, name in names:
        rows.append(got.row(f"  {title}", f"{name}_s {workers}", unit="s"))
        rows.append(got.row(f"  {title}: first batch", f"{name}_first {workers}", unit="s"))
    for title, name in names[2:]:
        rows.append(got.row(f"  {title}: CPU time of the daemon a file", f"{name}_cpu {workers}", unit="ms"))
    return measured_rows(rows)


def measured(work: Work, options: Options, command: str, bars: Bars) -> tuple[Results, str, list[Row]]:
    """The results, what was read, and the rows of each number of workers."""
    folder = batch_folder(work, options)
    files = FileSet(work, folder)
    got = Results(command)
    runs = Runs(files, copy_of(folder), got)
    for seed in range(options.runs):
        for workers in WORKERS:
            runs.one(work, workers, seed)
        with got.attempt("best"):
            direct, hint = (min(got.last(f"{name}_s {workers}") for workers in WORKERS) for name in ("direct", "hint"))
            got.add("best", direct / hint)
    what = f"{files.batches} batches of {BATCH}, {files}, {PRESET}{options.scale(FOLDERS, FOLDERS_QUICK)}"
    return got, what, [row for workers in WORKERS for row in _rows(got, what, workers, bars)]


def chainer(work: Work, options: Options, command: str) -> list[Row]:
    got, what, rows = measured(work, options, command, PAPER)
    return [got.row(f"{what}, best cases: mount + hint, speed-up over direct", "best", at_least(SPEED_UP)), *rows]
