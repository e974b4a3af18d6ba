"""Rows of daemons that hang, and of such as only wait: the first are ended and followed, the others are left alone.

`hung`: the daemon is stopped by a signal; a thread of it that reads requests sleeps in the kernel, not to be killed,
since it writes to a file system that is frozen (faults/sleeper.c). Judged: how soon the mount answers again, reads of
handles that were open, and readers that hang. Then one mount whose source hangs for minutes under 64 readers, while
keeper and daemon are stopped together, in either order, the cache is frozen, and the machine has a load of 40. Judged:
that no daemon was ended. Needs root for disks that can be frozen.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

from scripts.benchmarks.common import BenchError, Mount, SlowFs, Work, hfs_mount, run, slowfs
from scripts.benchmarks.options import Options
from scripts.benchmarks.readers.pattern import block, wrong_bytes
from scripts.benchmarks.rot import RottingDisk, has_loop_devices
from scripts.benchmarks.table import Row, at_most, median_row, skipped_row

FILES, FILE_BYTES = 24, 100_000
READERS = 64
AGAIN_S = 15.0
HANGS_S = 40.0
"""A reader that has not ended by then hangs."""
SOURCE_S, SOURCE_QUICK_S = 300, 90
STOPPED_S, STOPPED_QUICK_S = 60, 20
FROZEN_S, FROZEN_QUICK_S = 30, 15
LOADED_S, LOADED_QUICK_S = 45, 20
LOAD = 40
GAP_S = 1.0
"""Between the two that are stopped, and continued."""


def hung(work: Work, options: Options, command: str) -> list[Row]:
    folder = files(work)
    rows = _stopped(work, folder, command)
    if not has_loop_devices():
        return [*rows, skipped_row("the other rows of hung", "no disk can be made and frozen here", command)]
    return rows + _asleep(work, folder, command) + _well(work, folder, options, command)


def files(work: Work) -> Path:
    """Some to read, and in a folder of their own those that will hang: siblings are fetched ahead."""
    folder = work.new("files")
    (folder / "hang").mkdir()
    for place, count in ((folder, FILES), (folder / "hang", READERS)):
        for number in range(count):
            (place / str(number)).write_bytes(block(number, 0, FILE_BYTES))
    return folder


# -- that hang --------------------------------------------------------------------------------------------------------


def _stopped(work: Work, folder: Path, command: str) -> list[Row]:
    with hfs_mount(work, folder) as mount, contextlib.ExitStack() as stack:
        files = [stack.enter_context((mount.path / str(number)).open("rb", buffering=0)) for number in range(8)]
        for file in files[:4]:
            file.read(10)
        os.kill(mount.pid, signal.SIGSTOP)
        again_s = _answers_again(mount, 20)
        failed = sum(_fails(file, number) for number, file in enumerate(files))
        mount.pid = mount.status()["pid"]
    what = "daemon stopped by SIGSTOP"
    return [
        median_row(f"{what}: the mount answers again after", [again_s], "s", command, at_most(AGAIN_S)),
        median_row(f"  reads of {len(files)} open handles that fail", [float(failed)], "", command, at_most(0)),
    ]


def _asleep(work: Work, folder: Path, command: str) -> list[Row]:
    links = work.new("links")
    with _disk(work) as disk, _sleeper(work, links), hfs_mount(work, folder) as mount:
        for _ in range(3):  # then its threads answer without Python
            run("md5sum", *(mount.path / str(number) for number in range(8)))
        (disk / "file").touch()
        with (mount.path / "0").open("rb", buffering=0) as file, _frozen(disk):
            (links / "reply-1").symlink_to(disk / "file")
            readers = [_cat(mount.path / str(number)) for number in range(8)]
            again_s = _answers_again(mount, 20)
            ends = [_ended(one) for one in readers]
            ends.append(int(_fails(file, 0)))
            mount.pid = mount.status()["pid"]
            ended = float(mount.status()["keeper"]["hung"])
    what = "a thread that reads requests sleeps in the kernel"
    return [
        median_row(f"{what}: the mount answers again after", [again_s], "s", command, at_most(AGAIN_S)),
        median_row(f"  readers of {len(readers)} that hang on", [float(ends.count(None))], "", command, at_most(0)),
        median_row("  reads that fail", [float(sum(1 for end in ends if end))], "", command),
        median_row("  daemons that were ended", [ended], "", command),
    ]


def _fails(file: FileIO, number: int) -> bool:
    """Whether the bytes of an open file are not to be had, or wrong."""
    try:
        found = os.pread(file.fileno(), FILE_BYTES, 0)
    except OSError:
        return True
    return len(found) != FILE_BYTES or bool(wrong_bytes(number, 0, found))


def _answers_again(mount: Mount, number: int) -> float:
    """Seconds until a file that nobody has looked up is read."""
    begin_s = time.monotonic()
    if _ended(_cat(mount.path / str(number))):
        raise BenchError(f"{number} could not be read")
    return time.monotonic() - begin_s


def _cat(path: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["cat", path], stdout=subprocess.DEVNULL)


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    """Its exit code; None: it hangs."""
    try:
        return process.wait(HANGS_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return None


@contextlib.contextmanager
def _sleeper(work: Work, links: Path) -> Iterator[None]:
    """Daemons that are started within sleep where a link says so."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise BenchError("no C compiler")
    library = work.new("sleeper") / "sleeper.so"
    run(compiler, "-shared", "-fPIC", "-o", library, Path(__file__).parent / "faults" / "sleeper.c")
    settings = {"LD_PRELOAD": str(library), "MOUNT_TEST_SLEEP": str(links)}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name in settings:
            del os.environ[name]


