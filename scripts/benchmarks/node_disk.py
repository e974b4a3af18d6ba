"""Demand before staging at the cache disk: one mount reads staged bytes on demand, another stages at full speed.

The disk is a simulated SSD of 150 MB/s with one queue (`slow_disk`), and holds the one cache root of both. What is read
is staged and not in memory: blocks of 128 KiB in random order, through the daemon. The other mount is warmed from a
source that gives more than the disk takes. Of two schedulers: `none` heeds no I/O class, so that all is done by
stepping back; `bfq` heeds it.
"""

import contextlib
import json
import mmap
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

from scripts.benchmarks import data
from scripts.benchmarks.common import HFS, Mount, Work, hfs_mount, objects_of, run, slowfs
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.node_demand import warming
from scripts.benchmarks.options import Options
from scripts.benchmarks.readers.pattern import block
from scripts.benchmarks.rot import has_loop_devices
from scripts.benchmarks.slow_disk import SlowDisk
from scripts.benchmarks.table import Row, at_least, at_most, skipped_row

RATE_BPS = 150e6
DISK_BYTES = 4 << 30
READ_BYTES, READ_BYTES_QUICK = 256 << 20, 64 << 20
AHEAD_BYTES, AHEAD_BYTES_QUICK = 2048 << 20, 1024 << 20
BLOCK_BYTES = 128 << 10
SMALL_BYTES = 43_000
_LARGE_FILES = 8
SMALL, SMALL_QUICK = 30_000, 20_000
SIZE = "3700M"
_READ_S, _READ_S_QUICK = 6.0, 4.0
CASES = (
    ("large", "none", "daemon"),
    ("small", "none", "daemon"),
    ("large", "none", "passthrough"),
    ("large", "bfq", "daemon"),
)
"""What is staged meanwhile, the scheduler, and the way in which the others read."""
_ALONE_S = 1.0
_LOOK_S = 0.01


def _folder(work: Work, options: Options, kind: str) -> Path:
    """`read`, and `ahead` beside it: of large files, or of small ones."""
    read, ahead = options.size(READ_BYTES, READ_BYTES_QUICK), options.size(AHEAD_BYTES, AHEAD_BYTES_QUICK)
    small = options.size(SMALL, SMALL_QUICK)

    def make(root: Path) -> None:
        for part in ("read", "ahead"):
            (root / part).mkdir()
        data.make_random(root / "read" / "0", read, 0)
        if kind == "small":
            for number in range(small):
                (root / "ahead" / str(number)).write_bytes(block(number, 0, SMALL_BYTES).tobytes())
        else:
            for number in range(_LARGE_FILES):
                data.make_random(root / "ahead" / str(number), ahead // _LARGE_FILES, 1 + number)

    spec: dict[str, object] = {"read": read, "ahead": ahead, "small": [small, SMALL_BYTES]}
    return data.stamped(work.data / f"disk-{kind}-{read}", spec, make)


@contextlib.contextmanager
def _disk(work: Work, scheduler: str) -> Iterator[SlowDisk]:
    folder = work.new("disk")
    disk = SlowDisk(folder, DISK_BYTES, RATE_BPS, scheduler)
    try:
        yield disk
    finally:
        disk.close()


def _read(path: Path, staged: Path, spent_s: float, seed: int) -> float:
    """Seconds that a block takes, of a file and of the object that it is staged in, which memory has nothing of."""
    size = path.stat().st_size
    descriptor, below = os.open(path, os.O_RDONLY | os.O_DIRECT), os.open(staged, os.O_RDONLY)
    os.posix_fadvise(below, 0, 0, os.POSIX_FADV_DONTNEED)
    buffer = mmap.mmap(-1, BLOCK_BYTES)
    draw, count, began_s = random.Random(seed), 0, time.perf_counter()
    try:
        while (now_s := time.perf_counter()) < began_s + spent_s:
            os.preadv(descriptor, [buffer], draw.randrange(size // BLOCK_BYTES) * BLOCK_BYTES)
            os.posix_fadvise(below, 0, 0, os.POSIX_FADV_DONTNEED)
            count += 1
    finally:
        os.close(descriptor)
        os.close(below)
    return (now_s - began_s) / count


def _staged(mount: Mount) -> int:
    return int(mount.status()["counters"]["staging_put_bytes"]["value"])


def _one(work: Work, options: Options, kind: str, scheduler: str, mode: str) -> dict[str, float]:
    """Seconds of a block: alone, and beside the other; bytes a second that this stages: alone, and beside reads."""
    spent_s = _READ_S_QUICK if options.quick else _READ_S
    with (
        slowfs(work, _folder(work, options, kind), "flash") as source,
        _disk(work, scheduler) as disk,
    ):
        cache = disk.path / "cache"
        more = ("--cache-size", SIZE)
        with (
            hfs_mount(work, source.path / "read", cache, (*more, "--io-mode", mode)) as reads,
            hfs_mount(work, source.path / "ahead", cache, more) as ahead,
        ):
            run(HFS, "cache", "warm", reads.path)
            run("sync", "--file-system", disk.path)
            (staged,) = (path for path in objects_of(cache) if path.stat().st_size >= READ_BYTES_QUICK)
            alone_s = _read(reads.path / "0", staged, spent_s, 1)
            with warming(ahead):
                while not (before := _staged(ahead)):
                    time.sleep(_LOOK_S)
                began_s = time.perf_counter()
                time.sleep(_ALONE_S)
                alone_bps = (_staged(ahead) - before) / (time.perf_counter() - began_s)
                before, began_s = _staged(ahead), time.perf_counter()
                beside_s = _read(reads.path / "0", staged, spent_s, 1)
                staged_bps = (_staged(ahead) - before) / (time.perf_counter() - began_s)
            counters = ahead.status()["counters"]
    found = {"alone_s": alone_s, "beside_s": beside_s, "staged_bps": staged_bps, "alone_bps": alone_bps}
    print(
        json.dumps(
            {
                "kind": kind,
                "scheduler": scheduler,
                "mode": mode,
                **found,
                "yields": counters["prefetch_yields"]["value"],
            }
        )
    )
    return found


def disk(work: Work, options: Options, command: str) -> list[Row]:
    """Readers of staged bytes and staging."""
    if not has_loop_devices():
        return [skipped_row("reads of staged bytes beside staging", "no loop device can be had here", command)]
    got = Results(command)
    for _ in range(options.runs):
        for case in CASES:
            key = " ".join(case)
            with got.attempt(key, f"{key} ahead"):
                found = _one(work, options, *case)
                got.add(key, found["beside_s"] / found["alone_s"])
                got.add(f"{key} ahead", found["staged_bps"] / found["alone_bps"])
    rows = []
    for kind, scheduler, mode in CASES:
        key = f"{kind} {scheduler} {mode}"
        what = f"reads of staged bytes ({mode}) beside another mount's warm of {kind} files, {scheduler} / alone"
        rows += [
            got.row(what, key, at_most(1.25)),
            got.row("  what the warm stages meanwhile / before", f"{key} ahead", at_least(0.02)),
        ]
    return rows
