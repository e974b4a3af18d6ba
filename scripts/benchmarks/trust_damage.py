"""Rows of a cache that others change: by its file system (`flips`), and below it (`scrub`).

Every object is damaged: between two mounts in each I/O mode, and in turn while the daemon that answers all reads runs.
Below the file system nothing tells but the checksums; there one pass of the scrub has to find every damaged chunk.
"""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from scripts.benchmarks import data
from scripts.benchmarks.common import (
    HFS,
    BenchError,
    Mount,
    Reader,
    Work,
    files_at,
    forget,
    hfs_mount,
    objects_of,
    reader,
    run,
)
from scripts.benchmarks.options import Options
from scripts.benchmarks.readers.pattern import block
from scripts.benchmarks.rot import RottingDisk, has_loop_devices
from scripts.benchmarks.table import Row, at_least, at_most, median_row, skipped_row

CHUNK_BYTES = 256 << 10
FILES, FILES_QUICK = 60, 12
SIZES = (1, 30_000, CHUNK_BYTES, CHUNK_BYTES + 1, 700_000, 3_000_000)
MODES = {
    "auto": (),
    "daemon": ("--io-mode", "daemon"),
    "passthrough": ("--io-mode", "passthrough"),
    "stateless": ("--io-mode", "stateless", "--immutable"),
}
DISK_BYTES = 512 << 20
SCRUB_LIMIT_S = 300.0

Harm = Callable[[Path], None]


def flip(path: Path) -> None:
    """One bit, and mtime put back: only ctime tells."""
    before = path.stat()
    with path.open("r+b", buffering=0) as file:
        at = before.st_size * 2 // 3
        byte = os.pread(file.fileno(), 1, at)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 4]), at)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def exchange(path: Path) -> None:
    """Another file of this size and mtime in its place, and one that nobody knows beside it."""
    before = path.stat()
    other = path.with_name(f"{path.name}-more")
    other.write_bytes(bytes(before.st_size))
    other.chmod(0o600)
    path.with_name(f"{path.name}-strange").write_bytes(bytes(1000))
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


HARMS: dict[str, Harm] = {"flipped": flip, "cut": cut, "exchanged": exchange}


class Seen:
    """What readers met."""

    def __init__(self) -> None:
        self.wrong = self.failed = self.objects = 0

    def look(self, program: Reader, mount: Mount, count: int) -> None:
        """Read everything anew."""
        forget(files_at(mount.path))
        answer = program.do(folder=str(mount.path))
        self.wrong += int(answer["wrong"])
        self.failed += int(answer["failed"]) + abs(count - int(answer["names"]))


def flips(work: Work, options: Options, command: str) -> list[Row]:
    count = options.size(FILES, FILES_QUICK)
    folder = _folder(work, count)
    scale = options.scale(FILES, FILES_QUICK)
    rows = []
    with reader("faulted.py") as program:
        for mode, words in MODES.items():
            seen = Seen()
            for harm in HARMS.values():
                cache = work.new("cache")
                with _mounted(work, folder, cache, *words) as mount:
                    run(HFS, "cache", "warm", mount.path)
                seen.objects += _damage(cache, harm)
                with _mounted(work, folder, cache, *words) as mount:
                    seen.look(program, mount, count)
            what = f"each object {', '.join(HARMS)} between two mounts ({seen.objects}), {mode}{scale}"
            rows += _rows(what, seen, command)
        seen = Seen()
        for harm in HARMS.values():
            with _mounted(work, folder, work.new("cache"), *MODES["daemon"]) as mount:
                run(HFS, "cache", "warm", mount.path)
                for path in objects_of(mount.cache):
                    if path.exists():  # what was in the place of a damaged one may have gone with it
                        harm(path)
                        seen.objects += 1
                        seen.look(program, mount, count)
        what = f"one object after the other {', '.join(HARMS)} under a running daemon ({seen.objects}){scale}"
        return rows + _rows(what, seen, command)


def scrub(work: Work, options: Options, command: str) -> list[Row]:
    if not has_loop_devices():
        return [skipped_row("scrub", "no loop device can be had here", command)]
    count = options.size(FILES, FILES_QUICK)
    folder = _folder(work, count)
    disk = RottingDisk(work.new("disk"), DISK_BYTES)
    disk.mount()
    try:
        cache = disk.path / "cache"
        with _mounted(work, folder, cache) as mount:
            run(HFS, "cache", "warm", mount.path)
        chunks = disk.rot(next(cache.glob("*/objects")), CHUNK_BYTES)
        with _mounted(work, folder, cache) as mount, reader("faulted.py") as program:
            found, begin = _one_round(mount), time.monotonic()
            seen = Seen()
            seen.look(program, mount, count)
            took_s = time.monotonic() - begin
    finally:
        disk.unmount()
    scale = options.scale(FILES, FILES_QUICK)
    what = f"a bit of each of {chunks} chunks turned below the file system{scale}: found by one scrub"
    return [
        median_row(what, [100 * found["damaged_chunks"] / chunks], "%", command, at_least(100)),
        median_row("  wrong bytes afterwards", [float(seen.wrong)], "", command, at_most(0)),
        median_row("  reading everything then, from the source", [took_s], "s", command),
    ]


def _one_round(mount: Mount) -> dict[str, int]:
    """What the scrub says after its first round."""
    limit = time.monotonic() + SCRUB_LIMIT_S
    while True:
        found: dict[str, int] = mount.status()["scrub"]
        if found["rounds"]:
            return found
        if time.monotonic() > limit:
            raise BenchError(f"no round of the scrub in {SCRUB_LIMIT_S:g} s: {found}")
        time.sleep(0.2)


def _rows(what: str, seen: Seen, command: str) -> list[Row]:
    return [
        median_row(f"{what}: wrong bytes", [float(seen.wrong)], "", command, at_most(0)),
        median_row("  reads that fail, names that lack", [float(seen.failed)], "", command, at_most(0)),
    ]


def _mounted(work: Work, folder: Path, cache: Path, *options: str) -> contextlib.AbstractContextManager[Mount]:
    return hfs_mount(work, folder, cache, ("--chunk", str(CHUNK_BYTES), "--cache-size", "400M", *options))


def _damage(cache: Path, harm: Harm) -> int:
    objects = objects_of(cache)
    for path in objects:
        harm(path)
    return len(objects)


def _folder(work: Work, count: int) -> Path:
    def make(root: Path) -> None:
        for number in range(count):
            (root / str(number)).write_bytes(block(number, 0, SIZES[number % len(SIZES)] + number).tobytes())

    return data.stamped(work.data / f"damage-{count}", {"files": count, "sizes": list(SIZES)}, make)