# -- that only wait ---------------------------------------------------------------------------------------------------


def _well(work: Work, folder: Path, options: Options, command: str) -> list[Row]:
    source_s = options.size(SOURCE_S, SOURCE_QUICK_S)
    stopped_s = options.size(STOPPED_S, STOPPED_QUICK_S)
    frozen_s = options.size(FROZEN_S, FROZEN_QUICK_S)
    loaded_s = options.size(LOADED_S, LOADED_QUICK_S)
    ended: dict[str, int] = {}
    with (
        _disk(work) as disk,
        slowfs(work, folder, "none") as slow,
        hfs_mount(work, slow.path, disk / "cache") as mount,
    ):
        run("md5sum", *(mount.path / str(number) for number in range(FILES)))
        before = 0

        def count(what: str) -> None:
            nonlocal before
            now = int(mount.status()["keeper"]["restarts"])
            ended[what] = now - before
            before = now

        with _hanging(slow, mount) as readers:
            end_s = time.monotonic() + source_s
            keeper = int(mount.status()["keeper"]["pid"])
            for first, then in ((mount.pid, keeper), (keeper, mount.pid)):
                for number in (signal.SIGSTOP, signal.SIGCONT):
                    os.kill(first, number)
                    time.sleep(GAP_S)
                    os.kill(then, number)
                    time.sleep(stopped_s if number == signal.SIGSTOP else 2 * GAP_S)
            count(f"keeper and daemon stopped together for {stopped_s:g} s, in either order")
            with _frozen(disk):
                time.sleep(frozen_s)
            time.sleep(AGAIN_S)
            count(f"cache frozen for {frozen_s:g} s")
            with _load():
                time.sleep(loaded_s)
            count(f"load of {LOAD} for {loaded_s:g} s")
            time.sleep(max(0.0, end_s - time.monotonic()))
            count(f"source that hangs for {source_s:g} s under {READERS} readers")
        wrong = sum(_ended(one) != 0 for one in readers)
    rows = [
        median_row(f"daemons ended though well: {what}", [float(found)], "", command, at_most(0))
        for what, found in ended.items()
    ]
    return [*rows, median_row(f"  readers of {READERS} that failed", [float(wrong)], "", command, at_most(0))]


@contextlib.contextmanager
def _hanging(slow: SlowFs, mount: Mount) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Readers whose source hangs until the end of the block."""
    slow.tell("fault read hang")
    readers = [
        subprocess.Popen(
            ["cmp", mount.path / "hang" / str(number), slow.backing / "hang" / str(number)], stdout=subprocess.DEVNULL
        )
        for number in range(READERS)
    ]
    try:
        slow.until(lambda counters: counters["parked"] > 0, "a read hangs")
        yield readers
    finally:
        slow.tell("clear")


@contextlib.contextmanager
def _load() -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(LOAD)]
    try:
        yield
    finally:
        for one in busy:
            one.kill()
            one.wait()


@contextlib.contextmanager
def _disk(work: Work) -> Iterator[Path]:
    disk = RottingDisk(work.new("disk"), 256 << 20)
    disk.mount()
    try:
        yield disk.path
    finally:
        disk.unmount()


@contextlib.contextmanager
def _frozen(disk: Path) -> Iterator[Any]:
    run("fsfreeze", "--freeze", disk)
    try:
        yield
    finally:
        run("fsfreeze", "--unfreeze", disk)
