"""Stateless mode on real mounts: the kernel opens by itself after the first time, and what a reader sees then.

No handle is known to the daemon: nothing is pinned, nothing tells it who reads. So files are evicted and nodes
forgotten under readers here, and every byte must be right all the same.
"""

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuse.conftest import SMALL_CHUNK_BYTES as CHUNK
from tests.fuse.harness import Hfs, HfsMount, drop_pages, must_here
from tests.fuse.modes import needs_passthrough, warm
from tests.support.pattern import pattern, write_pattern

pytestmark = needs_passthrough

SIZE = 23 * CHUNK + 77
STATELESS = ("--io-mode", "stateless", "--immutable")
AUTO = ("--immutable",)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """`large` and 80 small files."""
    folder = tmp_path / "source"
    folder.mkdir()
    write_pattern(folder / "large", 100, SIZE)
    for number in range(80):
        write_pattern(folder / str(number), number + 1, 3000 + 7 * number)
    return folder


def read_small(hfs: Hfs, numbers: range) -> None:
    for number in numbers:
        assert (hfs.path / str(number)).read_bytes() == pattern(number + 1, 0, 3000 + 7 * number)


def opens(hfs: Hfs) -> dict[str, int]:
    return hfs.status()["opens"]


def test_only_the_first_open_is_asked_for(source: Path, hfs_mount: HfsMount) -> None:
    """By any number of processes, of files that were never opened before too."""
    hfs = hfs_mount(source, *STATELESS)
    read_small(hfs, range(1))
    assert opens(hfs) == {"cached": 0, "passed": 0, "anew": 0, "stateless": 1}
    read_small(hfs, range(40))
    reader = "import pathlib, sys; [p.read_bytes() for p in pathlib.Path(sys.argv[1]).iterdir()]"
    readers = [subprocess.Popen([sys.executable, "-c", reader, str(hfs.path)]) for _ in range(2)]
    assert [process.wait() for process in readers] == [0, 0]
    read_small(hfs, range(80))
    assert opens(hfs) == {"cached": 0, "passed": 0, "anew": 0, "stateless": 1}
    status = hfs.status()
    assert status["open"]["files"] == 0
    assert sum(status["reads"].values()) >= 81  # they did come to the daemon, without handles


def test_a_large_file_at_random_and_mapped_and_the_holes_of_one(source: Path, hfs_mount: HfsMount) -> None:
    with (source / "hole").open("wb") as file:
        file.seek(SIZE)
        file.write(b"data")
        file.flush()
        first_data = os.lseek(file.fileno(), 0, os.SEEK_DATA)
    hfs = hfs_mount(source, *STATELESS)
    with (hfs.path / "hole").open("rb") as file:
        assert os.lseek(file.fileno(), 0, os.SEEK_DATA) == first_data > 0
    with open(hfs.path / "large", "rb", buffering=0) as file:
        for at in (SIZE - 1000, 5 * CHUNK - 3, 0, 17 * CHUNK, SIZE + 5):
            assert os.pread(file.fileno(), 2000, at) == pattern(100, at, min(2000, max(0, SIZE - at)))
        with mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
            assert mapped[:] == pattern(100, 0, SIZE)
    assert opens(hfs)["stateless"] == 1


def test_eviction_under_a_reader(source: Path, hfs_mount: HfsMount) -> None:
    """Nothing is pinned: the staged file goes, the reader gets the rest from the source, and it is staged again."""
    hfs = hfs_mount(source, *STATELESS)
    warm(hfs)
    with open(hfs.path / "large", "rb", buffering=0) as file:
        assert os.pread(file.fileno(), 3 * CHUNK, 0) == pattern(100, 0, 3 * CHUNK)
        must_here("cache", "evict", "--all", hfs.path)
        assert hfs.status()["staged"]["files"] == 0
        before = hfs.source_bytes()
        drop_pages(hfs.path / "large")
        assert b"".join(os.pread(file.fileno(), CHUNK, at) for at in range(0, SIZE, CHUNK)) == pattern(100, 0, SIZE)
        assert hfs.source_bytes() - before == SIZE
        warm(hfs)
        drop_pages(hfs.path / "large")
        assert b"".join(os.pread(file.fileno(), CHUNK, at) for at in range(0, SIZE, CHUNK)) == pattern(100, 0, SIZE)
        assert hfs.status()["staged"]["files"] == 81


