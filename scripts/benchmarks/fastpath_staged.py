"""Staged data sets: a plain folder of which every file is staged in a cache directory, to be mounted in any mode.

`hfs cache warm` stages it once a group; each mount after that is a new one on the warm cache directory. The native
place is the staged files themselves, so that both sides read the same pages and the same blocks of the disk.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scripts.benchmarks import data
from scripts.benchmarks.common import HFS, BenchError, Mount, Work, files_at, forget, hfs_mount, preload, run
from scripts.benchmarks.fastpath_access import MIB, Access, Place, duel
from scripts.benchmarks.options import Options

LARGE_BYTES, LARGE_BYTES_QUICK = 1144 * MIB, 120 * MIB
"""1.2 GB in whole MiB, so that O_DIRECT reads it to the end."""

FILES, FILES_QUICK = 3000, 300
FILE_BYTES = 110_000
FILES_A_FOLDER = 300

PROLOGUE_BYTES = 64
"""As many bytes tell the files of a data set apart."""

PAST_THE_DAEMON = 0.01
"""Share of the bytes that the daemon may serve of what is read in passthrough."""
THROUGH_THE_DAEMON = 0.9
"""Share of the bytes that the daemon must serve of what is read the first time otherwise."""

OPTIONS = {
    "auto": (),
    "passthrough": ("--io-mode", "passthrough"),
    "daemon": ("--io-mode", "daemon"),
    "stateless": ("--io-mode", "stateless", "--immutable"),
}
"""How the mount of a mode is asked for."""


def large_folder(work: Work, options: Options) -> Path:
    size = options.size(LARGE_BYTES, LARGE_BYTES_QUICK)
    folder = work.data / f"staged-large-{size}"
    return data.stamped(folder, {"bytes": size}, lambda root: data.make_random(root / "large.bin", size, 1))


def small_folder(work: Work, options: Options) -> Path:
    count = options.size(FILES, FILES_QUICK)

    def make(root: Path) -> None:
        block = bytearray(np.random.default_rng(1).bytes(FILE_BYTES))
        for number in range(count):
            folder = root / f"part-{number // FILES_A_FOLDER}"
            folder.mkdir(exist_ok=True)
            # The same number at both ends: a reader that got another file's bytes is found out.
            block[:8] = block[-8:] = number.to_bytes(8, "big")
            (folder / f"{number:05d}.bin").write_bytes(block)

    spec: dict[str, object] = {"count": count, "bytes": FILE_BYTES, "folder": FILES_A_FOLDER, "of": "one block"}
    return data.stamped(work.data / f"staged-small-{count}", spec, make)


def title(access: Access, options: Options) -> str:
    """What is read and how, for the name of a row."""
    if access.do == "files":
        return f"{FILES} files of {FILE_BYTES // 1000} KB, {access.what}{options.scale(FILES, FILES_QUICK)}"
    large = f"{LARGE_BYTES / 1e9:.2g} GB file{options.scale(LARGE_BYTES, LARGE_BYTES_QUICK)}"
    return f"{access.what}, in a {large}"


class Staged:
    """One data set, staged as a whole. Made by `staged`."""

    def __init__(self, work: Work, source: Path) -> None:
        self.work, self.source, self.cache = work, source, work.new("cache")
        self.auto = "?"
        """What `auto` was on the last mount that was asked for it."""
        self.files, self.bytes = data.tree_bytes(source)
        with hfs_mount(work, source, self.cache) as mount:
            run(HFS, "cache", "warm", mount.path, limit_s=600)
            found = mount.status()["staged"]["bytes"]
        if found < self.bytes:
            raise BenchError(f"{found} bytes of {self.bytes} were staged")
        self.names, self.native = places_of(source, self.cache)
        # Written back now, so that the disk is quiet while something is measured, and then warm.
        forget(self.copies())
        preload(self.cache)

    def copies(self) -> list[Path]:
        """The staged files themselves."""
        return [self.native.root / name for name in self.native.names]

    @contextlib.contextmanager
    def mounted(self, mode: str, *more: str) -> Iterator[Mount]:
        """A new mount in this mode, with `more` options.

        Raises BenchError with hfs's own reason where the mode cannot be had.
        """
        with contextlib.ExitStack() as stack:
            try:
                mount = stack.enter_context(hfs_mount(self.work, self.source, self.cache, [*OPTIONS[mode], *more]))
            except BenchError as error:
                raise BenchError(str(error).rpartition(" hfs: ")[2]) from None
            found = mount.status()["io_mode"]
            if mode == "auto":
                self.auto = found["mode"]
            elif mode != found["mode"]:
                raise BenchError(f"the mount is in mode {found['mode']}: {found['reason']}")
            yield mount

    def place(self, root: Path) -> Place:
        """The same files behind a mount of the source."""
        return Place(root, self.names)


def places_of(source: Path, cache: Path) -> tuple[tuple[str, ...], Place]:
    """The names of all files, and the same files as they are staged. Raises BenchError where one is not."""
    names = files_at(source)
    copies = {_prologue(path): path for path in files_at(cache) if path.stat().st_size >= PROLOGUE_BYTES}
    try:
        staged = tuple(str(copies[_prologue(path)].relative_to(cache)) for path in names)
    except KeyError:
        raise BenchError("the cache directory does not hold the source's files byte for byte") from None
    return tuple(str(path.relative_to(source)) for path in names), Place(cache, staged)


def _prologue(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.pread(descriptor, PROLOGUE_BYTES, 0)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def staged(work: Work, source: Path) -> Iterator[Staged]:
    """`source`, staged in a new cache directory that is gone at the end, with what it holds of the page cache."""
    one = Staged(work, source)
    try:
        yield one
    finally:
        forget(one.copies())
        shutil.rmtree(one.cache, ignore_errors=True)


def served_bytes(status: Mapping[str, Any]) -> int:
    """Bytes that the daemon has given the kernel, as replies or before it asked."""
    return sum(status["read_bytes"].values()) + status["ahead"]["pushed_bytes"]


def first_and_again(data: Staged, access: Access, mode: str, options: Options, seed: int) -> tuple[float, float]:
    """Speed / native of the first pass of a new mount, which knows no name yet, and of the same reads again.

    Raises BenchError where the mode cannot be had, and where the first pass did not take the way that the mode says
    (`auto` may choose for each file).
    """
    with data.mounted(mode) as mount, duel(access, data.native, options, seed) as reads:
        preload(data.cache)  # others on the machine may have pushed it out
        place, before = data.place(mount.path), served_bytes(mount.status())
        first = reads.first(place)
        served = served_bytes(mount.status()) - before
        if mode == "passthrough" and served > PAST_THE_DAEMON * reads.read_bytes:
            raise BenchError(f"{served} bytes of {reads.read_bytes} were served by the daemon, in passthrough")
        if mode in ("daemon", "stateless") and served < THROUGH_THE_DAEMON * reads.read_bytes:
            raise BenchError(f"{served} bytes of {reads.read_bytes} came from the daemon: this was not the first time")
        return first, reads.again(place)
