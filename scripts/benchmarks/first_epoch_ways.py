"""Cold files under options of a mount, beside a mount without any: what is fetched without Python stays so."""

import contextlib
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from scripts.benchmarks.common import HFS, BenchError, Mount, Work, files_at, hfs_mount, preload
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.fastpath_staged import FILE_BYTES, FILES, FILES_QUICK, small_folder
from scripts.benchmarks.first_epoch_cold import READERS, read_by_four
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Bar, Row, at_least

_OPTIONS: dict[str, tuple[tuple[str, ...], Bar]] = {
    "--io-mode passthrough": (("--io-mode", "passthrough"), at_least(0.9)),
    "--stage-encoding auto": (("--stage-encoding", "auto"), at_least(0.5)),
    "while somebody records": ((), at_least(0.9)),
    "-o push=off": (("-o", "push=off"), at_least(0.9)),
}


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


def _spent_s(work: Work, source: Path, names: list[str], what: str) -> float:
    options = _OPTIONS[what][0] if what else ()
    with hfs_mount(work, source, work.new("cache"), options) as mount:
        listens: AbstractContextManager[None] = contextlib.nullcontext()
        if "records" in what:
            listens = _recorded(work, mount)
        with listens:
            return read_by_four(mount.path, names)


def ways(work: Work, options: Options, command: str) -> list[Row]:
    """Four readers of files that were never read, under each option."""
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
    title = f"{FILES} cold files of {FILE_BYTES // 1000} KB{options.scale(FILES, FILES_QUICK)}, {READERS} readers"
    return [
        got.row(f"{title}, {what}: speed / without" if number == 0 else f"  {what}", what, bar)
        for number, (what, (_, bar)) in enumerate(_OPTIONS.items())
    ]
