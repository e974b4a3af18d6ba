"""Cold files: read once by four readers, each its own part in a random order, while the source lies in memory.

Fresh pages cost a virtual machine several times what they cost a real one, so some memory is touched just before each
pass; and each pass has a cache directory of its own, since ext4 passes over inodes that were deleted a moment ago.
"""

import mmap
import multiprocessing
import os
import random
import threading
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path

from scripts.benchmarks.common import BenchError, Work, files_at, hfs_mount, preload
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.fastpath_staged import FILE_BYTES, FILES, FILES_QUICK, small_folder
from scripts.benchmarks.options import Options
from scripts.benchmarks.planes_floor import floor
from scripts.benchmarks.planes_warm import THREADS, cpu_ns
from scripts.benchmarks.table import Row, at_least, at_most

READERS = 4
_MEMORY_BYTES = 1 << 30
_LIMIT_S = 120.0


def _read(root: Path, names: list[str], together: Barrier) -> None:
    buffer = bytearray(1 << 20)
    together.wait(_LIMIT_S)
    for name in names:
        descriptor = os.open(root / name, os.O_RDONLY)
        os.fstat(descriptor)
        while os.readv(descriptor, [buffer]):
            pass
        os.close(descriptor)
    together.wait(_LIMIT_S)


def touch_memory() -> None:
    with mmap.mmap(-1, _MEMORY_BYTES) as memory:
        for offset in range(0, _MEMORY_BYTES, mmap.PAGESIZE):
            memory[offset] = 1


def read_by_four(root: Path, names: list[str], watched: Callable[[], object] = lambda: None) -> float:
    """Seconds in which four processes read these files, each once. `watched` is called just before and after."""
    together = multiprocessing.Barrier(READERS + 1)
    readers = [
        multiprocessing.Process(target=_read, args=(root, names[number::READERS], together), daemon=True)
        for number in range(READERS)
    ]
    for reader in readers:
        reader.start()
    try:
        touch_memory()
        watched()
        together.wait(_LIMIT_S)
        began_s = time.perf_counter()
        together.wait(_LIMIT_S)
        spent_s = time.perf_counter() - began_s
        watched()
    except threading.BrokenBarrierError as error:
        raise BenchError("a reader failed, or is stuck") from error
    finally:
        for reader in readers:
            reader.kill()
            reader.join()
    return spent_s


def _one(work: Work, source: Path, seed: int, got: Results) -> None:
    names = [str(path.relative_to(source)) for path in files_at(source)]
    random.Random(seed).shuffle(names)
    preload(source)
    native_s = read_by_four(source, names)
    with floor(work, source, THREADS, work.new("floor-cache")) as lowest:
        floor_s = read_by_four(lowest, names)
    with hfs_mount(work, source, work.new("cache")) as mount:
        spent: list[tuple[int, int]] = []
        mount_s = read_by_four(
            mount.path, names, lambda: spent.append((cpu_ns(mount.pid), cpu_ns(mount.pid, mount.pid)))
        )
    (all_before, python_before), (all_after, python_after) = spent
    got.add("cpu", (all_after - all_before) / 1e3 / len(names))
    got.add("python", (python_after - python_before) / 1e3 / len(names))
    got.add("speed", len(names) / mount_s)
    got.add("floor", floor_s / mount_s)
    got.add("floor speed", len(names) / floor_s)
    got.add("native", native_s / mount_s)


def cold(work: Work, options: Options, command: str) -> list[Row]:
    """Four readers of files that were never read."""
    got = Results(command)
    source = small_folder(work, options)
    for seed in range(options.runs):
        with got.attempt("cpu", "python", "speed", "floor", "floor speed", "native"):
            _one(work, source, seed, got)
    what = f"{FILES} cold files of {FILE_BYTES // 1000} KB{options.scale(FILES, FILES_QUICK)}, {READERS} readers"
    return [
        got.row(f"{what}: CPU of the daemon a file", "cpu", at_most(260), "us"),
        got.row("  of that of Python", "python", at_most(50), "us"),
        got.row("  files a second", "speed", at_least(5500), "/s"),
        got.row(f"  speed / floor with {THREADS} threads", "floor", at_least(0.65)),
        got.row("  files a second of the floor", "floor speed", None, "/s"),
        got.row("  speed / native", "native"),
    ]
