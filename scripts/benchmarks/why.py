"""`scripts/bench why`: situations that are staged with real mounts and readers, and what `hfs why` says of each.

    no-hint, random-order, cache-size, links, source, workers, handles, cache-disk, daemon-cpu, another-job
    larger-data, unfitting-warm, dead-source, hung-source
    crash, enough-workers, no-program, healthy, first-epoch    where nothing is to be changed

Mounts have the options that they have by default, but for --cache-size where the cache is to be too small. Sources lie
on a simulated file system of which each operation takes 10 to 20 ms (slowfs, preset busy).
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from scripts.benchmarks import data
from scripts.benchmarks.common import COMMAND_LIMIT_S, HFS, BenchError, Mount, Work, run, slowfs, wait_gone
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_least, median_row

RUNS = 1
READER = Path(__file__).resolve().parent / "readers" / "why_reader.py"
HINT = HFS.with_name("hfs-hint")
PRESET = "busy"
SMALL, SMALL_BYTES = 6000, 43_000
LARGE, LARGE_BYTES = 4, 256 << 20
_OBSERVED_S = 15.0
"""The last minute need not be a whole one."""
_QUICK_S = 6.0
_CRASHED_S = 3.0
"""Until the next daemon answers, and a second more."""


class Readers:
    """Processes that read in one way until `end`."""

    def __init__(self, way: str, folder: Path, count: int) -> None:
        self._processes = [
            subprocess.Popen(
                [sys.executable, str(READER), way, str(folder), str(seed)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for seed in range(count)
        ]
        for process in self._processes:
            assert process.stdout is not None
            if process.stdout.readline() != "runs\n":
                raise BenchError(f"a reader: {process.communicate()[1].strip()}")

    def end(self) -> None:
        for process in self._processes:
            process.communicate(timeout=120)


class Stage:
    """What a situation is made of."""

    def __init__(self, work: Work, options: Options, stack: contextlib.ExitStack) -> None:
        self.work = work
        self.options = options
        self.stack = stack

    def small(self) -> Path:
        """A slow source of small files."""
        return self._slow(_small(self.work))

    def large(self) -> Path:
        """A slow source of large files."""
        return self._slow(_large(self.work))

    def shared(self) -> Path:
        """A slow file system that has both, in folders `small` and `large`."""

        def make(root: Path) -> None:
            for name, folder in (("small", _small(self.work)), ("large", _large(self.work))):
                (root / name).mkdir()
                for path in folder.iterdir():
                    os.link(path, root / name / path.name)

        return self._slow(data.stamped(self.work.data / "why-shared", {"small": SMALL, "large": LARGE}, make))

    def _slow(self, folder: Path) -> Path:
        return self.stack.enter_context(slowfs(self.work, folder, PRESET)).path

    def mount(self, source: Path, *options: str, cache: Path | None = None) -> Mount:
        """Unmounted at the end."""
        made = Mount(source, self.work.new("mnt"), cache or self.work.new("cache"), options)
        self.stack.callback(made.close)
        return made

    def read(self, way: str, folder: Path, count: int) -> None:
        """Until the end of the situation."""
        self.stack.callback(Readers(way, folder, count).end)

    def hint(self, mount: Mount, source: Path) -> None:
        """Somebody tells an order of all files."""
        listed, order = self.work.new("hint") / "list", self.work.new("hint") / "order.npy"
        import numpy as np

        names = sorted(os.listdir(source))
        listed.write_text("".join(f"{name}\n" for name in names))
        np.save(order, np.random.default_rng(5).permutation(len(names)))
        command = [str(HINT), "send", "--mount", str(mount.path), "--files", str(listed), "--order", str(order)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.stack.callback(process.wait, 30)
        self.stack.callback(process.terminate)
        assert process.stdout is not None
        process.stdout.readline()

    def wait(self) -> None:
        time.sleep(_QUICK_S if self.options.quick else _OBSERVED_S)


def _small(work: Work) -> Path:
    return _folder(work, "small", SMALL, SMALL_BYTES)


def _large(work: Work) -> Path:
    return _folder(work, "large", LARGE, LARGE_BYTES)


def _folder(work: Work, name: str, count: int, size: int) -> Path:
    def make(root: Path) -> None:
        block = random.Random(7).randbytes(min(size, 1 << 20))
        for number in range(count):
            (root / str(number)).write_bytes(block * (size // len(block)))

    return data.stamped(work.data / f"why-{name}-{count}", {"count": count, "bytes": size}, make)


def _wait_full(mount: Mount) -> None:
    """Until then all that is read is staged."""
    until_s = time.monotonic() + COMMAND_LIMIT_S
    while mount.status()["staged"]["state"] != "full":
        if time.monotonic() > until_s:
            raise BenchError("the cache was to be full")
        time.sleep(0.5)


# -- situations --------------------------------------------------------------------------------------------------------


def no_hint(stage: Stage) -> Mount:
    mount = stage.mount(stage.small())
    stage.read("files", mount.path, 6)
    return mount


def random_order(stage: Stage) -> Mount:
    mount = stage.mount(stage.large())
    stage.read("extents", mount.path, 2)
    return mount


def cache_size(stage: Stage) -> Mount:
    source = stage.small()
    mount = stage.mount(source, "--cache-size", str(SMALL * SMALL_BYTES // 8))
    stage.read("files", mount.path, 2)
    _wait_full(mount)
    return mount


def links(stage: Stage) -> Mount:
    source = stage.work.new("links")
    (source / "real").mkdir()
    (source / "train").mkdir()
    for number in range(50):
        (source / "real" / str(number)).write_bytes(bytes(SMALL_BYTES))
        os.symlink(source / "real" / str(number), source / "train" / str(number))
    mount = stage.mount(source)
    stage.read("files", mount.path / "train", 1)
    return mount


def slow_source(stage: Stage) -> Mount:
    source = stage.small()
    mount = stage.mount(source)
    stage.hint(mount, source)
    stage.read("files", mount.path, 2)
    return mount


def workers(stage: Stage) -> Mount:
    folder = _folder(stage.work, "few", 200, SMALL_BYTES)
    mount = stage.mount(folder)
    run(HFS, "cache", "warm", mount.path)
    stage.read("decode", mount.path, 1)
    return mount


def handles(stage: Stage) -> Mount:
    mount = stage.mount(_folder(stage.work, "large", LARGE, LARGE_BYTES))
    stage.read("held", mount.path, 1)
    run(HFS, "cache", "warm", mount.path)
    return mount


def cache_disk(stage: Stage) -> Mount:
    """The directory of objects may not be changed: as a file system that has gone read-only after a fault."""
    mount = stage.mount(_folder(stage.work, "few", 200, SMALL_BYTES))
    objects = [str(path) for path in mount.cache.rglob("objects")]
    run("chattr", "+i", *objects)
    stage.stack.callback(run, "chattr", "-i", *objects)
    stage.read("files", mount.path, 1)
    return mount


def daemon_cpu(stage: Stage) -> Mount:
    """Names that are not there are looked up by Python."""
    mount = stage.mount(_folder(stage.work, "few", 200, SMALL_BYTES))
    stage.read("absent", mount.path, 6)
    return mount


def another_job(stage: Stage) -> Mount:
    # Of one file system: other ones do not get into each other's way.
    cache, source = stage.work.new("cache"), stage.shared()
    other = stage.mount(source / "large", cache=cache)
    mount = stage.mount(source / "small", cache=cache)
    stage.read("extents", other.path, 4)
    stage.hint(mount, source / "small")
    stage.read("files", mount.path, 1)
    return mount


def larger_data(stage: Stage) -> Mount:
    """Large files, from the first byte to the last, in a cache of a quarter of them."""
    mount = stage.mount(stage.large(), "--cache-size", str(LARGE * LARGE_BYTES // 4))
    stage.read("whole", mount.path, 2)
    _wait_full(mount)
    return mount


def unfitting_warm(stage: Stage) -> Mount:
    mount = stage.mount(stage.small(), "--cache-size", str(SMALL * SMALL_BYTES // 4))
    if subprocess.run([HFS, "cache", "warm", mount.path], capture_output=True, check=False).returncode != 3:
        raise BenchError("the data was to be larger than the cache")
    stage.read("files", mount.path, 2)
    return mount


def dead_source(stage: Stage) -> Mount:
    source = stage.stack.enter_context(slowfs(stage.work, _small(stage.work), PRESET))
    mount = stage.mount(source.path)
    (mount.path / "0").read_bytes()
    os.kill(source.pid, signal.SIGKILL)
    wait_gone(source.pid, 20)
    with contextlib.suppress(OSError):
        (mount.path / str(SMALL - 1)).read_bytes()
    return mount


def hung_source(stage: Stage) -> Mount:
    """Reads hang, and say no error: who has begun to read waits."""
    source = stage.stack.enter_context(slowfs(stage.work, _small(stage.work), PRESET))
    mount = stage.mount(source.path)
    (mount.path / "0").read_bytes()
    source.tell("fault read hang")
    waiting = [subprocess.Popen(["cat", mount.path / str(number)], stdout=subprocess.DEVNULL) for number in (1, 2)]
    stage.stack.callback(lambda: [one.wait() for one in waiting])
    stage.stack.callback(source.tell, "clear")
    source.until(lambda counters: counters["parked"] > 0, "a read hangs")
    return mount


def crash(stage: Stage) -> list[str]:
    """The second after it."""
    mount = stage.mount(stage.small())
    stage.read("files", mount.path, 2)
    stage.wait()
    os.kill(mount.pid, signal.SIGKILL)
    said: list[str] = []
    until_s = time.monotonic() + _CRASHED_S
    while time.monotonic() < until_s:
        with contextlib.suppress(BenchError):
            said += _causes(mount)
    mount.pid = mount.status()["pid"]
    return list(dict.fromkeys(said))


def enough_workers(stage: Stage) -> Mount:
    mount = stage.mount(_folder(stage.work, "few", 200, SMALL_BYTES))
    run(HFS, "cache", "warm", mount.path)
    stage.read("processes", mount.path, 1)
    return mount


def no_program(stage: Stage) -> list[str]:
    """In a mount that has much to tell of others."""
    mount = cache_size(stage)
    stage.wait()
    command = [HFS, "run", "--source", mount.source, "--cache", mount.cache, *mount.options, "--", "/no/such/program"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_LIMIT_S, check=False)
    if done.returncode != 127:
        raise BenchError(f"hfs run ended with {done.returncode}: {done.stderr}")
    return done.stderr.splitlines()[1:]


def first_epoch(stage: Stage) -> Mount:
    mount = stage.mount(stage.small())
    stage.read("files", mount.path, 2)
    return mount


def healthy(stage: Stage) -> Mount:
    mount = stage.mount(_small(stage.work))
    run(HFS, "cache", "warm", mount.path)
    stage.read("files", mount.path, 1)
    return mount


Situation: TypeAlias = Callable[[Stage], Mount | list[str]]
"""Gives the mount that is asked about, or what was said."""

SITUATIONS: dict[str, tuple[str, Situation, str]] = {
    "no-hint": ("no hint with many workers", no_hint, "no-hint"),
    "random-order": ("random order over large files", random_order, "random-order"),
    "cache-size": ("a cache that is too small", cache_size, "cache-size"),
    "links": ("links past the mount", links, "links"),
    "source": ("a source slower than the job", slow_source, "source"),
    "workers": ("too few workers", workers, "workers"),
    "handles": ("handles from before staging", handles, "handles"),
    "cache-disk": ("a cache disk that rests", cache_disk, "cache-disk"),
    "daemon-cpu": ("the daemon's CPU", daemon_cpu, "daemon-cpu"),
    "another-job": ("another job", another_job, "another-job"),
    "larger-data": ("data larger than the cache", larger_data, "cache-size"),
    "unfitting-warm": ("a warm that did not fit", unfitting_warm, "cache-size"),
    "dead-source": ("a source that has died", dead_source, "source-errors"),
    "hung-source": ("a source that hangs", hung_source, "source-hangs"),
    "crash": ("the second after a crash", crash, "nothing"),
    "enough-workers": ("as many workers as cores", enough_workers, "nothing"),
    "no-program": ("hfs run of no program, in the mount of others", no_program, "nothing"),
    "healthy": ("all is well: a warmed mount", healthy, "nothing"),
    "first-epoch": ("all is well: a first epoch, two readers", first_epoch, "nothing"),
}


def _said(work: Work, options: Options, situation: Situation) -> list[str]:
    with contextlib.ExitStack() as stack:
        stage = Stage(work, options, stack)
        found = situation(stage)
        if isinstance(found, list):
            return found or ["nothing"]
        stage.wait()
        return _causes(found) or ["nothing"]


def _causes(mount: Mount) -> list[str]:
    return [cause["name"] for cause in json.loads(run(HFS, "why", mount.path, "--json"))["causes"]]


def _row(name: str, right: str, said: Sequence[str], command: str) -> Row:
    what = f"{name}: hfs why says {said[0]}" + (f" (then {', '.join(said[1:])})" if said[1:] else "")
    return median_row(what, [float(said[0] == right)], "", command, at_least(1))


def _group(name: str) -> Callable[[Work, Options, str], list[Row]]:
    words, situation, right = SITUATIONS[name]

    def group(work: Work, options: Options, command: str) -> list[Row]:
        return [_row(words, right, _said(work, options, situation), command)]

    return group


GROUPS = {name: _group(name) for name in SITUATIONS}
