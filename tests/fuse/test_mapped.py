"""Files read through page faults at random, as LMDB does with readahead=False, by readers who say nothing."""

import mmap
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuse.harness import ROOT, HfsMount, environment
from tests.fuse.slowfs import SlowSource
from tests.support.pattern import pattern, write_pattern

CHUNK = 512 << 10
SIZE = 40 * CHUNK + 77
PAGE = mmap.PAGESIZE

READER = """
import mmap, random, sys
from tests.support.pattern import pattern
path, seed = sys.argv[1], int(sys.argv[2])
with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
    mapped.madvise(mmap.MADV_RANDOM)
    pages = list(range(0, len(mapped), mmap.PAGESIZE))
    random.Random(seed).shuffle(pages)
    for page in pages:
        end = min(page + 8, len(mapped))
        assert mapped[page:end] == pattern(1, page, end - page), page
"""

HALF = """
import mmap, sys
with open(sys.argv[1], "rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
    mapped.madvise(mmap.MADV_RANDOM)
    first = mapped[:8]
    print("mapped", flush=True)
    sys.stdin.readline()
    assert mapped[:8] == first
    mapped[len(mapped) - 8 :]
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with a large file of seed 1."""
    folder = tmp_path / "data"
    folder.mkdir()
    write_pattern(folder / "file", 1, SIZE)
    return folder


def child(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_four_readers_through_page_faults_read_the_source_once(
    data: Path, slow_source: SlowSource, hfs_mount: HfsMount
) -> None:
    source = slow_source(data)
    hfs = hfs_mount(source.path, chunk_bytes=CHUNK)
    readers = [child(READER, str(hfs.path / "file"), str(seed)) for seed in range(4)]
    assert [reader.wait() for reader in readers] == [0] * 4
    assert source.counters()["read_bytes"] <= 1.05 * SIZE
    for reader in readers:
        reader.communicate()


def test_a_map_of_a_version_that_has_gone_gets_sigbus_and_the_mount_goes_on(data: Path, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(data, "--ttl", "0", chunk_bytes=CHUNK)
    reader = child(HALF, str(hfs.path / "file"))
    assert reader.stdout is not None
    assert reader.stdout.readline() == "mapped\n"
    write_pattern(data / "file", 2, CHUNK + 5)
    reader.communicate("\n")
    assert reader.returncode == -signal.SIGBUS
    assert (hfs.path / "file").read_bytes() == pattern(2, 0, CHUNK + 5)


@pytest.mark.parametrize("cache_size", ["4M", "512K"])
def test_random_page_faults_with_a_cache_too_small_and_little_memory(
    data: Path, hfs_mount: HfsMount, cache_size: str
) -> None:
    hfs = hfs_mount(data, "-o", "buffer=1M", chunk_bytes=CHUNK, cache_size=cache_size)
    rng = random.Random(3)
    with (
        open(hfs.path / "file", "rb") as file,
        mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped,
    ):
        mapped.madvise(mmap.MADV_RANDOM)
        for _ in range(200):
            at = rng.randrange(SIZE - 8)
            assert mapped[at : at + 8] == pattern(1, at, 8)