@pytest.mark.alone
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make the kernel forget")
def test_the_kernel_forgets_under_a_reader(source: Path, hfs_mount: HfsMount) -> None:
    """Nodes that nobody has open are forgotten; read again they are new nodes, and no read meets another file's."""
    hfs = hfs_mount(source, *STATELESS)
    with open(hfs.path / "large", "rb", buffering=0) as file:
        assert os.pread(file.fileno(), 100, 0) == pattern(100, 0, 100)
        read_small(hfs, range(80))
        assert hfs.status()["open"]["nodes"] >= 82
        Path("/proc/sys/vm/drop_caches").write_text("2")
        assert hfs.status()["open"]["nodes"] < 80
        assert os.pread(file.fileno(), 100, SIZE - 100) == pattern(100, SIZE - 100, 100)
        read_small(hfs, range(79, -1, -1))
    assert opens(hfs)["stateless"] == 1


# -- auto -------------------------------------------------------------------------------------------------------------


def test_auto_becomes_stateless_once_it_has_seen_small_files_only(source: Path, hfs_mount: HfsMount) -> None:
    """What was open before stays what it was: handles of both kinds live side by side."""
    hfs = hfs_mount(source, *AUTO)
    warm(hfs)
    read_small(hfs, range(62))
    with open(hfs.path / "62", "rb", buffering=0) as before:
        for _ in range(3):  # status opens files by itself, which must not count
            assert hfs.status()["io_mode"]["mode"] == "passthrough"
        read_small(hfs, range(63))
        assert hfs.status()["io_mode"]["mode"] == "passthrough"
        read_small(hfs, range(63, 80))
        io_mode = hfs.status()["io_mode"]
        assert (io_mode["mode"], opens(hfs)["stateless"]) == ("stateless", 1)
        assert "all small" in io_mode["reason"]
        drop_pages(hfs.path / "62")
        assert before.read() == pattern(63, 0, 3000 + 7 * 62)
        with open(hfs.path / "large", "rb", buffering=0) as after:
            assert os.pread(after.fileno(), 5000, 9 * CHUNK) == pattern(100, 9 * CHUNK, 5000)
    read_small(hfs, range(80))
    status = hfs.status()
    assert (status["open"]["files"], status["opens"]["stateless"]) == (0, 1)


def test_auto_is_stateless_only_in_a_mount_that_finds_its_files_staged(source: Path, hfs_mount: HfsMount) -> None:
    """Small files that nobody has read are fetched faster where opens are asked for."""
    hfs = hfs_mount(source, *AUTO)
    for _ in range(2):
        read_small(hfs, range(80))
        assert hfs.status()["io_mode"]["mode"] == "passthrough"
    assert "finds its small files staged" in hfs.status()["io_mode"]["reason"]
    hfs.umount()
    hfs.mount()
    while opens(hfs)["stateless"] == 0:  # what is opened without Python is heard of a moment later
        read_small(hfs, range(80))
    assert hfs.status()["io_mode"]["mode"] == "stateless"
    read_small(hfs, range(80))


def test_auto_stays_with_passthrough_where_there_is_a_large_file(tmp_path: Path, hfs_mount: HfsMount) -> None:
    tree = tmp_path / "source"
    tree.mkdir()
    write_pattern(tree / "large", 100, (1 << 20) + 1)
    for number in range(80):
        write_pattern(tree / str(number), number + 1, 3000 + 7 * number)
    hfs = hfs_mount(tree, *AUTO)
    warm(hfs)
    read_small(hfs, range(10))
    assert (hfs.path / "large").read_bytes() == pattern(100, 0, (1 << 20) + 1)
    read_small(hfs, range(80))
    read_small(hfs, range(80))
    status = hfs.status()
    assert status["io_mode"]["mode"] == "passthrough"
    assert "files above 1 MiB" in status["io_mode"]["reason"]
    assert status["opens"]["stateless"] == 0
    assert status["opens"]["passed"] >= 1
