"""`scripts/bench trace`: what `hfs trace simulate` says of a job, from one recorded epoch, beside real runs of it.

A job reads small files in random order from a simulated file system on which every operation takes 10 to 20 ms (slowfs,
preset busy), so that the source and not this machine's processor decides. Its first epoch on a fresh mount is recorded,
and simulated for three caches and two evictions (and for hints); then each is run, on a mount of its own. Between two
epochs the kernel is made to forget what it knows of the mount's files, as it does of data that is larger than memory.
"""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hfs.policies.cache.eviction import DEFAULT
from hfs.policies.simulation.node import HINTED
from scripts.benchmarks import data
from scripts.benchmarks.async_io_files import FileSet
from scripts.benchmarks.common import HFS, BenchError, Mount, Work, hfs_mount, reader, run, seconds, slowfs
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_most, skipped_row

RUNS = 1
PRESET = "busy"
FOLDERS = 10
EPOCHS = 3
SIZES = (25, 50, 75)
"""Caches in per cent of the data."""
POINTS, PERCENT = 3.0, 25.0
"""How far the simulation may be off: hit share, epoch time."""
HINT = HFS.with_name("hfs-hint")


@dataclass(frozen=True)
class Kind:
    """A data set, and a job that reads it."""

    name: str
    files: int
    files_quick: int
    file_bytes: int
    """On average: from half of it to one and a half."""
    readers: int
    compute_s: float
    """After each file."""
    mount: str
    """What is given to the mount and to the simulation as `-o`."""

    def made(self, work: Work, options: Options) -> FileSet:
        count = options.size(self.files, self.files_quick)

        def make(root: Path) -> None:
            draw = np.random.default_rng(1)
            for folder in range(FOLDERS):
                (root / f"c{folder}").mkdir()
            for number, size in enumerate(draw.integers(self.file_bytes // 2, self.file_bytes * 3 // 2, count)):
                (root / f"c{number % FOLDERS}" / f"{number:06d}.bin").write_bytes(draw.bytes(int(size)))

        spec: dict[str, object] = {"files": count, "bytes": self.file_bytes, "folders": FOLDERS}
        return FileSet(work, data.stamped(work.data / f"trace-{self.name}-{count}", spec, make))


SMALL = Kind("small", 4000, 1600, 40_000, readers=4, compute_s=0.005, mount="buffer=16M,ttl=1h")
"""What finds no room waits in memory: with the default buffer a fifth of a data set as small as this one."""
LARGE = Kind("large", 40, 20, 20_000_000, readers=2, compute_s=0.05, mount="ttl=1h")


@contextlib.contextmanager
def _recording(mount: Mount, trace: Path) -> Iterator[None]:
    """`hfs-hint record`, ended as by Ctrl-C."""
    command = ["env", "--default-signal=INT", HINT, "record", "--mount", mount.path, "-o", trace]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        if "recording" not in (said := process.stderr.readline()):
            raise BenchError(f"hfs-hint record: {said}{process.communicate()[1]}")
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
    if process.returncode:
        raise BenchError(f"hfs-hint record ended with {process.returncode}: {said}")


def _forget(mount: Mount) -> None:
    """A remount drops names and pages of this mount, and of no other."""
    run("mount", "-i", "-o", "remount,ro,nosuid,nodev", mount.path)


def _simulated(
    work: Work, kind: Kind, files: FileSet, seed: int, ways: tuple[str, ...]
) -> dict[tuple[str, int], dict[str, float]]:
    """By way and size: what `hfs trace simulate` says of a trace that is recorded now."""
    trace = work.new("trace") / "trace"
    with (
        slowfs(work, files.folder, PRESET) as source,
        hfs_mount(work, source.path, options=("-o", kind.mount)) as mount,
        reader("epochs.py", mount.path, files.list, kind.readers) as program,
        _recording(mount, trace),
    ):
        program.do(epoch=0, seed=seed, compute_s=kind.compute_s)
    given = [part for way in ways for part in ("--eviction", way)]
    for size in SIZES:
        given += ["--cache-size", f"{files.bytes * size // 100}"]
    found = json.loads(run(HFS, "trace", "simulate", trace, *given, "-o", kind.mount, f"--epochs={EPOCHS}", "--json"))
    print(json.dumps(found["inputs"]))
    keys = [(way, size) for way in ways for size in SIZES]
    return {key: _figures(row["epochs"]) for key, row in zip(keys, found["rows"], strict=True)}


def _real(work: Work, kind: Kind, files: FileSet, seed: int, way: str, size: int) -> dict[str, float]:
    """The same of a run."""
    cache = f"{files.bytes * size // 100}"
    eviction = DEFAULT if way == HINTED else way
    options = ("--cache-size", cache, "-o", f"eviction={eviction},{kind.mount}")
    epochs = []
    flags = ["--hint"] if way == "hinted" else []
    with (
        slowfs(work, files.folder, PRESET) as source,
        hfs_mount(work, source.path, options=options) as mount,
        reader("epochs.py", mount.path, files.list, kind.readers, *flags) as program,
    ):
        for epoch in range(EPOCHS):
            _forget(mount)
            before = source.counters()["read_bytes"]
            answer = program.do(epoch=epoch, seed=seed, compute_s=kind.compute_s)
            read = source.counters()["read_bytes"] - before
            if answer["bytes"] != files.bytes:
                raise BenchError(f"{answer['bytes']} bytes were read of {files.bytes}")
            epochs.append({"seconds": seconds(answer), "hit_share": 1 - read / files.bytes})
    return _figures(epochs)


def _figures(epochs: list[dict[str, float]]) -> dict[str, float]:
    """Of the first epoch, and of the others on average."""
    found = {}
    for name, some in (("first", epochs[:1]), ("later", epochs[1:])):
        found[f"{name} hits"] = 100 * sum(epoch["hit_share"] for epoch in some) / len(some)
        found[f"{name} s"] = sum(epoch["seconds"] for epoch in some) / len(some)
    return found


def _compared(work: Work, options: Options, command: str, kind: Kind, ways: tuple[str, ...]) -> list[Row]:
    files = kind.made(work, options)
    if os.geteuid():
        return [skipped_row("simulated and real epochs", "only root can make the kernel forget names", command)]
    got = Results(command)
    keys = [(way, size) for way in ways for size in SIZES]
    for seed in range(options.runs):
        said = _simulated(work, kind, files, seed, ways)
        for way, size in keys:
            names = [f"{way} {size} {part} {what}" for part in ("first", "later") for what in ("hits", "s")]
            with got.attempt(*(f"{name}{side}" for name in names for side in ("", " real", " said"))):
                real = _real(work, kind, files, seed, way, size)
                print(way, size, json.dumps({"real": real, "said": said[way, size]}), flush=True)
                for name in names:
                    what = name.removeprefix(f"{way} {size} ")
                    one, other = said[way, size][what], real[what]
                    off = abs(one - other) if what.endswith("hits") else 100 * abs(one / other - 1)
                    for side, value in (("", off), (" real", other), (" said", one)):
                        got.add(f"{name}{side}", value)
    what = f"{files}, {kind.readers} readers, {PRESET}{options.scale(kind.files, kind.files_quick)}"
    return [row for way, size in keys for row in _rows(got, f"{what}, {way}, cache {size} %", f"{way} {size}")]


def _rows(got: Results, what: str, key: str) -> list[Row]:
    rows = []
    for part, words in (("later", "epochs after the first"), ("first", "first epoch")):
        rows += [
            got.row(
                f"{what}, {words}: hit share, simulated and real differ by",
                f"{key} {part} hits",
                at_most(POINTS),
                "points",
            ),
            got.row("  real", f"{key} {part} hits real", None, "%"),
            got.row("  simulated", f"{key} {part} hits said", None, "%"),
            got.row(f"{what}, {words}: time, simulated is off by", f"{key} {part} s", at_most(PERCENT), "%"),
            got.row("  real", f"{key} {part} s real", None, "s"),
            got.row("  simulated", f"{key} {part} s said", None, "s"),
        ]
    return rows


def small(work: Work, options: Options, command: str) -> list[Row]:
    """Files of one fetch each, without hints."""
    return _compared(work, options, command, SMALL, ("fill-once",))


def lru(work: Work, options: Options, command: str) -> list[Row]:
    """The same where the least recently used go."""
    return _compared(work, options, command, SMALL, ("lru",))


def hinted(work: Work, options: Options, command: str) -> list[Row]:
    """The same with the order told ahead."""
    return _compared(work, options, command, SMALL, ("hinted",))


def large(work: Work, options: Options, command: str) -> list[Row]:
    """Files of several chunks, each read from its beginning to its end."""
    return _compared(work, options, command, LARGE, ("fill-once", "lru"))


GROUPS = {"small": small, "lru": lru, "hinted": hinted, "large": large}
