"""After kill -9 what was synced is not read from the source again, by its own counters; what was not is read once."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fuse.harness import Hfs, HfsMount, drop_pages, environment, hfs_command, must_here, unmount_lazily
from tests.fuse.slowfs import SlowFs, SlowSource
from tests.support.pattern import pattern

SAME = ("--source-id", "00000000000000aa")
"""slowfs has no identity that outlives its mount."""
CHUNK = 64 << 10
SIZES = {"small": 5000, "whole": 10 * CHUNK + 77, "part": 12 * CHUNK}


@pytest.fixture
def slow(tmp_path: Path, slow_source: SlowSource) -> SlowFs:
    backing = tmp_path / "backing"
    backing.mkdir()
    for seed, (name, size) in enumerate(SIZES.items(), start=1):
        (backing / name).write_bytes(pattern(seed, 0, size))
    return slow_source(backing)


def rows(*arguments: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """What `hfs cache list` says, by the last part of the name."""
    listed = must_here("cache", "list", *arguments, "--json").splitlines()[:-1]
    return {os.path.basename(row["path"]): row for row in map(json.loads, listed)}


def read_bytes(slow: SlowFs) -> int:
    return int(slow.counters()["read_bytes"])


def mount_again(hfs: Hfs) -> None:
    """The whole family is killed, as in a power cut, and somebody mounts anew."""
    hfs.kill()
    unmount_lazily(hfs.path)
    hfs.mount()


@pytest.mark.parametrize("again", [Hfs.crash, mount_again], ids=["the keeper starts the next", "mounted anew"])
@pytest.mark.parametrize("mode", ["auto", "daemon"])
def test_what_was_synced_is_not_read_again(
    slow: SlowFs, hfs_mount: HfsMount, mode: str, again: Callable[[Hfs], None]
) -> None:
    # Nothing ahead of the reader: what is staged is what was read.
    hfs = hfs_mount(slow.path, *SAME, "--io-mode", mode, "-o", "push=no", chunk_bytes=CHUNK)
    for name in ("small", "whole"):
        (hfs.path / name).read_bytes()
    with (hfs.path / "part").open("rb", buffering=0) as part:
        os.posix_fadvise(part.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for index in (2, 7):
            os.pread(part.fileno(), CHUNK, index * CHUNK)
    staged = rows(hfs.path)  # it asks for all that was put to become durable
    assert [staged[name]["staged_bytes"] for name in ("small", "whole")] == [SIZES["small"], SIZES["whole"]]
    part_bytes = staged["part"]["staged_bytes"] if "part" in staged else 0
    for _ in range(2):
        before = read_bytes(slow)
        again(hfs)
        for seed, name in enumerate(("small", "whole"), start=1):
            drop_pages(hfs.path / name)
            assert (hfs.path / name).read_bytes() == pattern(seed, 0, SIZES[name])
        assert read_bytes(slow) == before
    before = read_bytes(slow)
    drop_pages(hfs.path / "part")
    assert (hfs.path / "part").read_bytes() == pattern(3, 0, SIZES["part"])
    assert read_bytes(slow) - before == SIZES["part"] - part_bytes


def test_what_a_warm_has_told_is_not_read_again(tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount) -> None:
    """Killed in the middle: what it counted as done by then is there, and the next warm goes on where it was."""
    backing, count, size = tmp_path / "backing", 60, 30_000
    for folder in ("early", "late"):
        (backing / folder).mkdir(parents=True)
    for number in range(count):
        folder = "early" if number < count // 2 else "late"
        (backing / folder / str(number)).write_bytes(pattern(number + 1, 0, size))
    slow = slow_source(backing)
    hfs = hfs_mount(slow.path, *SAME)
    slow.order("fault read hang path /late/")
    command = [hfs_command(), "cache", "warm", str(hfs.path / "early"), str(hfs.path / "late"), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment()) as warm:
        assert warm.stdout
        told = 0
        while told < count // 8:  # others may be in one batch with files that hang
            told = json.loads(warm.stdout.readline())["files"]
        hfs.kill()
        slow.order("clear")
        warm.wait()
    unmount_lazily(hfs.path)
    early = rows("--cache", hfs.cache)
    assert len(early) >= told
    assert all(row["complete"] for row in early.values())
    slow.remount()  # what hung has come into its page cache by now
    hfs.mount()
    done = json.loads(must_here("cache", "warm", hfs.path, "--json").splitlines()[-1])
    assert (done["files"], done["skipped"]) == (count, len(early))
    assert read_bytes(slow) == (count - len(early)) * size
