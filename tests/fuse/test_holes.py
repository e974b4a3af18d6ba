"""Files with large holes, as an LMDB with a writemap has: what they take of cache and time is their data's."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuse.harness import Hfs, drop_pages, must
from tests.support.faults import disk_bytes
from tests.support.pattern import pattern

HfsMount = Callable[..., Hfs]

CHUNK = 8 << 20
PIECE = 64 << 10


def make(path: Path, size: int, pieces: int) -> dict[int, bytes]:
    """A file of this size, and what it has where, holes but for these: pieces begin anywhere, the last byte is one."""
    data = {}
    with path.open("wb") as file:
        file.truncate(size)
        for number in range(pieces):
            at = number * (size // pieces) + 4097 * number
            data[at] = pattern(number + 1, 0, PIECE)
            os.pwrite(file.fileno(), data[at], at)
        data[size - 1] = b"e"
        os.pwrite(file.fileno(), b"e", size - 1)
    return data


def check(path: Path, size: int, data: dict[int, bytes]) -> None:
    drop_pages(path)
    with path.open("rb", buffering=0) as file:
        assert os.fstat(file.fileno()).st_size == size
        for at, expected in data.items():
            assert os.pread(file.fileno(), len(expected), at) == expected
            assert os.pread(file.fileno(), min(5000, at), max(0, at - 5000)) == bytes(min(5000, at))
            if at + len(expected) < size:
                assert os.pread(file.fileno(), 5000, at + len(expected)) == bytes(5000)


@pytest.mark.parametrize(
    "size", [(1 << 30) + 77, pytest.param((8 << 30) + 77, marks=pytest.mark.long)], ids=["1G", "8G"]
)
def test_holes_take_neither_room_nor_reads(tmp_path: Path, hfs_mount: HfsMount, size: int) -> None:
    source = tmp_path / "source"
    source.mkdir()
    data = make(source / "data.mdb", size, 48)
    blocks_bytes = (source / "data.mdb").stat().st_blocks * 512
    hfs = hfs_mount(source, chunk_bytes=CHUNK, cache_size="64M")
    dry = hfs.cache_command("warm", "--dry-run", hfs.path)
    assert "all of it fits" in dry.stdout, dry.stdout + dry.stderr
    warm = hfs.cache_command("warm", hfs.path)
    assert warm.returncode == 0, warm.stdout + warm.stderr
    assert blocks_bytes <= disk_bytes(str(hfs.own_cache)) <= 8 << 20
    room_bytes = hfs.status()["staged"]["room_bytes"]
    assert disk_bytes(str(hfs.own_cache)) <= room_bytes <= 8 << 20
    assert hfs.source_bytes() <= 49 * CHUNK * 2
    check(hfs.path / "data.mdb", size, data)
    hfs.crash()
    check(hfs.path / "data.mdb", size, data)
    hfs.umount()
    hfs.mount()
    check(hfs.path / "data.mdb", size, data)
    assert hfs.source_bytes() == 0
    assert hfs.status()["staged"]["room_bytes"] == room_bytes
    must("cmp", "-n", str(64 << 20), source / "data.mdb", hfs.path / "data.mdb")
    assert hfs.cache_command("evict", hfs.path).returncode == 0
    assert hfs.status()["staged"]["room_bytes"] == 0
