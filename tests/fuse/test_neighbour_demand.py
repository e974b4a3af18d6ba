"""Mounts of one cache root: readers of one go before what the other fetches ahead, at the source and at the disk."""

import json
import threading
from pathlib import Path

import pytest

from tests.fuse.harness import Hfs, HfsMount
from tests.fuse.slowfs import SlowFs, SlowSource
from tests.support.pattern import pattern

COUNT, SIZE = 50, 20_000
LARGE = 3 << 20


@pytest.fixture
def source(tmp_path: Path, slow_source: SlowSource) -> SlowFs:
    """`read`, and `ahead` beside it: two sources of one file system."""
    for part in ("read", "ahead"):
        (tmp_path / "backing" / part).mkdir(parents=True)
        for name in range(COUNT):
            (tmp_path / "backing" / part / str(name)).write_bytes(pattern(name + 1, 0, SIZE))
        (tmp_path / "backing" / part / "large").write_bytes(pattern(1000, 0, LARGE))
    return slow_source(tmp_path / "backing", "lustre")


def yields(hfs: Hfs) -> int:
    return int(hfs.status()["ahead"]["prefetch_yields"])


def warm(hfs: Hfs) -> int:
    """Files that are staged in the end."""
    done = hfs.cache_command("warm", "--json", hfs.path)
    assert done.returncode == 0, done.stdout + done.stderr
    return int(json.loads(done.stdout.splitlines()[-1])["files"])


@pytest.mark.parametrize("name", ["7", "large"])
def test_prefetch_of_one_steps_back_while_a_reader_of_the_other_waits_and_still_comes_to_its_end(
    source: SlowFs, hfs_mount: HfsMount, name: str
) -> None:
    """A small file, as the data plane fetches it, and a large one. Counted, not timed: the reader waits until it is let
    go, and the other mount is warmed meanwhile."""
    reads = hfs_mount(source.path / "read", "-o", "siblings=0")
    ahead = hfs_mount(source.path / "ahead")
    for first in range(20, 24):  # by now small files are fetched without Python
        assert (reads.path / str(first)).read_bytes() == pattern(first + 1, 0, SIZE)
    source.order("fault read hang forever path /read/", "fault read slow 100 path /ahead/")  # so that it lasts a second
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append((reads.path / name).read_bytes()))
    reader.start()
    try:
        while not source.counters()["parked"]:
            pass
        assert warm(ahead) == COUNT + 1, "the floor is enough to get on"
        assert yields(ahead) >= 1
        assert yields(reads) == 0, "its own prefetch has nobody to step back for"
        assert not found
    finally:
        source.order("clear")
        reader.join()
    assert found == [pattern(1000, 0, LARGE) if name == "large" else pattern(int(name) + 1, 0, SIZE)]


def test_mounts_of_another_server_or_another_root_are_left_alone(
    source: SlowFs, tmp_path: Path, hfs_mount: HfsMount, slow_source: SlowSource
) -> None:
    elsewhere = slow_source(tmp_path / "backing", "lustre")
    reads = hfs_mount(source.path / "read", "-o", "siblings=0")
    ahead = [hfs_mount(elsewhere.path / "ahead"), hfs_mount(source.path / "ahead", cache=tmp_path / "cache-2")]
    source.order("fault read hang forever path /read/")
    reader = threading.Thread(target=lambda: (reads.path / "7").read_bytes())
    reader.start()
    try:
        while not source.counters()["parked"]:
            pass
        for hfs in ahead:
            assert warm(hfs) == COUNT + 1
            assert yields(hfs) == 0
    finally:
        source.order("clear")
        reader.join()
