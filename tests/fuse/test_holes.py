"""Files with large holes, as an LMDB with a writemap has: what they take of cache and time is their data's."""

import errno
import os
from pathlib import Path

import pytest

from tests.fuse.harness import HfsMount, drop_pages, must
from tests.fuse.modes import needs_passthrough
from tests.fuse.slowfs import SlowSource
from tests.fuse.users import User, needs_root
from tests.support.faults import disk_bytes
from tests.support.pattern import pattern

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
    status = hfs.status()
    room_bytes = status["staged"]["room_bytes"]
    assert status["counters"]["staging_put_bytes"]["value"] <= 49 * CHUNK  # of all others nothing is written
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


SIZES = {"empty": 0, "byte": 1, "dense": 300_000, "hole": 1 << 20, "small": 50_000, "large": 3 << 20, "odd": 5_000_077}
PIECES = {"small": (3, 40_000), "large": (0, 70_000, 1 << 20, 2 << 20), "odd": (1 << 20, 5_000_070)}


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    """Files with holes at the start, at the end, everywhere and nowhere."""
    source = tmp_path / "source"
    source.mkdir()
    for name, size in SIZES.items():
        with (source / name).open("wb") as file:
            file.truncate(size)
            for at in PIECES.get(name, ()):
                os.pwrite(file.fileno(), b"data"[: size - at], at)
            if name in {"byte", "dense"}:
                file.write(bytes(size))
            os.fsync(file.fileno())
    return source


def holes(file: int, size: int) -> list[int]:
    """What lseek(2) says from each place on where there may be something."""
    steps = (at + by for at in range(0, size, 1 << 18) for by in (-1, 0, 1))
    places = {0, 1, size - 1, size, size + 1, 1 << 40, *steps}
    found = []
    for at in sorted(place for place in places if place >= 0):
        for whence in (os.SEEK_DATA, os.SEEK_HOLE):
            try:
                found.append(os.lseek(file, at, whence))
            except OSError as error:
                found.append(-(error.errno or 0))
    return found


def all_holes(folder: Path) -> dict[str, list[int]]:
    found = {}
    for name, size in SIZES.items():
        with (folder / name).open("rb") as file:
            found[name] = holes(file.fileno(), size)
    return found


@needs_root
@needs_passthrough
def test_lseek_finds_the_holes_of_the_source(tmp_path: Path, sparse: Path, hfs_mount: HfsMount) -> None:
    expected = all_holes(sparse)
    assert len(set(expected["odd"])) > 8, "this file system tells of no holes"
    hfs = hfs_mount(sparse)
    assert all_holes(hfs.path) == expected
    with (hfs.path / "odd").open("rb") as before:
        assert hfs.cache_command("warm", hfs.path).returncode == 0
        hfs.crash()
        assert holes(before.fileno(), SIZES["odd"]) == expected["odd"]
        assert all_holes(hfs.path) == expected
        assert User(1001, 1001).told(hfs.path, lambda: all_holes(Path())) == repr(expected)
        assert hfs.status()["opens"]["passed"]
    must("cp", "--sparse=auto", hfs.path / "large", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == (sparse / "large").read_bytes()
    assert (tmp_path / "copy").stat().st_blocks <= (sparse / "large").stat().st_blocks
    must("tar", "-C", hfs.path, "-Scf", tmp_path / "tar", "odd")
    assert (tmp_path / "tar").stat().st_size < 1 << 17


def test_what_nobody_tells_is_data(sparse: Path, slow_source: SlowSource, hfs_mount: HfsMount) -> None:
    """Of a source that knows no holes, and of a version that has gone from it."""
    hfs = hfs_mount(slow_source(sparse).path, "--ttl", "0")
    found = all_holes(hfs.path)
    with (hfs.path / "odd").open("rb") as file:
        (sparse / "new").write_bytes(b"new")
        (sparse / "new").rename(sparse / "odd")
        found["gone"] = holes(file.fileno(), SIZES["odd"])
    for name, size in [*SIZES.items(), ("gone", SIZES["odd"])]:
        data, end = found[name][::2], found[name][1::2]
        assert set(end) == ({size, -errno.ENXIO} if size else {-errno.ENXIO}), name
        assert data.count(-errno.ENXIO) == end.count(-errno.ENXIO), name
