"""Files that change again within one tick of the source's clock, with a clock that is off: no stamp shows the change.

slowfs shows stamps of whole seconds here. What is waited for is the daemon's second look, as its status tells.
"""

import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hfs.client.client import Client
from tests.fuse.harness import Hfs, HfsMount
from tests.fuse.images import TIME_S, ext4_image, loops, why_no_images
from tests.fuse.slowfs import SlowSource
from tests.support.pattern import explain, pattern

CHUNK = 64 << 10
SIBLINGS = 100
SIZES = {"small": 3_000, "large": 5 * CHUNK + 77}
COARSE = ("--set", "stamp_ms=1000")
CLOCKS = [
    "clock_ahead_s=0",
    *(pytest.param(f"clock_{off}_s=7200", marks=pytest.mark.long) for off in ("ahead", "behind")),
]


@pytest.fixture
def backing(tmp_path: Path) -> Path:
    (tmp_path / "backing").mkdir()
    return tmp_path / "backing"


@pytest.fixture
def early(hfs_mount: HfsMount) -> Iterator[list[int]]:
    """Descriptors of a mount, closed before that goes."""
    opened: list[int] = []
    yield opened
    for descriptor in opened:
        os.close(descriptor)


def write(folder: Path, seed: int) -> None:
    folder.mkdir(exist_ok=True)
    for name, size in SIZES.items():
        with open(folder / name, "r+b" if (folder / name).exists() else "wb") as file:
            file.write(pattern(seed, 0, size))


def read(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in SIZES}


def expected(seed: int) -> dict[str, bytes]:
    return {name: pattern(seed, 0, size) for name, size in SIZES.items()}


