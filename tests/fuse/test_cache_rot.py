"""A cache disk that rots: bits turn below its file system, and nothing but the checksums can tell.

The cache lies on an image of ext4 in a file; between two mounts of hfs the blocks of its staged files are written to
through the image. What the daemon reads is right at once; what the kernel reads by itself is after the scrub.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.benchmarks.rot import RottingDisk, has_loop_devices
from tests.fuse.harness import Hfs, HfsMount, drop_pages, here, own_cache
from tests.fuse.modes import MODES, Mode, needs_passthrough, warm
from tests.support.pattern import explain, pattern

CHUNK = 64 << 10
SIZES = (1, 5000, CHUNK, CHUNK + 1, 3 * CHUNK + 1000, 700_000)
IMAGE_BYTES = 64 << 20
LIMIT_S = 30.0

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a loop device needs root")


@pytest.fixture
def disk(tmp_path: Path, _nothing_left: None) -> Iterator[RottingDisk]:
    if not has_loop_devices():
        pytest.skip("no loop devices here")
    made = RottingDisk(tmp_path, IMAGE_BYTES)
    made.mount()
    yield made
    if os.path.ismount(made.path):
        made.unmount()


def source_at(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    for number, size in enumerate(SIZES):
        (folder / str(number)).write_bytes(pattern(number + 1, 0, size))
    return folder


def rot(disk: RottingDisk, cache: Path) -> int:
    """A bit of every chunk of every object. Returns how many."""
    return disk.rot(own_cache(cache) / "objects", CHUNK)


def until(hfs: Hfs, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    limit = time.monotonic() + LIMIT_S
    while not holds(status := hfs.status()):
        assert time.monotonic() < limit, status
    return status


def assert_right(hfs: Hfs) -> None:
    for number, size in enumerate(SIZES):
        drop_pages(hfs.path / str(number))
        data = (hfs.path / str(number)).read_bytes()
        assert data == pattern(number + 1, 0, size), explain(number + 1, 0, data)


def rotten_mount(tmp_path: Path, disk: RottingDisk, hfs_mount: HfsMount, *options: str) -> tuple[Hfs, int]:
    """A mount over a cache of which every chunk has rotted since it was staged."""
    hfs = hfs_mount(source_at(tmp_path), *options, chunk_bytes=CHUNK, cache=disk.path / "cache", cache_size="32M")
    hfs.expect_warning("cannot be read: .*wrong checksum")
    warm(hfs)
    hfs.umount()
    chunks = rot(disk, hfs.cache)
    hfs.mount()
    return hfs, chunks


@pytest.mark.parametrize("mode", [MODES["daemon"], MODES["stateless"]], ids=["daemon", "stateless"])
def test_what_the_daemon_reads_is_verified(tmp_path: Path, disk: RottingDisk, hfs_mount: HfsMount, mode: Mode) -> None:
    hfs, chunks = rotten_mount(tmp_path, disk, hfs_mount, "-o", "scrub=off", *mode.options)
    assert_right(hfs)
    # Of a file whose first chunk is wrong others may be fetched with it, and be looked at another time.
    assert len(SIZES) <= hfs.status()["faults"]["staged_checksum_failures"] <= chunks
    hfs.umount()


@needs_passthrough
def test_one_round_of_the_scrub_finds_all(tmp_path: Path, disk: RottingDisk, hfs_mount: HfsMount) -> None:
    hfs, chunks = rotten_mount(tmp_path, disk, hfs_mount, "-o", "scrub=1G", "--io-mode", "passthrough")
    scrub = until(hfs, lambda status: bool(status["scrub"]["rounds"]))["scrub"]
    assert scrub["damaged_chunks"] == chunks
    assert_right(hfs)
    warm(hfs)
    assert_right(hfs)
    assert hfs.status()["opens"]["passed"] > 0
    done = here("cache", "check", hfs.path)
    assert done.returncode == 0, done.stdout + done.stderr
    hfs.umount()


@needs_passthrough
def test_open_handles_of_the_kernel_get_the_right_bytes_once_damage_is_found(
    tmp_path: Path, disk: RottingDisk, hfs_mount: HfsMount
) -> None:
    """A backing file cannot be exchanged under a handle, so the right bytes come over the wrong ones."""
    hfs, _ = rotten_mount(tmp_path, disk, hfs_mount, "-o", "scrub=off", "--io-mode", "passthrough")
    number = len(SIZES) - 1
    wanted = pattern(number + 1, 0, SIZES[-1])
    with (hfs.path / str(number)).open("rb") as handle:
        assert handle.read() != wanted  # what passthrough cannot catch: see docs/promises.md
        assert here("cache", "check", hfs.path / str(number)).returncode != 0
        limit = time.monotonic() + LIMIT_S
        while os.pread(handle.fileno(), SIZES[-1], 0) != wanted:
            assert time.monotonic() < limit, hfs.status()
    hfs.umount()
