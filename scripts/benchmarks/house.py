"""`scripts/bench house`: how many files of the product a request enters, and how often it is handed on.

read  a cold READ of a large file, until its reply
open  a cold OPEN of a small file with its look-up, and what comes of it within a moment
owners  which files Python has nodes of after two passes, and which opens came to it

For the first two the daemon writes down which Python files it enters (traced/sitecustomize.py). What is counted was
entered in each of several requests, so what happened besides is not, unless it happens all the time. Of the C it is
written here which files are entered.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from scripts.benchmarks import data
from scripts.benchmarks.common import ROOT, BenchError, Mount, Work, files_at, hfs_mount
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Bar, Row, at_most, median_row

RUNS = 1
REQUESTS, REQUESTS_QUICK = 6, 3
LARGE_BYTES, SMALL_BYTES, READ_BYTES = 32 << 20, 110_000, 128 << 10
SETTLED_S = 1.0
"""What an earlier request has begun has ended."""
IDLE_AFTER_S = 3.0
"""What is done with a staged file a second later has ended too."""
FOLLOWED_S = 0.3
"""What a small file brings about later is counted so long."""

FOLDERS, FILES_A_FOLDER, FILES_A_FOLDER_QUICK = 10, 300, 100
OWNERS = {
    "": (),
    ", --io-mode passthrough": ("--io-mode", "passthrough"),
    ", -o push=off": ("-o", "push=off"),
    ", --immutable": ("--immutable",),
    ", --ttl 0": ("--ttl", "0"),
}

_SHIM = ("_fastpath", "_fastpath_at_once", "_fastpath_kept")
C_READ = (*_SHIM, *(f"plane/{name}" for name in ("threads", "answers", "reads", "table", "queue")))
C_OPEN = tuple(
    f"plane/{name}"
    for name in (
        *("threads", "answers", "file_replies", "reply", "events", "table", "slots", "counts", "delegated"),
        *("waiters", "jobs", "lines", "follows", "workers", "user", "source", "object", "buffers", "contents"),
        *("staged", "store"),
    )
)


class Entered(NamedTuple):
    """A step of the daemon, while a request was answered."""

    who: str
    file: str


class Trace:
    """The files that the daemon of a mount enters."""

    def __init__(self, folder: Path, mount: Mount) -> None:
        self._file = folder / str(mount.pid)

    def of(self, request: Callable[[], object], followed_s: float = 0) -> list[Entered]:
        """While it is answered, and so long afterwards."""
        time.sleep(SETTLED_S)
        begin_ns = time.monotonic_ns()
        request()
        time.sleep(followed_s)
        end_ns = time.monotonic_ns()
        lines = (line.split() for line in self._file.read_text().splitlines())
        return [Entered(who, file) for at, who, file in lines if begin_ns <= int(at) <= end_ns]


@contextmanager
def _traced(work: Work, source: Path) -> Iterator[tuple[Mount, Trace]]:
    folder = work.new("traced")
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "HFS_TRACED_IN")}
    os.environ |= {"PYTHONPATH": str(Path(__file__).with_name("traced")), "HFS_TRACED_IN": str(folder)}
    try:
        with hfs_mount(work, source) as mount:
            yield mount, Trace(folder, mount)
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def entered_by_all(requests: list[list[Entered]]) -> set[str]:
    return set.intersection(*({step.file for step in steps} for steps in requests))


def hand_offs(steps: list[Entered]) -> int:
    """How often another thread or task went on, with the C thread that read the request."""
    return 1 + sum(
        1 for before, step in zip([None, *steps], steps, strict=False) if not before or before.who != step.who
    )


def _rows(what: str, found: set[str], c_files: tuple[str, ...], bar: Bar, command: str) -> list[Row]:
    if missing := [name for name in c_files if not (ROOT / "mountd" / "native" / f"{name}.c").exists()]:
        raise BenchError(f"which C files are entered is out of date (house.py): {', '.join(missing)}")
    print("\n".join([f"{what}:", *(f"  {file}" for file in sorted(found))]), file=sys.stderr)
    return [
        median_row(f"{what}: files entered", [len(found) + len(c_files)], "", command, bar),
        median_row("  of these in Python", [len(found)], "", command),
    ]


def _folder(work: Work, name: str, size: int) -> Path:
    def make(root: Path) -> None:
        for number in range(REQUESTS + 1):
            data.make_random(root / f"{number}.bin", size, number)

    return data.stamped(work.data / f"house-{name}", {"files": [REQUESTS, size]}, make)


def read(work: Work, options: Options, command: str) -> list[Row]:
    """The first read of a file that is open already. The first file of all is another matter: it is not counted."""
    requests = []
    with _traced(work, _folder(work, "large", LARGE_BYTES)) as (mount, trace):
        for number in range(options.size(REQUESTS, REQUESTS_QUICK) + 1):
            opened = os.open(mount.path / f"{number}.bin", os.O_RDONLY)
            requests.append(trace.of(partial(os.pread, opened, READ_BYTES, 0)))
            os.close(opened)
    what = "cold READ of a large file"
    steps = min(hand_offs(steps) for steps in requests[1:])
    return [
        *_rows(what, entered_by_all(requests[1:]), C_READ, at_most(35), command),
        median_row(f"{what}: hand-offs between threads and tasks", [steps], "", command, at_most(4)),
    ]


def open_(work: Work, options: Options, command: str) -> list[Row]:
    """Files of a directory of which one was read before."""
    requests, idle = [], []
    with _traced(work, _folder(work, "small", SMALL_BYTES)) as (mount, trace):
        for number in range(options.size(REQUESTS, REQUESTS_QUICK) + 1):
            requests.append(trace.of((mount.path / f"{number}.bin").read_bytes, FOLLOWED_S))
        time.sleep(IDLE_AFTER_S)
        for _ in requests:
            idle.append(trace.of(lambda: None, FOLLOWED_S))
    found = entered_by_all(requests[1:])
    return [
        *_rows("cold OPEN of a small file", found, C_OPEN, at_most(20), command),
        median_row(
            "  of those that are entered when nobody asks too", [len(found & entered_by_all(idle))], "", command
        ),
    ]


def owners(work: Work, options: Options, command: str) -> list[Row]:
    """Small files that are read twice, under options by which Python has had nodes of them."""
    folders, files = FOLDERS, options.size(FILES_A_FOLDER, FILES_A_FOLDER_QUICK)

    def make(root: Path) -> None:
        for number in range(folders * files):
            (folder := root / str(number // files)).mkdir(exist_ok=True)
            data.make_random(folder / f"{number}.bin", SMALL_BYTES, number)

    source, rows = data.stamped(work.data / f"house-owners-{files}", {"files": [folders, files]}, make), []
    for shown, asked in OWNERS.items():
        with hfs_mount(work, source, options=asked) as mount:
            for _ in range(2):
                for path in files_at(mount.path):
                    path.read_bytes()
                time.sleep(FOLLOWED_S)
            status = mount.status()
        count, opens = folders * files, status["data_plane"]["opens_cached"] + status["data_plane"]["opens_passed"]
        nodes = (count - status["slots"]["known"]) / count
        what = f"{count} small files in {folders} folders, read twice{shown}: share that Python has nodes of"
        rows.append(median_row(what, [nodes], "x", command))
        rows.append(median_row("  share of their opens that Python answered", [1 - opens / (2 * count)], "x", command))
    return rows


GROUPS = {"read": read, "open": open_, "owners": owners}
