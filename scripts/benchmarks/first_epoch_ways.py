"""Cold files under options of a mount, with peers, and where a file was found rewritten, beside a mount without any:
what is fetched without Python stays so."""

import contextlib
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from scripts.benchmarks.common import HFS, BenchError, Mount, SlowFs, Work, files_at, hfs_mount, preload, slowfs
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.fastpath_staged import FILE_BYTES, FILES, FILES_QUICK, small_folder
from scripts.benchmarks.first_epoch_cold import READERS, read_by_four
from scripts.benchmarks.options import Options
from scripts.benchmarks.peers_nodes import nodes
from scripts.benchmarks.table import Bar, Row, at_least

_OPTIONS: dict[str, tuple[tuple[str, ...], Bar]] = {
    "--io-mode passthrough": (("--io-mode", "passthrough"), at_least(0.9)),
    "--stage-encoding auto": (("--stage-encoding", "auto"), at_least(0.5)),
    "while somebody records": ((), at_least(0.9)),
    "-o push=off": (("-o", "push=off"), at_least(0.9)),
}

_SETTLED_S = 30.0
_REWRITES = 5
"""Files that are written twice within a second; on a busy machine some are not."""


@contextlib.contextmanager
def _recorded(work: Work, mount: Mount) -> Iterator[None]:
    """`hfs-hint record` listens meanwhile."""
    trace = work.new("trace") / "reads.trace"
    recorder = subprocess.Popen(
        [HFS.with_name("hfs-hint"), "record", "--mount", mount.path, "-o", trace], stderr=subprocess.PIPE, text=True
    )
    assert recorder.stderr is not None
    if "recording" not in recorder.stderr.readline():
        recorder.kill()
        raise BenchError("hfs-hint record did not begin")
    try:
        yield
    finally:
        recorder.send_signal(signal.SIGINT)
        recorder.wait()


@contextlib.contextmanager
def _plain(work: Work, source: SlowFs) -> Iterator[Path]:
    with hfs_mount(work, source.path) as mount:
        yield mount.path


@contextlib.contextmanager
def _first_of_two(work: Work, source: SlowFs) -> Iterator[Path]:
    """Half of the files are the other node's, which is asked for them."""
    with nodes(work, source, 2, "partition", memory="128M", options=("-o", "push=yes")) as running:
        yield running.paths[0]


@contextlib.contextmanager
def _rewritten(work: Work, source: SlowFs) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir=source.backing, prefix="rewritten-"))
    try:
        with hfs_mount(work, source.path) as mount:
            for number in range(_REWRITES):
                for data in (b"first", b"other"):
                    (folder / str(number)).write_bytes(data * 1000)
                    (mount.path / folder.name / str(number)).read_bytes()
            _wait_found_rewritten(mount)
            yield mount.path
    finally:
        shutil.rmtree(folder)


def _wait_found_rewritten(mount: Mount) -> None:
    limit_s = time.monotonic() + _SETTLED_S
    while not (status := mount.status())["counters"]["racy_rewrites"]["value"] or status["source"]["in_doubt"]:
        if time.monotonic() > limit_s:
            raise BenchError("no file was found rewritten")
        time.sleep(0.1)


_SITUATIONS: dict[str, Callable[[Work, SlowFs], AbstractContextManager[Path]]] = {
    "--peers mpi, two nodes": _first_of_two,
    "after a file was found rewritten": _rewritten,
}


def _spent_s(work: Work, source: Path, names: list[str], what: str) -> float:
    options = _OPTIONS[what][0] if what else ()
    with hfs_mount(work, source, work.new("cache"), options) as mount:
        listens: AbstractContextManager[None] = contextlib.nullcontext()
        if "records" in what:
            listens = _recorded(work, mount)
        with listens:
            return read_by_four(mount.path, names)


def _spent_in_s(
    work: Work, folder: Path, names: list[str], made: Callable[[Work, SlowFs], AbstractContextManager[Path]]
) -> float:
    """Where time stamps are of whole seconds, through a file system that costs nothing besides."""
    with slowfs(work, folder, "none") as source:
        source.tell("set stamp_ms 1000")
        with made(work, source) as path:
            return read_by_four(path, names)


def ways(work: Work, options: Options, command: str) -> list[Row]:
    """Four readers of files that were never read, under each option and in each situation."""
    got = Results(command)
    source = small_folder(work, options)
    for seed in range(options.runs):
        names = [str(path.relative_to(source)) for path in files_at(source)]
        random.Random(seed).shuffle(names)
        preload(source)
        plain_s = _spent_s(work, source, names, "")
        for what in _OPTIONS:
            with got.attempt(what):
                got.add(what, plain_s / _spent_s(work, source, names, what))
        with got.attempt(*_SITUATIONS):
            plain_s = _spent_in_s(work, source, names, _plain)
            for what, made in _SITUATIONS.items():
                got.add(what, plain_s / _spent_in_s(work, source, names, made))
    title = f"{FILES} cold files of {FILE_BYTES // 1000} KB{options.scale(FILES, FILES_QUICK)}, {READERS} readers"
    bars = {what: bar for what, (_, bar) in _OPTIONS.items()} | dict.fromkeys(_SITUATIONS, at_least(0.9))
    return [
        got.row(f"{title}, {what}: speed / without" if number == 0 else f"  {what}", what, bar)
        for number, (what, bar) in enumerate(bars.items())
    ]
