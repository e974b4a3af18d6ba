"""Batches of small files from a simulated Lustre: the first epoch of a job with 2, 8 and 16 workers."""

from pathlib import Path

from scripts.benchmarks.async_io_chainer import FOLDERS, FOLDERS_QUICK, PRESET, batch_folder
from scripts.benchmarks.async_io_files import BATCH, FileSet, check_followed, job
from scripts.benchmarks.common import Mount, Work, cpu_seconds, hfs_mount, seconds, slowfs
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Bar, Row, at_least, at_most

WORKERS = (2, 8, 16)
SPEED_UP = {"mount": {2: 1.5, 8: 1.1, 16: 1.0}, "hint": {2: 6.0, 8: 3.0, 16: 2.0}}
FIRST = {2: 1.1, 8: 1.1}
PLACES, LATENCY_S = 32, 0.004
"""Requests that the simulator serves at a time, and what a file takes: look-up, open and read."""


def _epoch(files: FileSet, root: Path, key: str, seed: int, got: Results, hinted: Mount | None = None) -> None:
    with job(files, root, int(key.split()[1]), hint=hinted is not None) as program:
        answer = program.epoch(1, seed)
        if hinted is not None:
            check_followed(hinted, 1)
    got.add(f"{key} s", seconds(answer))
    got.add(f"{key} first", answer["first_s"])


def _mounted(work: Work, files: FileSet, name: str, workers: int, seed: int, got: Results) -> None:
    key, direct = f"{name} {workers}", f"direct {workers}"
    with slowfs(work, files.folder, PRESET) as source, hfs_mount(work, source.path) as mount:
        before_s = cpu_seconds(mount.pid)
        _epoch(files, mount.path, key, seed, got, mount if name == "hint" else None)
        got.add(f"{key} cpu", (cpu_seconds(mount.pid) - before_s) / len(files.names) * 1e6)
    got.add(f"{key} x", got.last(f"{direct} s") / got.last(f"{key} s"))
    got.add(f"{key} first x", got.last(f"{key} first") / got.last(f"{direct} first"))
    got.add(f"{key} possible", got.last(f"{key} s") / (len(files.names) * LATENCY_S / PLACES))


def batches(work: Work, options: Options, command: str) -> list[Row]:
    """Direct, through the mount, and with a hint, in turns."""
    files = FileSet(work, batch_folder(work, options))
    got = Results(command)
    for seed in range(options.runs):
        for workers in WORKERS:
            with slowfs(work, files.folder, PRESET) as source:
                _epoch(files, source.path, f"direct {workers}", seed, got)
            for name in SPEED_UP:
                key = f"{name} {workers}"
                with got.attempt(*(f"{key} {what}" for what in ("s", "first", "cpu", "x", "first x", "possible"))):
                    _mounted(work, files, name, workers, seed, got)
    what = f"{files.batches} batches of {BATCH}, {files}, {PRESET}{options.scale(FOLDERS, FOLDERS_QUICK)}"
    return [row for workers in WORKERS for name in SPEED_UP for row in _rows(got, what, name, workers)]


def _rows(got: Results, what: str, name: str, workers: int) -> list[Row]:
    key = f"{name} {workers}"
    first: Bar | None = at_most(FIRST[workers]) if workers in FIRST else None
    possible = at_most(1.7) if (name, workers) == ("hint", 8) else None
    how = "hinted" if name == "hint" else "no hint"
    return [
        got.row(
            f"{what}, {workers} workers, {how}: speed-up over direct", f"{key} x", at_least(SPEED_UP[name][workers])
        ),
        got.row("  time / what the simulator's places and latencies allow", f"{key} possible", possible),
        got.row("  first batch: time / direct", f"{key} first x", first),
        got.row("  CPU of the daemon a file", f"{key} cpu", None, "us"),
        got.row("  time", f"{key} s", None, "s"),
        got.row("  time of direct", f"direct {workers} s", None, "s"),
    ]
