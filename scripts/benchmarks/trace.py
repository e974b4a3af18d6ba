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
from pathlib import Path

import numpy as np

from scripts.benchmarks import data
from scripts.benchmarks.async_io_files import FileSet
from scripts.benchmarks.common import HFS, BenchError, Mount, Work, hfs_mount, reader, run, seconds, slowfs
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_most, skipped_row

RUNS = 1
PRESET = "busy"
FILES, FILES_QUICK, FILE_BYTES = 4000, 1600, 40_000
FOLDERS = 10
READERS = 4
COMPUTE_S = 0.005
EPOCHS = 3
SIZES = (25, 50, 75)
"""Caches in per cent of the data."""
POLICIES = ("fill-once", "lru")
POINTS, PERCENT = 3.0, 15.0
"""How far the simulation may be off: hit share, epoch time."""
OPTIONS = "buffer=16M,ttl=1h"
"""What finds no room waits in memory: with the default 128M a fifth of a data set as small as this one."""
HINT = HFS.with_name("hfs-hint")


def _folder(work: Work, options: Options) -> FileSet:
    count = options.size(FILES, FILES_QUICK)

    def make(root: Path) -> None:
        draw = np.random.default_rng(1)
        for folder in range(FOLDERS):
            (root / f"c{folder}").mkdir()
        for number, size in enumerate(draw.integers(FILE_BYTES // 2, FILE_BYTES * 3 // 2, count)):
            (root / f"c{number % FOLDERS}" / f"{number:06d}.bin").write_bytes(draw.bytes(int(size)))

    spec: dict[str, object] = {"files": count, "bytes": FILE_BYTES, "folders": FOLDERS}
    return FileSet(work, data.stamped(work.data / f"trace-{count}", spec, make))


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


def _simulated(work: Work, files: FileSet, seed: int, ways: tuple[str, ...]) -> dict[tuple[str, int], dict[str, float]]:
    """By way and size: what `hfs trace simulate` says of a trace that is recorded now."""
    trace = work.new("trace") / "trace"
    with (
        slowfs(work, files.folder, PRESET) as source,
        hfs_mount(work, source.path, options=("-o", OPTIONS)) as mount,
        reader("epochs.py", mount.path, files.list, READERS) as program,
        _recording(mount, trace),
    ):
        program.do(epoch=0, seed=seed, compute_s=COMPUTE_S)
    given = [part for way in ways for part in ("--eviction", way)]
    for size in SIZES:
        given += ["--cache-size", f"{files.bytes * size // 100}"]
    found = json.loads(run(HFS, "trace", "simulate", trace, *given, "-o", OPTIONS, f"--epochs={EPOCHS}", "--json"))
    print(json.dumps(found["inputs"]))
    keys = [(way, size) for way in ways for size in SIZES]
    return {key: _figures(row["epochs"]) for key, row in zip(keys, found["rows"], strict=True)}


def _real(work: Work, files: FileSet, seed: int, way: str, size: int) -> dict[str, float]:
    """The same of a run."""
    cache = f"{files.bytes * size // 100}"
    eviction = "lru" if way == "lru" else "fill-once"
    options = ("--cache-size", cache, "-o", f"eviction={eviction},{OPTIONS}")
    epochs = []
    flags = ["--hint"] if way == "hinted" else []
    with (
        slowfs(work, files.folder, PRESET) as source,
        hfs_mount(work, source.path, options=options) as mount,
        reader("epochs.py", mount.path, files.list, READERS, *flags) as program,
    ):
        for epoch in range(EPOCHS):
            _forget(mount)
            before = source.counters()["read_bytes"]
            answer = program.do(epoch=epoch, seed=seed, compute_s=COMPUTE_S)
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


def _compared(work: Work, options: Options, command: str, ways: tuple[str, ...]) -> list[Row]:
    files = _folder(work, options)
    if os.geteuid():
        return [skipped_row("simulated and real epochs", "only root can make the kernel forget names", command)]
    got = Results(command)
    keys = [(way, size) for way in ways for size in SIZES]
    for seed in range(options.runs):
        said = _simulated(work, files, seed, ways)
        for way, size in keys:
            names = [f"{way} {size} {part} {what}" for part in ("first", "later") for what in ("hits", "s")]
            with got.attempt(*(f"{name}{kind}" for name in names for kind in ("", " real", " said"))):
                real = _real(work, files, seed, way, size)
                print(way, size, json.dumps({"real": real, "said": said[way, size]}), flush=True)
                for name in names:
                    what = name.removeprefix(f"{way} {size} ")
                    one, other = said[way, size][what], real[what]
                    off = abs(one - other) if what.endswith("hits") else 100 * abs(one / other - 1)
                    for kind, value in (("", off), (" real", other), (" said", one)):
                        got.add(f"{name}{kind}", value)
    what = f"{len(files.names)} files, {READERS} readers, {PRESET}{options.scale(FILES, FILES_QUICK)}"
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
    """Without hints."""
    return _compared(work, options, command, POLICIES)


def hinted(work: Work, options: Options, command: str) -> list[Row]:
    """With the order told ahead."""
    return _compared(work, options, command, ("hinted",))


GROUPS = {"small": small, "hinted": hinted}