def second_of(folder: Path) -> set[int]:
    """The whole seconds of the files' ctimes, which are all that slowfs shows."""
    return {(folder / name).stat().st_ctime_ns // 10**9 for name in SIZES}


def settled(hfs: Hfs) -> None:
    """Wait until the daemon has looked again at all that it had doubts about."""
    client = Client(str(hfs.socket))
    while client.status()["source"]["in_doubt"]:
        pass


def rewritten_unseen(backing: Path, look: Callable[[Path], object]) -> int:
    """Write files, look, write them again, all within one second. What stands there now, in a folder of that name."""
    seed = 1
    while True:
        folder = backing / str(seed + 1)
        write(folder, seed)
        began = second_of(folder)
        look(Path(folder.name))
        write(folder, seed + 1)
        if len(began | second_of(folder)) == 1:
            return seed + 1
        seed += 2


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_second_change_within_one_tick_is_seen(
    backing: Path, early: list[int], slow_source: SlowSource, hfs_mount: HfsMount, clock: str
) -> None:
    """A file that changes again within one tick of the source's clock keeps its size and times: it is seen all the same
    after the time-to-live and one tick, whatever the source's clock says, and no later daemon inherits the first
    bytes. Who has it open keeps them."""
    slow = slow_source(backing, "none", *COARSE, "--set", clock)
    hfs = hfs_mount(slow.path, "--ttl", "0")
    seen: dict[str, bytes] = {}

    def look(folder: Path) -> None:
        early.append(os.open(hfs.path / folder / "small", os.O_RDONLY))
        seen.update(read(hfs.path / folder))

    seed = rewritten_unseen(backing, look)
    assert seen == expected(seed - 1)
    settled(hfs)
    for name, data in read(hfs.path / str(seed)).items():
        assert data == pattern(seed, 0, SIZES[name]), explain(seed, 0, data)
    assert os.pread(early[-1], SIZES["small"], 0) == pattern(seed - 1, 0, SIZES["small"])
    while early:
        os.close(early.pop())
    assert hfs.status()["counters"]["racy_rewrites"]["value"] >= len(SIZES)
    hfs.umount()
    hfs.mount()
    assert read(hfs.path / str(seed)) == expected(seed)


def test_what_was_refuted_does_not_come_back_when_many_names_are_looked_through(
    backing: Path, early: list[int], slow_source: SlowSource, hfs_mount: HfsMount
) -> None:
    hfs = hfs_mount(slow_source(backing, "none", *COARSE).path, "--ttl", "0.5")

    def look(folder: Path) -> None:
        early.append(os.open(hfs.path / folder / "small", os.O_RDONLY))
        read(hfs.path / folder)

    seed = rewritten_unseen(backing, look)
    for number in range(100):
        (backing / str(seed) / f"{number:03d}").touch()
    settled(hfs)
    folder = hfs.path / str(seed)
    for _ in range(3):
        time.sleep(0.6)  # past the time-to-live
        for name in os.listdir(folder):
            os.lstat(folder / name)
        assert read(folder) == expected(seed)


def test_siblings_of_a_file_that_was_found_rewritten_are_fetched_without_python(
    backing: Path, early: list[int], slow_source: SlowSource, hfs_mount: HfsMount
) -> None:
    """Only that one is asked for by Python from then on; who has it open keeps the first state."""
    hfs = hfs_mount(slow_source(backing, "none", *COARSE).path, "--ttl", "0.5")

    def look(folder: Path) -> None:
        early.append(os.open(hfs.path / folder / "small", os.O_RDONLY))
        read(hfs.path / folder)
        for number in range(1, SIBLINGS):
            (backing / folder / str(number)).write_bytes(pattern(number, 0, 5000))

    seed = rewritten_unseen(backing, look)
    settled(hfs)
    folder = hfs.path / str(seed)
    before = hfs.status()["data_plane"]["opens_cached"]
    for number in range(1, SIBLINGS):
        assert (folder / str(number)).read_bytes() == pattern(number, 0, 5000)
    assert hfs.status()["data_plane"]["opens_cached"] - before > SIBLINGS // 2
    os.posix_fadvise(early[-1], 0, 0, os.POSIX_FADV_DONTNEED)
    assert read(folder) == expected(seed)
    assert os.pread(early[-1], SIZES["small"], 0) == pattern(seed - 1, 0, SIZES["small"])
    assert hfs.status()["counters"]["racy_rewrites"]["value"] >= len(SIZES)


def test_a_crash_before_the_second_look_leaves_nothing_of_the_first_state(
    backing: Path, slow_source: SlowSource, hfs_mount: HfsMount
) -> None:
    """A daemon that is killed between the read and the second look: what it has read is neither found in the cache nor
    in the pages of the mount, which outlive it."""
    slow = slow_source(backing, "none", *COARSE)
    hfs = hfs_mount(slow.path, "--ttl", "0")
    seed = rewritten_unseen(backing, lambda folder: read(hfs.path / folder))
    hfs.crash()
    assert read(hfs.path / str(seed)) == expected(seed)


def test_what_was_written_a_moment_ago_is_committed_after_a_second_look(
    backing: Path, slow_source: SlowSource, hfs_mount: HfsMount
) -> None:
    """Files that were written a moment ago are read twice, and committed then: `hfs cache warm` waits for it, and they
    survive a kill."""
    write(backing, 1)
    slow = slow_source(backing, "none", *COARSE)
    hfs = hfs_mount(slow.path)
    assert hfs.cache_command("warm", hfs.path).returncode == 0
    status = hfs.status()
    assert (status["source"]["in_doubt"], status["counters"]["racy_rewrites"]["value"]) == (0, 0)
    hfs.kill()
    hfs.mount()
    assert read(hfs.path) == expected(1)
    assert hfs.source_bytes() == 0


@pytest.mark.skipif(why_no_images() is not None, reason=str(why_no_images()))
def test_what_was_written_long_ago_is_read_once(
    tmp_path: Path, backing: Path, slow_source: SlowSource, hfs_mount: HfsMount
) -> None:
    """Files that are older than their directory by more than a tick are read once, also by a daemon that has seen
    nothing else of the source, whatever our clock says."""
    image = ext4_image(tmp_path / "image", str(uuid.uuid4()), expected(1), root_s=TIME_S + 3)
    with loops(1) as (loop,):
        loop.mount(image, backing)
        slow = slow_source(backing, "none", *COARSE)
        hfs = hfs_mount(slow.path)
        try:
            assert read(hfs.path) == expected(1)
            counters = hfs.status()["counters"]
            assert counters["source_read_bytes"]["value"] == sum(SIZES.values())
            assert counters["racy_reads"]["value"] == 0
        finally:
            hfs.umount()
            slow.close()
            loop.umount(backing)


def test_what_was_read_within_a_tick_stays_with_its_handle(
    backing: Path, slow_source: SlowSource, hfs_mount: HfsMount
) -> None:
    """Also when its name is another file's at once, somebody opens that, and the pages of the first have gone."""
    write(backing, 1)
    source = slow_source(backing, "none", *COARSE)
    hfs = hfs_mount(source.path, "-o", "ttl=0.1")
    files = {name: os.open(hfs.path / name, os.O_RDONLY) for name in SIZES}
    try:
        for name, size in SIZES.items():
            assert os.pread(files[name], size, 0) == pattern(1, 0, size)
        write(backing / "new", 2)
        for name in SIZES:
            (backing / "new" / name).rename(backing / name)
        settled(hfs)
        while read(hfs.path) != expected(2):
            pass
        for name, size in SIZES.items():
            os.posix_fadvise(files[name], 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(files[name], size, 0) == pattern(1, 0, size)
    finally:
        for file in files.values():
            os.close(file)
    settled(hfs)
    assert read(hfs.path) == expected(2)
