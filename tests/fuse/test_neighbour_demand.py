"""Mounts of one cache root: readers of one go before what the other fetches ahead, at the source and at the disk."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hfs.mountd.ledger import Board, CacheRoot, ServedSource
from hfs.mountd.ledger.record import read_notice
from hfs.policies.prefetch.yielding import Waits
from tests.fuse.harness import Hfs, drop_pages
from tests.fuse.slowfs import SlowFs
from tests.support.pattern import pattern

HfsMount = Callable[..., Hfs]
SlowSource = Callable[..., SlowFs]
COUNT, SIZE = 200, 20_000
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


class Neighbour:
    """A daemon of another source below the same root, that this process plays: it tells and hears."""

    def __init__(self, root: Path) -> None:
        self._root = CacheRoot(str(root))
        serving = ServedSource(source=b"/elsewhere", device=1, inode=1)
        self._entry = self._root.ledger.register(f"{os.geteuid()}-neighbour", serving, None, again=True)
        self.board = Board(self._root.ledger, self._entry, device=1)

    def disk_waits_of(self, hfs: Hfs) -> Waits:
        """What the daemon of this mount has told last."""
        with (hfs.cache / "ledger" / hfs.own_cache.name).open("rb") as record:
            told = read_notice(record.fileno())
        return told.disk if told is not None else Waits(0, 0, 0)

    def close(self) -> None:
        self.board.close()
        self._entry.close()
        self._root.close()


def counted(hfs: Hfs, name: str) -> int:
    return int(hfs.status()["counters"][name]["value"])


def test_readers_of_another_source_that_wait_for_the_cache_disk_go_before_staging_which_comes_to_its_end(
    source: SlowFs, hfs_mount: HfsMount
) -> None:
    """Small files, as the data plane stores them, and a large one."""
    ahead = hfs_mount(source.path / "ahead")
    source.order("fault read slow 100 path /ahead/")  # so that it lasts a second
    neighbour, over = Neighbour(ahead.cache), threading.Event()

    def wait_for_the_disk() -> None:
        while not over.wait(0.02):
            neighbour.board.exchange(Waits(0, 0, 0), Waits(0, 0, 1))

    teller = threading.Thread(target=wait_for_the_disk)
    teller.start()
    try:
        assert warm(ahead) == COUNT + 1, "the floor is enough to get on"
        assert counted(ahead, "staging_yields") >= 1
    finally:
        over.set()
        teller.join()
        neighbour.close()
    for name in range(COUNT):
        assert (ahead.path / str(name)).read_bytes() == pattern(name + 1, 0, SIZE)
    assert (ahead.path / "large").read_bytes() == pattern(1000, 0, LARGE)


def test_others_hear_of_readers_that_wait_for_what_is_staged(source: SlowFs, hfs_mount: HfsMount) -> None:
    reads = hfs_mount(source.path / "read", "--io-mode", "daemon")
    warm(reads)
    neighbour = Neighbour(reads.cache)
    try:
        before = neighbour.disk_waits_of(reads)
        while neighbour.disk_waits_of(reads).waits <= before.waits:  # until it has looked who is there
            for path in (reads.own_cache / "objects").rglob("*"):
                if path.is_file():
                    drop_pages(path)
            drop_pages(reads.path / "large")
            assert (reads.path / "large").read_bytes() == pattern(1000, 0, LARGE)
        assert neighbour.disk_waits_of(reads).waited_ns > before.waited_ns
    finally:
        neighbour.close()
