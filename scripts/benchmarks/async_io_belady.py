"""Rows of a cache that is smaller than the data: source bytes of later epochs against the least that any cache needs.

The cache takes a quarter of the data; each epoch has a random order of its own, and the daemon is told it and the one
after it. Before each epoch the pages of the source, of the mount and of the staged files are dropped, so that every
byte the job reads comes from the daemon's memory, the cache disk or the source. Those of the mount are dropped by the
job as it goes: the daemon would take opening all files, which that needs, for a job that reads them. Nothing is pushed
into the page cache, or it might come after the job has dropped its pages.

What epochs 2 to 5 cost is all that was read from the source in five epochs less the data once, so nothing can hide in
the first. The bound is async_io_belady_bound.py with the real sizes and the size of the cache in full; the cache itself
pays for whole blocks and for what is on its way. What is not staged stays in a part of the daemon's memory as long as
there is room, so a ratio below 1 is possible; a second ratio counts that memory as cache.
"""

import numpy as np

from scripts.benchmarks.async_io_belady_bound import least_source_bytes
from scripts.benchmarks.async_io_files import FileSet, check_followed, job
from scripts.benchmarks.async_io_images import COMPUTE, WORKERS
from scripts.benchmarks.common import BenchError, Mount, SlowFs, Work, files_at, forget, hfs_mount, slowfs
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.mount_images import FILES, FILES_QUICK, image_folder
from scripts.benchmarks.options import Options
from scripts.benchmarks.readers.shuffle import order
from scripts.benchmarks.table import Row, at_most, measured_rows

PRESET = "lustre"
EPOCHS = 5
SHARE = 0.25
MEMORY_BYTES = 32 * 1024**2
"""What the daemon keeps of what is not staged: a quarter of its default buffers."""


def _drop(files: FileSet, source: SlowFs, mount: Mount) -> None:
    """Leave nothing in memory of the staged files and of the source's."""
    forget(files_at(mount.cache))
    # To drop pages a file must be opened, which is not what is measured.
    source.tell("set preset none")
    forget(files.below(source.path))
    source.tell(f"set preset {source.preset}")


def _epochs(work: Work, files: FileSet, capacity: int, seed: int, *, hint: bool) -> tuple[float, list[float]]:
    """Source bytes over data: of epochs 2 to EPOCHS together, and of each epoch."""
    each = []
    with (
        slowfs(work, files.folder, PRESET) as source,
        hfs_mount(work, source.path, options=("--cache-size", str(capacity), "-o", "push=off")) as mount,
        job(files, mount.path, WORKERS, hint=hint, drop=True) as program,
    ):
        compute_s = COMPUTE * files.bytes / source.counters()["settings"]["shared_bps"]
        so_far = 0
        for epoch in range(1, EPOCHS + 1):
            if epoch > 1:
                _drop(files, source, mount)
            program.epoch(epoch, seed, compute_s / files.batches)
            if hint:
                check_followed(mount, epoch)
            read = source.counters()["read_bytes"]
            each.append((read - so_far) / files.bytes)
            so_far = read
    return so_far / files.bytes - 1, each


def belady(work: Work, options: Options, command: str) -> list[Row]:
    files = FileSet(work, image_folder(work, options))
    capacity = int(SHARE * files.bytes)
    got = Results(command)
    for seed in range(options.runs):
        orders = [order(len(files.names), seed, epoch) for epoch in range(1, EPOCHS + 1)]
        least, with_memory = (
            sum(least_source_bytes(orders, np.array(files.sizes), size)[1:]) / files.bytes
            for size in (capacity, capacity + MEMORY_BYTES)
        )
        got.add("least", least)
        for name, hint in (("mount", False), ("hint", True)):
            keys = (
                f"{name}_bytes",
                f"{name}_ratio",
                f"{name}_memory",
                *(f"{name} {epoch}" for epoch in range(1, EPOCHS + 1)),
            )
            with got.attempt(*keys):
                later, each = _epochs(work, files, capacity, seed, hint=hint)
                if later < 0.99 * with_memory:  # and something is always on its way
                    raise BenchError(f"{later:.3g} of the data came from the source: pages were not dropped")
                got.add(f"{name}_bytes", later)
                got.add(f"{name}_ratio", later / least)
                got.add(f"{name}_memory", later / with_memory)
                for epoch, part in enumerate(each, 1):
                    got.add(f"{name} {epoch}", part)
    what = f"{files}, cache {SHARE:.0%} of the data, epochs 2 to {EPOCHS}{options.scale(FILES, FILES_QUICK)}"
    rows = [
        got.row(f"{what}, hinted: source bytes / the least possible", "hint_ratio", at_most(1.05)),
        got.row("  the same, the daemon's memory counted as cache", "hint_memory"),
        got.row("  the least possible (Belady): source bytes / data", "least"),
        got.row("  hinted: source bytes / data", "hint_bytes"),
        *(got.row(f"    of epoch {epoch}", f"hint {epoch}") for epoch in range(1, EPOCHS + 1)),
        got.row("  fill-once, without a hint: source bytes / the least possible", "mount_ratio"),
        got.row("  the same, the daemon's memory counted as cache", "mount_memory"),
        got.row("  fill-once: source bytes / data", "mount_bytes"),
        *(got.row(f"    of epoch {epoch}", f"mount {epoch}") for epoch in range(1, EPOCHS + 1)),
    ]
    return measured_rows(rows)
