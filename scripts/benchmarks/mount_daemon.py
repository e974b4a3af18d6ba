"""Rows of the daemon itself: it answers and serves while the source hangs, and stays small while it stages much."""

import shutil
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hfs.client.client import Client, find_socket
from scripts.benchmarks import data
from scripts.benchmarks.common import (
    HFS,
    BenchError,
    Mount,
    Reader,
    SlowFs,
    Work,
    files_at,
    forget,
    hfs_mount,
    process_memory,
    reader,
    run,
    seconds,
    slowfs,
)
from scripts.benchmarks.mount_images import image_folder
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_least, at_most, median_row

HUNG = 128
HUNG_BYTES = 1024**2
STAGED, STAGED_BYTES = 50, 110_000
STATUS_REPEATS = 10
SETTLED_LOOKS = 25
"""At 50 a second: nothing has changed for half a second."""
GO_ON_LIMIT_S = 10.0
"""Cold reads of 50 small staged files that take longer than this do not go on; they need about a tenth of a second."""

ROUNDS = 4
"""The same mix of small files and a large one again and again, so that quarters of the time can be compared."""
LARGE_BYTES, LARGE_BYTES_QUICK = 890_000_000, 89_000_000
SAMPLE_S = 0.05


def hang_folder(work: Work) -> Path:
    def make(root: Path) -> None:
        for name, count, size in (("stuck", HUNG, HUNG_BYTES), ("staged", STAGED, STAGED_BYTES)):
            (root / name).mkdir()
            for number in range(count):
                data.make_random(root / name / f"{number:03d}.bin", size, number)

    spec: dict[str, object] = {"hung": [HUNG, HUNG_BYTES], "staged": [STAGED, STAGED_BYTES]}
    return data.stamped(work.data / "hang", spec, make)


def all_hang(crowd: Reader, source: SlowFs) -> int:
    """Wait until every reader has its file open and nothing new gets stuck in the source; how many requests are.

    Raises BenchError when that does not come, or when a reader ends.
    """
    limit = time.monotonic() + 60
    parked: list[int] = []
    hung: dict[str, Any] = {}
    while time.monotonic() < limit:
        parked.append(source.counters()["parked"])
        hung = crowd.do(do="count")
        if hung["done"] or hung["failed"]:
            break
        last = parked[-SETTLED_LOOKS:]
        if hung["open"] == HUNG and len(last) == SETTLED_LOOKS and last[0] > 0 and len(set(last)) == 1:
            return last[0]
        time.sleep(0.02)
    raise BenchError(f"of {HUNG} readers that should hang: {hung}; requests stuck in the source: {parked[-1]}")


def hang(work: Work, options: Options, command: str) -> list[Row]:
    """128 readers, each of a file of its own, whose bytes the source does not give."""
    folder = hang_folder(work)
    got: dict[str, list[float]] = {}

    def add(**values: float) -> None:
        for name, value in values.items():
            got.setdefault(name, []).append(value)

    for _ in range(options.runs):
        with (
            slowfs(work, folder, "lustre") as source,
            # What is passed through does not need the daemon: this is about the daemon's own reads.
            hfs_mount(work, source.path, options=("--io-mode", "daemon")) as mount,
        ):
            run(HFS, "cache", "warm", mount.path / "staged")
            paths = files_at(mount.path / "staged")
            request = {"files": [str(path) for path in paths]}
            client = Client(find_socket(str(mount.path)))
            with reader("blocks.py") as program, reader("crowd.py", mount.path / "stuck") as crowd:
                _drop(mount, paths)
                before = program.do(**request)
                _drop(mount, paths)
                source.tell("fault read hang path /stuck/")
                crowd.do(do="start")
                parked = all_hang(crowd, source)
                times = [_time(client.status) for _ in range(STATUS_REPEATS)]
                add(status=max(times), command=_time(mount.status), parked=parked)
                served = _served(client)
                during = _go_on(program, request)
                if not during["failed"] and _served(client) - served < STAGED * STAGED_BYTES:
                    raise BenchError("the reads of staged files did not reach the daemon: they were not cold")
                if before["failed"] or before["bytes"] != STAGED * STAGED_BYTES:
                    raise BenchError(f"staged files could not be read even without hung readers: {before}")
                add(read=STAGED - during["failed"], during=seconds(during), slowest=during["slowest_s"])
                add(ratio=seconds(during) / seconds(before))
                source.tell("release")
                crowd.send({"do": "join"})
                add(recovered=crowd.answer(60)["done"])
    what = f"while {HUNG} readers hang in the source"
    return [
        median_row(
            f"{what}: status, slowest of {STATUS_REPEATS} at the socket", got["status"], "s", command, at_most(0.2)
        ),
        median_row("  the command `hfs status --json`", got["command"], "s", command),
        median_row("  requests stuck in the source itself", got["parked"], "", command),
        median_row(
            f"{what}: cold reads of staged files that ended, of {STAGED}", got["read"], "", command, at_least(STAGED)
        ),
        median_row("  their time", got["during"], "s", command),
        median_row("  time / time without hung readers", got["ratio"], "x", command),
        median_row("  slowest file", got["slowest"], "s", command),
        median_row(
            "readers that got their bytes once the source went on", got["recovered"], "", command, at_least(HUNG)
        ),
    ]


