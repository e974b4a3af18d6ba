"""Rows of an image tree in random order, epoch 1: is the source ever idle, and does the job wait for more than it must?

The job computes (sleeps) COMPUTE times as long as the shared bandwidth needs for its bytes. What it is held against is
the longer of this and of copying the tree by hand with 8 `cp` at once (as in the paper), from the same source to the
cache disk.

Busy is the share of the time, from the start of the job until all is staged, in which the source has at least one
operation under way (`busy_us` of slowfs: in one of its places, neither waiting for one nor answered). It says that the
source never waits for us, not that it is used to the full: that is what the rows of bandwidth and of the mean number
of operations under way say.
"""

import shutil
import time
from pathlib import Path
from typing import Any

from scripts.benchmarks.async_io_files import FileSet, check_followed, job, wait_staged
from scripts.benchmarks.common import SlowFs, Work, cpu_seconds, hfs_mount, run, seconds, slowfs
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.mount_images import FILES, FILES_QUICK, image_folder
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_least, at_most, measured_rows

PRESETS = ("lustre", "busy")
WORKERS = 2
COPIES = 8
COPY_FILES = 50
"""Files one `cp` is given: its start is then 1 % of its time, and the last ones end together."""

COMPUTE = 1.5
"""Computing on a byte takes as often the time that the source's shared bandwidth needs for it: a job that a source in
full use would not hold up."""

COPY_LIMIT_S = 600.0


def copy_by_hand(work: Work, files: FileSet, source: SlowFs) -> float:
    """Seconds of COPIES `cp` at once to the cache disk."""
    target = work.new("copied")
    for folder in {target / Path(name).parent for name in files.names}:
        folder.mkdir(parents=True, exist_ok=True)  # two `cp` that make the same one at once fail
    copy = (
        f"cd '{source.path}' && xargs -a '{files.list}' -d '\\n' -P {COPIES} -n {COPY_FILES} cp --parents -t '{target}'"
    )
    begin = time.monotonic()
    run("sh", "-c", copy, limit_s=COPY_LIMIT_S)
    spent = time.monotonic() - begin
    shutil.rmtree(target)
    return spent


def use_of(before: dict[str, Any], after: dict[str, Any], spent: float) -> tuple[float, float, float]:
    """Of the counters of the source around `spent` seconds: share of the time in which it was busy, share of its
    bandwidth, mean number of operations under way."""
    busy = (after["busy_us"] - before["busy_us"]) / 1e6 / spent
    read = (after["read_bytes"] - before["read_bytes"]) / spent / after["settings"]["shared_bps"]
    latency = sum(after["latency_us"].values()) - sum(before["latency_us"].values())
    under_way = (latency + after["transfer_us"] - before["transfer_us"]) / 1e6 / spent
    return busy, read, under_way


