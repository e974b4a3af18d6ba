"""Rows of a plain user who makes system calls at random on 50 files of root's mount, whose daemon is killed meanwhile.

Four processes (readers/calls.py), half of the time over a cache that is full of other files, so that what they read is
in memory or nowhere, and half over one that is empty and has room. Judged: calls that last longer than a daemon may be
away, wrong bytes, and daemons that the keeper had to end because they answered nothing.
"""

import mmap
import os
import random
import signal
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hfs.mounting import keeper
from scripts.benchmarks import data
from scripts.benchmarks.common import BenchError, Mount, Reader, Work, hfs_mount, reader
from scripts.benchmarks.options import Options
from scripts.benchmarks.readers.pattern import block
from scripts.benchmarks.table import Row, at_most, median_row

PROCESSES = 4
SECONDS, SECONDS_QUICK = 540, 60
FILES = 50
SIZES = (0, 1, 4096, 30_000, 100_000, 100_000, 400_000, 900_000, 1_000_000, 3_000_000)
OTHERS, OTHERS_BYTES = 12, 900_000
CACHES = {"full": "8M", "empty": "2G"}
HANGS_S = 5.0
GIVEN_UP_S = 60.0
LIVES_S = (8.0, 25.0)
"""A daemon is killed so long after the one before has begun to answer: at random within."""
LOOKS_S = 0.2


def calls(work: Work, options: Options, command: str) -> list[Row]:
    seconds = options.size(SECONDS, SECONDS_QUICK)
    runs: list[Counter[str]] = []
    for number in range(options.runs):
        counts: Counter[str] = Counter()
        for cache, size in CACHES.items():
            counts += _attack(work, cache, size, options.seed + number, seconds / len(CACHES))
        runs.append(counts)
    seeds = ", ".join(str(options.seed + number) for number in range(options.runs))
    what = f"{PROCESSES} processes of a plain user, calls at random for {seconds} s a run, seeds {seeds}"
    figures = {
        f"{what}: calls that hung for {HANGS_S:g} s": ("hung", at_most(0)),
        "  wrong bytes": ("wrong", at_most(0)),
        "  daemons that were ended as hung": ("ended_as_hung", at_most(0)),
        "  calls that failed otherwise than as stale": ("failed", None),
        "  calls that were stale": ("stale", None),
        "  children that got a signal": ("ended", None),
        "  kill -9 of the daemon": ("kills", None),
        "  calls": ("calls", None),
    }
    return [
        median_row(name, [float(sum(run[key] for run in runs))], "", command, bar)
        for name, (key, bar) in figures.items()
    ]


def _attack(work: Work, cache: str, size: str, seed: int, seconds: float) -> Counter[str]:
    counts: Counter[str] = Counter()
    options = ("--cache-size", size, "--ttl", "30")
    with ExitStack() as stack:
        mount = stack.enter_context(hfs_mount(work, _folder(work), options=options))
        if cache == "full":
            for other in sorted((mount.path / "others").iterdir()):
                other.read_bytes()
        beats = [work.new("beats") / str(number) for number in range(PROCESSES)]
        for beat in beats:
            beat.write_bytes(bytes(16))
        readers = [
            stack.enter_context(reader("calls.py", mount.path / "files", seed * 100 + number, beat))
            for number, beat in enumerate(beats)
        ]
        for one in readers:
            one.send({"seconds": seconds})
        with _killing(mount, random.Random(seed), counts):
            counts["hung"] = _watch(mount, beats, readers, seconds, cache)
        for one in readers:
            answer = one.answer(GIVEN_UP_S)
            for text in answer.pop("said"):
                print(f"calls, cache {cache}, seed {seed}: {text}", file=sys.stderr)
            counts.update(
                {name: answer[name] for name in ("calls", "wrong", "failed", "stale", "ended") if name in answer}
            )
        status = mount.status()
        counts["ended_as_hung"] = int(status["keeper"]["hung"])
        mount.pid = int(status["pid"])
    return counts


def _watch(mount: Mount, beats: list[Path], readers: list[Reader], seconds: float, cache: str) -> int:
    """How many calls have lasted too long. Ends the mount, and raises BenchError, where one seems to last for ever."""
    views = []
    for beat in beats:
        with beat.open("r+b") as file:
            views.append(mmap.mmap(file.fileno(), 16))
    found: set[tuple[int, int]] = set()
    until_s = time.monotonic() + seconds + HANGS_S
    while time.monotonic() < until_s and any(one.process.poll() is None for one in readers):
        for number, view in enumerate(views):
            began_ns, call = struct.unpack("qq", view[:])
            for_s = (time.monotonic_ns() - began_ns) / 1e9 if began_ns else 0.0
            if for_s > HANGS_S and (number, began_ns) not in found:
                found.add((number, began_ns))
                print(f"calls, cache {cache}: call {call} of process {number} hangs", file=sys.stderr)
            if for_s > GIVEN_UP_S:
                _abort(mount)
                raise BenchError(f"a call hangs for {for_s:.0f} s; {len(found)} have hung")
        time.sleep(LOOKS_S)
    return len(found)


def _abort(mount: Mount) -> None:
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        fields = line.split()
        if fields[4] == str(mount.path):
            Path(f"/sys/fs/fuse/connections/{fields[2].split(':')[1]}/abort").write_text("1")


@contextmanager
def _killing(mount: Mount, chosen: random.Random, counts: Counter[str]) -> Iterator[None]:
    """kill -9 of the daemon, now and then."""
    ended = threading.Event()

    def kill() -> None:
        before = 0
        while not ended.wait(chosen.uniform(*LIVES_S)):
            kept = keeper.find(str(mount.path))
            if kept is None or not kept.status["answers"] or kept.status["daemon"] == before:
                continue
            before = int(kept.status["daemon"])
            os.kill(before, signal.SIGKILL)
            counts["kills"] += 1

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _folder(work: Work) -> Path:
    def make(root: Path) -> None:
        for folder, sizes in (
            ("files", [SIZES[n % len(SIZES)] for n in range(FILES)]),
            ("others", [OTHERS_BYTES] * OTHERS),
        ):
            (root / folder).mkdir()
            for number, size in enumerate(sizes):
                (root / folder / str(number)).write_bytes(block(number, 0, size))

    return data.stamped(work.data / "calls", {"calls": [FILES, list(SIZES), OTHERS, OTHERS_BYTES]}, make)
