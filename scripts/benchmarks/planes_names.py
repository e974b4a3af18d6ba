"""Rows of names: `find -size` lists every folder and looks every name up, over a mount that has never seen one.

The source is local and in memory, where every microsecond is ours, or slowfs, where it is about what runs beside what.
"""

import subprocess
import time
from pathlib import Path

from scripts.benchmarks import data
from scripts.benchmarks.common import BenchError, Work, hfs_mount, slowfs
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.options import Options
from scripts.benchmarks.planes_warm import cpu_ns
from scripts.benchmarks.table import Row, at_most

FOLDER = 1000
"""Names in each folder: those of ImageNet have 1 300."""

FOLDERS, FOLDERS_QUICK = 1000, 50
SLOW_FOLDERS, SLOW_FOLDERS_QUICK = 10, 2
PRESET = "lustre"


def tree(work: Work, folders: int) -> Path:
    """So many folders of `FOLDER` empty files each."""

    def make(root: Path) -> None:
        for folder in range(folders):
            inside = root / f"{folder:04d}"
            inside.mkdir()
            for number in range(FOLDER):
                (inside / f"{number:06d}.jpg").touch()

    return data.stamped(work.data / f"tree-{folders}", {"folders": folders, "names": FOLDER}, make)


def _find_s(path: Path, folders: int) -> float:
    started_s = time.monotonic()
    found = subprocess.run(["find", path, "-type", "f", "-size", "-1"], capture_output=True, check=False)
    spent_s = time.monotonic() - started_s
    names = found.stdout.count(b"\n")
    if found.returncode or names != folders * FOLDER:
        raise BenchError(f"find named {names} files of {folders * FOLDER}: {found.stderr.decode()[:200]}")
    return spent_s


def _resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise BenchError(f"process {pid} has no memory")


def _in_memory(work: Work, folders: int, got: Results) -> None:
    source = tree(work, folders)
    _find_s(source, folders)  # brings it into memory
    count = folders * FOLDER
    with hfs_mount(work, source) as mount:
        bytes_before, cpu_before_ns = _resident_bytes(mount.pid), cpu_ns(mount.pid)
        spent_s = _find_s(mount.path, folders)
        got.add("names", spent_s / count * 1e6)
        got.add("names cpu", (cpu_ns(mount.pid) - cpu_before_ns) / count / 1e3)
        got.add("names bytes", (_resident_bytes(mount.pid) - bytes_before) / count)
    got.add("names native", _find_s(source, folders) / count * 1e6)


def _slow(work: Work, folders: int, got: Results) -> None:
    folder = tree(work, folders)
    with slowfs(work, folder, PRESET) as source:
        direct_s = _find_s(source.path, folders)
    with slowfs(work, folder, PRESET) as source, hfs_mount(work, source.path) as mount:
        got.add("slow", _find_s(mount.path, folders) / direct_s)
    got.add("slow direct", direct_s)


def names(work: Work, options: Options, command: str) -> list[Row]:
    got = Results(command)
    many, few = options.size(FOLDERS, FOLDERS_QUICK), options.size(SLOW_FOLDERS, SLOW_FOLDERS_QUICK)
    for _ in range(options.runs):
        with got.attempt("names", "names cpu", "names bytes", "names native"):
            _in_memory(work, many, got)
        with got.attempt("slow", "slow direct"):
            _slow(work, few, got)
    what = (
        f"find -size of {FOLDERS * FOLDER} names{options.scale(FOLDERS, FOLDERS_QUICK)}, never seen, source in memory"
    )
    slow = f"find -size of {SLOW_FOLDERS * FOLDER} names{options.scale(SLOW_FOLDERS, SLOW_FOLDERS_QUICK)}, {PRESET}"
    return [
        got.row(f"{what}: time a name", "names", at_most(15), "us"),
        got.row("  native", "names native", None, "us"),
        got.row("  CPU of the daemon a name", "names cpu", None, "us"),
        got.row("  memory of the daemon a name", "names bytes", at_most(350), "bytes"),
        got.row(f"{slow}: time / direct", "slow", at_most(0.5)),
        got.row("  direct", "slow direct", None, "s"),
    ]
