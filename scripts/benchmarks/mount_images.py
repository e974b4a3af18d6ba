"""Rows of an image folder: JPEG files read by a PyTorch DataLoader, directly, through hfs, and from a plain copy."""

import shutil
from functools import partial
from pathlib import Path

from scripts.benchmarks import data
from scripts.benchmarks.common import (
    Mount,
    Work,
    cpu_seconds,
    files_at,
    forget,
    hfs_mount,
    preload,
    reader,
    seconds,
    slowfs,
)
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_least, at_most, median_row

FILES, FILES_QUICK = 4000, 400
WORKERS = 2
PRESET = "lustre"


def image_folder(work: Work, options: Options, files: int = FILES) -> Path:
    count = options.size(files, FILES_QUICK)
    spec: dict[str, object] = {"count": count, "base": data.BASE_PICTURES, "comment": data.COMMENT_BYTES}
    return data.stamped(work.data / f"images-{count}", spec, partial(data.make_images, count=count))


def copy_of(folder: Path) -> Path:
    """A plain copy beside it, so on the same disk as the caches."""

    def copy(path: Path) -> None:
        shutil.copytree(folder, path, dirs_exist_ok=True)

    stamp = folder.with_name(folder.name + ".stamp").read_text()
    return data.stamped(folder.with_name(folder.name + "-copy"), {"copy of": stamp}, copy)


def _epoch(root: Path, what: str, epoch: int, seed: int) -> tuple[float, float]:
    """Wall and CPU seconds of one epoch of a reader that has listed the folder before."""
    with reader("images.py", root, WORKERS, what) as program:
        program.do(epoch=0, seed=seed)
        before = cpu_seconds(program.process.pid)
        spent = seconds(program.do(epoch=epoch, seed=seed))
        return spent, cpu_seconds(program.process.pid) - before


def _later_job(root: Path, seed: int) -> float:
    """Seconds of the first epoch of a new job, its listing of the folder included."""
    with reader("images.py", root, WORKERS, "decode") as program:
        return seconds(program.do(epoch=4, seed=seed))


class Runs:
    """What was measured, one entry a run."""

    def __init__(self, images: Path, copy: Path) -> None:
        self.images, self.copy = images, copy
        self.data_files, self.data_bytes = data.tree_bytes(images)
        self.values: dict[str, list[float]] = {}

    def add(self, **values: float) -> None:
        for name, value in values.items():
            self.values.setdefault(name, []).append(value)

    def one(self, work: Work, seed: int) -> None:
        """Direct, then hfs, then the copy: each in the same orders of samples."""
        with slowfs(work, self.images, PRESET) as source:
            with reader("images.py", source.path, WORKERS, "decode") as program:
                direct = seconds(program.do(epoch=1, seed=seed))
            self.add(direct_s=direct)
        with slowfs(work, self.images, PRESET) as source:
            cache = work.new("cache")
            with hfs_mount(work, source.path, cache) as mount:
                with reader("images.py", mount.path, WORKERS, "decode") as program:
                    first = seconds(program.do(epoch=1, seed=seed))
                    self.add(first_s=first, speed_up=direct / first)
                    self.add(bytes_first=source.counters()["read_bytes"] / self.data_bytes)
                    self.add(first_cpu=cpu_seconds(mount.pid))
                    pids = (mount.pid, program.process.pid)
                    before = sum(cpu_seconds(pid) for pid in pids)
                    second = seconds(program.do(epoch=2, seed=seed))
                    cpu = sum(cpu_seconds(pid) for pid in pids) - before
                preload(self.copy)
                plain, plain_cpu = _epoch(self.copy, "decode", 2, seed)
                self.add(second_s=second, copy_s=plain, second=second / plain, second_cpu=cpu / plain_cpu)
                self.read_only(mount, cache, seed)
                self.add(bytes=source.counters()["read_bytes"] / self.data_bytes)
            forget(files_at(cache))
            forget(files_at(self.copy))
            with hfs_mount(work, source.path, cache) as mount:
                later = _later_job(mount.path, seed)
            self.add(later=later / _later_job(self.copy, seed))
            shutil.rmtree(cache)

    def read_only(self, mount: Mount, cache: Path, seed: int) -> None:
        """Epochs without decoding: with what is in the page cache, and with nothing there."""
        warm, _ = _epoch(mount.path, "read", 3, seed)
        self.add(warm=warm / _epoch(self.copy, "read", 3, seed)[0], warm_rate=self.data_files / warm)
        for paths in (files_at(mount.path), files_at(cache), files_at(self.copy)):
            forget(paths)
        cold, _ = _epoch(mount.path, "read", 3, seed)
        self.add(cold=cold / _epoch(self.copy, "read", 3, seed)[0], cold_rate=self.data_files / cold)


def images(work: Work, options: Options, command: str) -> list[Row]:
    folder = image_folder(work, options)
    runs = Runs(folder, copy_of(folder))
    for seed in range(options.runs):
        runs.one(work, seed)
    mean = runs.data_bytes / runs.data_files / 1000
    what = f"{runs.data_files} JPEG files of {mean:.0f} KB, 2 workers, {PRESET}{options.scale(FILES, FILES_QUICK)}"
    got = runs.values
    return [
        median_row(f"epoch 1 of {what}: speed-up over direct", got["speed_up"], "x", command, at_least(1.0)),
        median_row("  direct", got["direct_s"], "s", command),
        median_row("  hfs", got["first_s"], "s", command),
        median_row("  CPU time of the daemon until the end of epoch 1", got["first_cpu"], "s", command),
        median_row("  source bytes of epoch 1 / data", got["bytes_first"], "x", command),
        median_row("  source bytes of all epochs of the mount / data", got["bytes"], "x", command, at_most(1.0)),
        median_row(
            "epoch 2 of the same: time / plain copy on the cache disk", got["second"], "x", command, at_most(1.25)
        ),
        median_row("  plain copy", got["copy_s"], "s", command),
        median_row("  hfs", got["second_s"], "s", command),
        median_row("  CPU time of reader and daemon / reader on the plain copy", got["second_cpu"], "x", command),
        median_row("  read only, page cache warm: time / plain copy", got["warm"], "x", command),
        median_row("  read only, page cache warm: hfs", got["warm_rate"], "files/s", command),
        median_row("  read only, page cache dropped: time / plain copy, dropped too", got["cold"], "x", command),
        median_row("  read only, page cache dropped: hfs", got["cold_rate"], "files/s", command),
        median_row(
            "  epoch 1 of a later job, all staged, page cache dropped: time / plain copy", got["later"], "x", command
        ),
    ]