class Runs:
    """The runs of one preset."""

    def __init__(self, files: FileSet, preset: str, got: Results) -> None:
        self.files, self.preset, self._got = files, preset, got
        self.compute_s = 0.0

    def add(self, **values: float) -> None:
        for name, value in values.items():
            self._got.add(f"{self.preset} {name}", value)

    def keys(self, *names: str) -> list[str]:
        return [f"{self.preset} {name}" for name in names]

    def one(self, work: Work, seed: int) -> None:
        with slowfs(work, self.files.folder, self.preset) as source:
            before = source.counters()
            self.compute_s = COMPUTE * self.files.bytes / before["settings"]["shared_bps"]
            copy_s = copy_by_hand(work, self.files, source)
            busy, share, under_way = use_of(before, source.counters(), copy_s)
            self.add(copy_s=copy_s, copy_busy=busy, copy_share=share, copy_under_way=under_way)
        least_s = max(copy_s, self.compute_s)
        with slowfs(work, self.files.folder, self.preset) as source, job(self.files, source.path, WORKERS) as program:
            answer = program.epoch(1, seed, self.compute_s / self.files.batches)
            self.add(
                direct_s=seconds(answer), direct_time=seconds(answer) / least_s, direct_exposed=answer["exposed_s"]
            )
        for name, hint in (("mount", False), ("hint", True)):
            with self._got.attempt(*self.keys(*(f"{name}_{value}" for value in VALUES))):
                self.mounted(work, seed, name, hint, least_s)

    def mounted(self, work: Work, seed: int, name: str, hint: bool, least_s: float) -> None:
        with (
            slowfs(work, self.files.folder, self.preset) as source,
            hfs_mount(work, source.path) as mount,
            job(self.files, mount.path, WORKERS, hint=hint) as program,
        ):
            before, cpu_s = source.counters(), cpu_seconds(mount.pid)
            program.begin(1, seed, self.compute_s / self.files.batches)
            staged_at = wait_staged(program, source, mount, self.files.bytes)
            after = source.counters()
            answer = program.end()
            if hint:
                check_followed(mount, 1)
            cpu_s = cpu_seconds(mount.pid) - cpu_s
            staged_s = staged_at - answer["begin_s"]
            busy, share, under_way = use_of(before, after, staged_s)
            values = {
                "busy": busy,
                "share": share,
                "under_way": under_way,
                "staged_s": staged_s,
                "s": seconds(answer),
                "time": seconds(answer) / least_s,
                "exposed": answer["exposed_s"],
                "bytes": source.counters()["read_bytes"] / self.files.bytes,
                "cpu": cpu_s / len(self.files.names) * 1000,
            }
            self.add(**{f"{name}_{value}": values[value] for value in VALUES})

    def rows(self, what: str) -> list[Row]:
        got, preset = self._got, self.preset
        rows = [
            got.row(
                f"{what}, {preset}, epoch 1, hinted: source busy until all is staged",
                f"{preset} hint_busy",
                at_least(0.9),
            ),
            *self._of("hint"),
            got.row("  time / longer of copying by hand and computing", f"{preset} hint_time", at_most(1.1)),
            got.row("  hfs, hinted", f"{preset} hint_s", unit="s"),
            got.row(f"  copying by hand, {COPIES} cp at once", f"{preset} copy_s", unit="s"),
            got.row("    source busy", f"{preset} copy_busy"),
            got.row("    share of the source's bandwidth", f"{preset} copy_share"),
            got.row("    mean number of operations under way", f"{preset} copy_under_way", unit=""),
            got.row("  exposed I/O, hinted", f"{preset} hint_exposed", unit="s"),
        ]
        rows += [
            got.row("  the same without a hint: source busy until all is staged", f"{preset} mount_busy"),
            *self._of("mount"),
            got.row("  time / longer of copying by hand and computing", f"{preset} mount_time"),
            got.row("  exposed I/O", f"{preset} mount_exposed", unit="s"),
            got.row("  direct: time / longer of copying by hand and computing", f"{preset} direct_time"),
            got.row("  exposed I/O", f"{preset} direct_exposed", unit="s"),
        ]
        return measured_rows(rows)

    def _of(self, name: str) -> list[Row]:
        got, preset = self._got, self.preset
        return [
            got.row("  until all is staged", f"{preset} {name}_staged_s", unit="s"),
            got.row("  share of the source's bandwidth until then", f"{preset} {name}_share"),
            got.row("  mean number of operations under way until then", f"{preset} {name}_under_way", unit=""),
            got.row("  source bytes / data", f"{preset} {name}_bytes"),
            got.row("  CPU time of the daemon a file", f"{preset} {name}_cpu", unit="ms"),
        ]


VALUES = ("busy", "share", "under_way", "staged_s", "s", "time", "exposed", "bytes", "cpu")


def images(work: Work, options: Options, command: str) -> list[Row]:
    files = FileSet(work, image_folder(work, options))
    rows: list[Row] = []
    for preset in PRESETS:
        got = Results(command)
        runs = Runs(files, preset, got)
        for seed in range(options.runs):
            runs.one(work, seed)
        computing = f"computing {runs.compute_s:.3g} s (sleep)"
        what = f"{files}, {WORKERS} workers, {computing}{options.scale(FILES, FILES_QUICK)}"
        rows += runs.rows(what)
    return rows
