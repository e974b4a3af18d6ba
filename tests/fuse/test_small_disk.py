"""A cache disk that is smaller than what is asked of it: what is left to others, and what `hfs cache warm` says."""

import json
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fuse.harness import Hfs, HfsMount, here, must, must_here
from tests.support.pattern import pattern

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk")


DISK_BYTES = 60 << 20
FLOOR_BYTES = DISK_BYTES // 20
LEAST_BYTES = FLOOR_BYTES - (3 << 19)
"""The index is not counted: it grows, its log most of all, until the disk is looked at again."""
CHUNK = 512 << 10
SIZE = 2 << 20
COUNT = 40


@pytest.fixture(params=["ext4", pytest.param("tmpfs", marks=pytest.mark.long)])
def disk(request: pytest.FixtureRequest, tmp_path: Path, _nothing_left: None) -> Iterator[Path]:
    """A disk of 60 MiB of its own."""
    path = tmp_path / "disk"
    path.mkdir()
    if request.param == "tmpfs":
        must("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", path)
    else:
        image = tmp_path / "image"
        with image.open("wb") as file:
            file.truncate(DISK_BYTES)
        must("mkfs.ext4", "-q", "-O", "^has_journal", image)
        must("mount", "-o", "loop", image, path)
    yield path
    must("umount", path)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """80 MiB in 40 files."""
    path = tmp_path / "source"
    path.mkdir()
    for number in range(COUNT):
        (path / str(number)).write_bytes(pattern(number + 1, 0, SIZE))
    return path


def free_bytes(disk: Path) -> int:
    figures = os.statvfs(disk)
    return figures.f_bavail * figures.f_frsize


