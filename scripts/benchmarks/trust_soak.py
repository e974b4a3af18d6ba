"""Rows of a daemon that lives long with little: many readers of everything, its memory limited by a control group.

The cache holds less than half of the data, so fetching, staging and eviction never end. Judged: errors, wrong bytes,
and whether resident memory, descriptors or threads of the daemon still grow in the second half of the time.
"""

import contextlib
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from scripts.benchmarks import data
from scripts.benchmarks.common import BenchError, Work, hfs_mount, process_memory, reader, slowfs
from scripts.benchmarks.options import Options
from scripts.benchmarks.readers.pattern import block
from scripts.benchmarks.table import Row, at_most, median_row, skipped_row

READERS = 64
SECONDS, SECONDS_QUICK = 600, 60
MEMORY_BYTES = 512 << 20
LARGE, LARGE_BYTES = 6, 160 << 20
CLASSES, SMALL_A_CLASS, SMALL_BYTES = 20, 100, 100_000
CACHE = "512M"
SAMPLE_S = 1.0
PIECE = 16 << 20


def soak(work: Work, options: Options, command: str) -> list[Row]:
    group = _control_group()
    if group is None:
        return [skipped_row("soak", "no memory control group can be made here (root, cgroup v1 or v2)", command)]
    folder, limit_s = _folder(work), options.size(SECONDS, SECONDS_QUICK)
    try:
        with (
            slowfs(work, folder, "none") as source,
            _inside(group),
            hfs_mount(work, source.path, options=("--cache-size", CACHE, "--ttl", "5")) as mount,
            _outside(group),
            reader("mixed.py", mount.path, READERS, 1) as program,
        ):
            watch = Watch(mount.pid)
            watch.start()
            program.send({"seconds": limit_s})
            answer = program.answer(limit_s + 120)
            watch.stop()
            most = process_memory(mount.pid)[1]
            again = mount.status()["pid"] != mount.pid
    finally:
        wait_empty(group, 30)
        group.rmdir()
    for text in answer["said"]:
        print(f"soak: {text}", file=sys.stderr)
    what = f"{READERS} readers, {limit_s} s of mixed reads, daemon in {MEMORY_BYTES >> 20} MB"
    what += options.scale(SECONDS, SECONDS_QUICK)
    operations = float(answer["operations"])
    return [
        median_row(f"{what}: errors", [float(answer["failed"])], "", command, at_most(0)),
        median_row("  wrong bytes", [float(answer["wrong"])], "", command, at_most(0)),
        median_row("  daemons that were killed", [float(again)], "", command, at_most(0)),
        *(
            median_row(f"  growth of {name} in the last half", [watch.growth(name)], "%", command, at_most(2))
            for name in watch.samples
        ),
        median_row("  most resident ever", [most / 1e6], "MB", command),
        median_row("  slowest operation of a reader", [answer["slowest_s"]], "s", command),
        median_row("  operations; each of up to 16 MB", [operations / limit_s], "/s", command),
        median_row("  read", [answer["bytes"] / limit_s / 1e6], "MB/s", command),
    ]


@dataclass
class Watch:
    """Samples what a process holds until `stop`."""

    pid: int
    samples: dict[str, list[float]] = field(
        default_factory=lambda: {"resident memory": [], "descriptors": [], "threads": []}
    )

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def growth(self, name: str) -> float:
        """Per cent by which the last quarter of the time lies above the one before: medians, at least 0."""
        samples = self.samples[name]
        if len(samples) < 8:
            raise BenchError(f"{len(samples)} samples of {name} are too few: the daemon has ended?")
        quarter = len(samples) // 4
        third, fourth = statistics.median(samples[-2 * quarter : -quarter]), statistics.median(samples[-quarter:])
        return max(0.0, (fourth / third - 1) * 100)

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            try:
                figures = (
                    float(process_memory(self.pid)[0]),
                    float(len(os.listdir(f"/proc/{self.pid}/fd"))),
                    float(len(os.listdir(f"/proc/{self.pid}/task"))),
                )
            except OSError:
                return  # it was killed: `growth` and the pid of the status say so
            for values, figure in zip(self.samples.values(), figures, strict=True):
                values.append(figure)


def _folder(work: Work) -> Path:
    def make(root: Path) -> None:
        (root / "large").mkdir()
        for number in range(LARGE):
            with (root / "large" / str(number)).open("wb") as file:
                for offset in range(0, LARGE_BYTES, PIECE):
                    file.write(block(number, offset, PIECE))
        for number in range(CLASSES * SMALL_A_CLASS):
            path = root / "small" / f"class-{number % CLASSES}" / str(LARGE + number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(block(LARGE + number, 0, SMALL_BYTES + number % 5000))

    spec: dict[str, object] = {"large": [LARGE, LARGE_BYTES], "small": [CLASSES, SMALL_A_CLASS, SMALL_BYTES]}
    return data.stamped(work.data / "soak", spec, make)


def _control_group() -> Path | None:
    """A new control group of MEMORY_BYTES; None where none can be made."""
    for parent, limit in (
        (Path("/sys/fs/cgroup"), "memory.max"),
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    ):
        path = parent / f"hfs-soak-{os.getpid()}"
        try:
            path.mkdir()
        except OSError:
            continue
        if (path / limit).exists():
            (path / limit).write_text(str(MEMORY_BYTES))
            return path
        path.rmdir()  # no control group, or a hierarchy without memory
    return None


@contextlib.contextmanager
def _inside(group: Path) -> Iterator[None]:
    """What is started in here belongs to the group."""
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        _leave(group)


@contextlib.contextmanager
def _outside(group: Path) -> Iterator[None]:
    _leave(group)
    yield


def _leave(group: Path) -> None:
    (group.parent / "cgroup.procs").write_text(str(os.getpid()))


def wait_empty(group: Path, limit_s: float) -> bool:
    """Whether its last process has ended within the limit."""
    limit = time.monotonic() + limit_s
    while time.monotonic() < limit:
        if not (group / "cgroup.procs").read_text().strip():
            return True
        time.sleep(0.05)
    return False
