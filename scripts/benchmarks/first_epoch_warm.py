"""Trees of small files copied: `hfs cache warm` beside `cp -r`, and what an epoch costs the daemon beside that."""

import os
import resource
import subprocess
import time
from pathlib import Path

import numpy as np

from scripts.benchmarks import data
from scripts.benchmarks.common import HFS, Work, files_at, hfs_mount, preload, run
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.fastpath_staged import small_folder
from scripts.benchmarks.first_epoch_cold import read_by_four
from scripts.benchmarks.options import Options
from scripts.benchmarks.planes_warm import THREADS, cpu_ns
from scripts.benchmarks.table import Row, at_least, at_most

FILES, FILES_QUICK = 100_000, 5_000
FILE_BYTES = 10_000
FILES_A_FOLDER = 1000


def _folder(work: Work, options: Options) -> Path:
    count = options.size(FILES, FILES_QUICK)

    def make(root: Path) -> None:
        block = bytearray(np.random.default_rng(2).bytes(FILE_BYTES))
        for number in range(count):
            folder = root / f"{number // FILES_A_FOLDER:03d}"
            folder.mkdir(exist_ok=True)
            block[:8] = number.to_bytes(8, "big")
            (folder / f"{number:06d}").write_bytes(block)

    spec: dict[str, object] = {"count": count, "bytes": FILE_BYTES, "folder": FILES_A_FOLDER}
    return data.stamped(work.data / f"warm-{count}", spec, make)


def _copy(source: Path, to: Path) -> tuple[float, float]:
    """Seconds, and CPU seconds, of copying each folder by `cp -r`, as many at a time as there are cores; synced."""
    folders = [path for path in sorted(source.iterdir()) if path.is_dir()]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began_s = time.perf_counter()
    command = ["xargs", "-0", "-P", str(THREADS), "-n", "1", "sh", "-c", f'cp -r "$1" {to}/', "sh"]
    subprocess.run(command, input=b"\0".join(os.fsencode(path) for path in folders), check=True)
    run("sync", "-f", to)
    spent_s = time.perf_counter() - began_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def warm(work: Work, options: Options, command: str) -> list[Row]:
    """Both make it durable."""
    got = Results(command)
    source = _folder(work, options)
    count = len(files_at(source))
    for _ in range(options.runs):
        with got.attempt("warm", "speed", "copy"):
            preload(source)
            copy_s, _ = _copy(source, work.new("copy"))
            with hfs_mount(work, source, work.new("cache")) as mount:
                began_s = time.perf_counter()
                run(HFS, "cache", "warm", mount.path, limit_s=600)
                warm_s = time.perf_counter() - began_s
            got.add("warm", copy_s / warm_s)
            got.add("speed", count / warm_s)
            got.add("copy", count / copy_s)
    what = f"{FILES} files of {FILE_BYTES // 1000} KB{options.scale(FILES, FILES_QUICK)}"
    return [
        got.row(f"{what}: hfs cache warm / cp -r, {THREADS} at a time", "warm", at_least(0.9)),
        got.row("  files a second", "speed", None, "/s"),
        got.row("  files a second of cp -r", "copy", None, "/s"),
    ]


def cpu(work: Work, options: Options, command: str) -> list[Row]:
    """An epoch of files of 110 KB by four readers, until all of it is durable."""
    got = Results(command)
    source = small_folder(work, options)
    names = [str(path.relative_to(source)) for path in files_at(source)]
    for _ in range(options.runs):
        with got.attempt("cpu", "copy cpu"):
            preload(source)
            _, copy_s = _copy(source, work.new("copy"))
            with hfs_mount(work, source, work.new("cache")) as mount:
                before_ns = cpu_ns(mount.pid)
                read_by_four(mount.path, names)
                while mount.status()["staged"]["uncommitted_bytes"]:
                    time.sleep(0.1)
                spent_s = (cpu_ns(mount.pid) - before_ns) / 1e9
            got.add("cpu", spent_s / copy_s)
            got.add("copy cpu", copy_s / len(names) * 1e6)
    return [
        got.row("CPU of the daemon in epoch 1 / cp -r of the same", "cpu", at_most(1.5)),
        got.row("  CPU of cp -r a file", "copy cpu", None, "us"),
    ]