def _go_on(program: Reader, request: dict[str, Any]) -> dict[str, Any]:
    """The answer of a reader, or, when it does not come, one in which all has failed."""
    program.send(request)
    try:
        return program.answer(GO_ON_LIMIT_S)
    except BenchError:
        return {"begin_s": 0.0, "end_s": GO_ON_LIMIT_S, "failed": STAGED, "slowest_s": GO_ON_LIMIT_S}


def _drop(mount: Mount, paths: list[Path]) -> None:
    """Leave nothing of these files in memory, neither as files of the mount nor as staged files."""
    forget(paths)
    forget(files_at(mount.cache))


def _served(client: Client) -> int:
    """Bytes that the daemon has given the kernel from staged files, as replies or before it asked."""
    status = client.status()
    return status["read_bytes"]["staged"] + status["ahead"]["pushed_bytes"]


def _time(call: Callable[[], object]) -> float:
    begin = time.monotonic()
    call()
    return time.monotonic() - begin


class MemoryWatch(threading.Thread):
    """Samples the resident memory of a process until `stop`."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.samples: list[tuple[float, int]] = []
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self.samples.append((time.monotonic(), process_memory(self.pid)[0]))

    def stop(self) -> None:
        self._ended.set()
        self.join()


def flatness(samples: list[tuple[float, int]]) -> float:
    """Most memory of the last quarter of the time over that of the second: near 1 when it does not grow.

    Raises ValueError for fewer than 8 samples.
    """
    if len(samples) < 8:
        raise ValueError(f"{len(samples)} samples of the memory are too few")
    begin, end = samples[0][0], samples[-1][0]
    quarter = (end - begin) / 4
    second = [size for moment, size in samples if begin + quarter <= moment < begin + 2 * quarter]
    last = [size for moment, size in samples if moment >= end - quarter]
    return max(last) / max(second)


def _mixed_folder(work: Work, options: Options) -> Path:
    """Rounds of a large file and a share of the image folder's files, 4 GB in all."""
    images = files_at(image_folder(work, options))
    large_bytes = options.size(LARGE_BYTES, LARGE_BYTES_QUICK)

    def make(root: Path) -> None:
        for number in range(ROUNDS):
            small = root / f"round-{number}" / "small"
            small.mkdir(parents=True)
            for path in images[number::ROUNDS]:
                shutil.copyfile(path, small / path.name)
            data.make_random(small.parent / "large.bin", large_bytes, number)

    spec: dict[str, object] = {"images": len(images), "large": large_bytes, "rounds": ROUNDS}
    return data.stamped(work.data / f"mixed-{large_bytes}", spec, make)


def memory(work: Work, options: Options, command: str) -> list[Row]:
    """`hfs cache warm` of large files and many small ones, from a source that costs nothing."""
    folder = _mixed_folder(work, options)
    total = data.tree_bytes(folder)[1]
    got: dict[str, list[float]] = {"idle": [], "most": [], "median": [], "flat": [], "rate": []}
    for _ in range(options.runs):
        with slowfs(work, folder, "none") as source, hfs_mount(work, source.path) as mount:
            got["idle"].append(process_memory(mount.pid)[0] / 1e6)
            watch = MemoryWatch(mount.pid)
            watch.start()
            begin = time.monotonic()
            run(HFS, "cache", "warm", *(mount.path / f"round-{number}" for number in range(ROUNDS)), limit_s=1800)
            spent = time.monotonic() - begin
            watch.stop()
            most = process_memory(mount.pid)[1]
            staged = mount.status()["staged"]["bytes"]
            if staged < total:
                raise BenchError(f"{staged} bytes of {total} were staged")
        got["most"].append(most / 1e6)
        got["median"].append(statistics.median(size for _, size in watch.samples) / 1e6)
        got["flat"].append(flatness(watch.samples))
        got["rate"].append(total / spent / 1e6)
    what = f"staging {total / 1e9:.2g} GB{options.scale(LARGE_BYTES, LARGE_BYTES_QUICK)}"
    return [
        median_row(f"daemon memory while {what}: most resident ever", got["most"], "MB", command, at_most(300)),
        median_row("  most of the last quarter / of the second", got["flat"], "x", command, at_most(1.1)),
        median_row("  median while staging", got["median"], "MB", command),
        median_row("  before", got["idle"], "MB", command),
        median_row("  rate of staging", got["rate"], "MB/s", command),
    ]