def warmed(hfs: Hfs, path: Path) -> tuple[int, dict[str, Any], set[str]]:
    """Exit code, the last line, and what was said of those that failed."""
    done = hfs.cache_command("warm", path, "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, lines[-1], {fault["message"] for line in lines for fault in line["faults"]}


def staged_whole(cache: Path) -> int:
    """How many files a cache without a mount has complete."""
    listed = must_here("cache", "list", "--cache", cache, "--json")
    return int(json.loads(listed.splitlines()[-1])["complete"])


def test_warm_says_what_is_durable_and_the_floor_holds(disk: Path, source: Path, hfs_mount: HfsMount) -> None:
    """--cache-size is larger than the disk: what fits is staged, the rest is named with its reason, code 3."""
    hfs = hfs_mount(source, cache=disk / "cache", cache_size="1G", chunk_bytes=CHUNK)
    code, last, reasons = warmed(hfs, hfs.path)
    assert free_bytes(disk) >= LEAST_BYTES
    assert code == 3
    assert 20 <= last["files"] < COUNT
    assert last["files"] + last["failed"] == last["files_total"] == COUNT
    assert last["bytes"] == last["files"] * SIZE
    assert all("the cache disk is full" in reason for reason in reasons), reasons
    assert hfs.status()["staged"]["capacity_bytes"] <= DISK_BYTES - FLOOR_BYTES
    hfs.kill()  # what was told is what is there, whatever happens next
    must("umount", "-l", hfs.path)
    hfs.mounted = False
    assert staged_whole(disk / "cache") == last["files"]
    assert here("cache", "check", "--cache", disk / "cache").returncode == 0


def test_warm_of_small_files_says_what_is_durable(disk: Path, tmp_path: Path, hfs_mount: HfsMount) -> None:
    """Sixteen in one call of the source, one transaction for all that were written together."""
    (small := tmp_path / "small").mkdir()
    for number in range(300):
        (small / str(number)).write_bytes(pattern(number + 1, 0, 250_000))
    hfs = hfs_mount(small, cache=disk / "cache", cache_size="1G", chunk_bytes=8 << 20)
    code, last, reasons = warmed(hfs, hfs.path)
    assert free_bytes(disk) >= LEAST_BYTES
    assert (code, last["files"] + last["failed"]) == (3, 300)
    assert 150 <= last["files"] < 250
    assert all("the cache disk is full" in reason for reason in reasons), reasons
    hfs.umount()
    assert staged_whole(disk / "cache") == last["files"]


def test_what_does_not_fit_is_read_all_the_same(disk: Path, source: Path, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(source, cache=disk / "cache", cache_size="1G", chunk_bytes=CHUNK)
    for number in range(COUNT):
        assert (hfs.path / str(number)).read_bytes() == pattern(number + 1, 0, SIZE)
        assert free_bytes(disk) >= LEAST_BYTES


@pytest.mark.parametrize("eviction", ["fill-once", "lru"])
def test_warm_tells_that_the_size_is_reached(tmp_path: Path, source: Path, hfs_mount: HfsMount, eviction: str) -> None:
    """That is not the same as a disk that is full. Under lru what is staged later makes what came first go."""
    hfs = hfs_mount(source, "--eviction", eviction, cache_size="21M", chunk_bytes=CHUNK)
    code, last, reasons = warmed(hfs, hfs.path)
    assert code == 3
    assert last["files"] + last["failed"] == COUNT
    assert all("cache-size reached" in reason for reason in reasons), reasons
    hfs.umount()
    assert staged_whole(hfs.cache) == last["files"]
    assert 5 <= last["files"] <= 10


def test_warm_tells_that_the_disk_did_not_take_it(tmp_path: Path, hfs_mount: HfsMount) -> None:
    """No file may be larger than 1 MiB: the daemon's writes beyond fail as on a disk that is broken or over quota."""
    (source := tmp_path / "source").mkdir()
    (source / "small").write_bytes(pattern(1, 0, 100_000))
    (source / "large").write_bytes(pattern(2, 0, 3 << 20))
    hfs = hfs_mount(source)
    assert warmed(hfs, hfs.path / "small")[0] == 0  # first: a disk that has refused the large one is left to rest
    resource.prlimit(hfs.pid, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    hfs.expect_warning("staging a chunk")
    code, last, reasons = warmed(hfs, hfs.path)
    assert (code, last["files"], last["failed"]) == (3, 1, 1)
    assert all("the cache disk did not take it" in reason and "File too large" in reason for reason in reasons), reasons
    assert (hfs.path / "large").read_bytes() == pattern(2, 0, 3 << 20)


def test_the_floor_holds_while_others_write(disk: Path, source: Path, hfs_mount: HfsMount) -> None:
    """Another program writes to the same disk: the cache makes room for it, again and again."""
    hfs = hfs_mount(source, cache=disk / "cache", cache_size="1G", chunk_bytes=CHUNK)
    warmed(hfs, hfs.path)
    before = hfs.status()["staged"]["room_bytes"]
    for number in range(3):
        with (disk / f"result-{number}").open("wb") as result:
            result.write(os.urandom(FLOOR_BYTES - (1 << 20)))
            os.fsync(result.fileno())
        while free_bytes(disk) < FLOOR_BYTES * 0.9:
            warmed(hfs, hfs.path)  # whoever finds no room has the disk looked at
        assert (hfs.path / "0").read_bytes() == pattern(1, 0, SIZE)
    status = hfs.status()
    # Of the three results one fits into the floor, and another at most into what the index's log has given back.
    assert status["staged"]["room_bytes"] <= before - (FLOOR_BYTES - (1 << 20))
    assert status["evicted"]["files"] > 0
    assert here("cache", "check", hfs.path).returncode == 0


def test_a_look_at_a_cache_on_a_full_disk_evicts_nothing(disk: Path, source: Path, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(source, cache=disk / "cache", cache_size="20M", chunk_bytes=CHUNK)
    warmed(hfs, hfs.path)
    hfs.umount()
    staged = staged_whole(disk / "cache")
    with (disk / "result").open("wb") as result:
        os.posix_fallocate(result.fileno(), 0, free_bytes(disk) - (1 << 20))
    for _ in range(2):
        assert staged_whole(disk / "cache") == staged
