"""Demand before prefetch between two mounts of a node: one reads on demand, another fetches ahead of nobody.

Both read from one simulated Lustre whose link carries 50 MB/s, so that what is fetched ahead fills it. The reader has
no hints and its siblings are not fetched; the other is warmed (`hfs cache warm`), which is all prefetch. With one cache
root they know of each other, with two they do not: that is what it would cost.
"""

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from scripts.benchmarks import data
from scripts.benchmarks.common import HFS, Mount, SlowFs, Work, hfs_mount, slowfs
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.node_jobs import FILE_BYTES, Job
from scripts.benchmarks.options import Options
from scripts.benchmarks.readers.pattern import block
from scripts.benchmarks.table import Row, at_least, at_most

READ, READ_QUICK = 800, 200
AHEAD, AHEAD_QUICK = 12_000, 4_000
LINK_BPS = 50_000_000
SIZE = "4G"
_ALONE_S = 2.0


def _folder(work: Work, options: Options) -> Path:
    """`read`, and `ahead` beside it."""
    counts = {"read": options.size(READ, READ_QUICK), "ahead": options.size(AHEAD, AHEAD_QUICK)}

    def make(root: Path) -> None:
        for part, count in counts.items():
            (root / part).mkdir()
            for name in range(count):
                (root / part / str(name)).write_bytes(block(name, 0, FILE_BYTES).tobytes())

    return data.stamped(work.data / f"demand-{counts['read']}", {**counts, "bytes": FILE_BYTES}, make)


@contextlib.contextmanager
def _source(work: Work, options: Options) -> Iterator[SlowFs]:
    """Cold."""
    with slowfs(work, _folder(work, options), "lustre") as source:
        source.tell(f"set shared_bps {LINK_BPS}")
        yield source


@contextlib.contextmanager
def warming(mount: Mount) -> Iterator[subprocess.Popen[bytes]]:
    """`hfs cache warm` of all of it, while the block lasts."""
    process = subprocess.Popen([HFS, "cache", "warm", mount.path, "--json"], stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _fetched_bytes(mount: Mount) -> int:
    return int(mount.status()["source"]["bytes"])


def _read(mount: Mount) -> float:
    """Seconds that the reader takes."""
    end = Job(mount.source, mount.cache, SIZE, rounds=1, seed=1, at=mount.path).end()
    assert not end["wrong"]
    assert not end["failed"]
    return float(end["seconds"][0])


def _beside(work: Work, options: Options, *, roots: int) -> tuple[float, float]:
    """(seconds of the reader, bytes a second that the other fetches meanwhile)."""
    caches = [work.new("cache") for _ in range(roots)]
    with (
        _source(work, options) as source,
        hfs_mount(work, source.path / "read", caches[0], ("--cache-size", SIZE, "-o", "siblings=0")) as reads,
        hfs_mount(work, source.path / "ahead", caches[-1], ("--cache-size", SIZE)) as ahead,
        warming(ahead),
    ):
        while not (before := _fetched_bytes(ahead)):
            time.sleep(0.01)
        began_s = time.perf_counter()
        spent_s = _read(reads)
        rate = (_fetched_bytes(ahead) - before) / (time.perf_counter() - began_s)
        print(json.dumps({"roots": roots, "seconds": spent_s, "yields": ahead.status()["ahead"]["prefetch_yields"]}))
    return spent_s, rate


def _alone(work: Work, options: Options) -> tuple[float, float]:
    """The same of each without the other."""
    with (
        _source(work, options) as source,
        hfs_mount(work, source.path / "read", options=("--cache-size", SIZE, "-o", "siblings=0")) as reads,
    ):
        spent_s = _read(reads)
    with (
        _source(work, options) as source,
        hfs_mount(work, source.path / "ahead", options=("--cache-size", SIZE)) as ahead,
        warming(ahead),
    ):
        while not (before := _fetched_bytes(ahead)):
            time.sleep(0.01)
        began_s = time.perf_counter()
        time.sleep(_ALONE_S)
        rate = (_fetched_bytes(ahead) - before) / (time.perf_counter() - began_s)
    return spent_s, rate


def demand(work: Work, options: Options, command: str) -> list[Row]:
    """Readers and warming, alone and beside each other."""
    got = Results(command)
    for _ in range(options.runs):
        with got.attempt("one", "two", "ahead", "ahead two"):
            spent_s, rate = _alone(work, options)
            for key, roots in (("one", 1), ("two", 2)):
                beside_s, beside_rate = _beside(work, options, roots=roots)
                got.add(key, beside_s / spent_s)
                got.add("ahead" if key == "one" else "ahead two", beside_rate / rate)
    return [
        got.row("reads on demand beside another mount's prefetch / alone", "one", at_most(1.25)),
        got.row("  what the prefetch gets meanwhile / alone", "ahead", at_least(0.02)),
        got.row("  the same of two cache roots, which do not know of each other: reads", "two"),
        got.row("    prefetch", "ahead two"),
    ]
