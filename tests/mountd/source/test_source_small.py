"""Small files in one call, on real files: the extension and the same in Python say the same, and are exact."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hfs.mountd.base.attributes import Attributes
from hfs.mountd.cache.index import Stamp
from hfs.mountd.cache.objects import disk as staging_disk
from hfs.mountd.cache.objects.disk import Disk
from hfs.mountd.cache.objects.stamps import stamp_of
from hfs.mountd.core.cache_directory import open_cache_directory
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.source import small as source_small
from hfs.mountd.source.small import BatchProgress, SmallRead, read_files
from tests.support.opened_source import opened
from tests.support.pattern import pattern

LIMIT = 64 << 10
SIZES = [0, 1, 4095, 4096, 4097, 20_000, LIMIT]


@pytest.fixture(params=["the extension", "plain"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without the extension."""
    if request.param == "plain":
        monkeypatch.setattr(source_small, "_extension", None)
        monkeypatch.setattr(staging_disk, "_extension", None)
    elif source_small._extension is None:
        assert not os.environ.get("CI"), "it must be there where everything is checked"
        pytest.skip("the extension was not built")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def read(directory: int, *names: bytes, room: int = 1 << 20, careful: bool = False) -> list[SmallRead]:
    into = memoryview(mmap.mmap(-1, room))
    return read_files([directory] * len(names), names, into, BatchProgress(), LIMIT, careful=careful)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("careful", [False, True])
def test_files_are_read_byte_for_byte_with_their_attributes(
    tmp_path: Path, either: None, directory: int, careful: bool
) -> None:
    for size in SIZES:
        (tmp_path / str(size)).write_bytes(pattern(size + 1, 0, size))
    before = descriptors()
    found = read(directory, *(b"%d" % size for size in SIZES), careful=careful)
    assert [bytes(one.data) for one in found if one.data is not None] == [pattern(size + 1, 0, size) for size in SIZES]
    for one, size in zip(found, SIZES, strict=True):
        assert one.attributes is not None
        assert one.attributes._replace(atime_ns=0) == Attributes.of((tmp_path / str(size)).stat())._replace(atime_ns=0)
        assert one.data is not None
        assert one.data.readonly
    assert descriptors() == before


def test_what_ails_one_file_does_not_stop_the_others(tmp_path: Path, either: None, directory: int) -> None:
    (tmp_path / "a").write_bytes(b"a" * 100)
    (tmp_path / "large").write_bytes(bytes(LIMIT + 1))
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("a")
    os.mkfifo(tmp_path / "fifo")
    before = descriptors()
    names = [b"none", b"large", b"folder", b"link", b"fifo", b"x" * 300, b"a"]
    found = read(directory, *names)
    assert [one.data is not None for one in found] == [False] * 6 + [True]
    # What it is can be said of what can be opened.
    assert [one.attributes is not None for one in found] == [False, True, True, False, True, False, True]
    assert (
        read_files([-1, directory], [b"a", b"a"], memoryview(bytearray(LIMIT)), BatchProgress(), LIMIT, careful=False)[
            1
        ].data
        == b"a" * 100
    )
    assert descriptors() == before


def test_a_full_buffer_ends_the_call_before_the_next_file(tmp_path: Path, either: None, directory: int) -> None:
    for i in range(4):
        (tmp_path / str(i)).write_bytes(pattern(i + 1, 0, 5000))
    before = descriptors()
    found = read(directory, b"0", b"1", b"2", b"3", room=LIMIT // 4)
    assert [bytes(one.data or b"") for one in found] == [pattern(i + 1, 0, 5000) for i in range(2)]
    assert descriptors() == before


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/b", b"/etc/passwd", b"a\0"])
def test_only_names_are_taken(tmp_path: Path, either: None, directory: int, name: bytes) -> None:
    with pytest.raises(ValueError, match="not a name"):
        read(directory, b"a", name)


def test_a_call_that_was_hurried_reads_nothing_more(tmp_path: Path, either: None, directory: int) -> None:
    (tmp_path / "a").write_bytes(b"a")
    progress = BatchProgress()
    assert progress.hurry() == -1
    assert read_files([directory], [b"a"], memoryview(bytearray(LIMIT)), progress, LIMIT, careful=False) == []
    assert progress.hurry() == -1


def test_what_was_not_read_is_not_said_to_be_coming(tmp_path: Path, either: None, directory: int) -> None:
    for name in "abc":
        (tmp_path / name).write_bytes(bytes(5000))
    progress = BatchProgress()
    into = memoryview(bytearray(3 * 4096))  # "a" takes two pages of it
    found = read_files([directory] * 3, [b"a", b"b", b"c"], into, progress, LIMIT, careful=False)
    assert len(found) == 1
    assert progress.hurry() == 0


def test_a_file_that_changes_while_it_is_read_has_no_bytes(
    tmp_path: Path, directory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the extension; with it tests/fuse/test_small_files.py does the same."""
    monkeypatch.setattr(source_small, "_extension", None)
    preadv = os.preadv
    (tmp_path / "a").write_bytes(bytes(10_000))

    def changing(fd: int, buffers: Any, offset: int) -> int:
        got = preadv(fd, buffers, offset)
        os.utime(tmp_path / "a", ns=(1, 1))
        return got

    monkeypatch.setattr(os, "preadv", changing)
    assert read(directory, b"a") == [SmallRead(None, None)]
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: 0)
    assert read(directory, b"a") == [SmallRead(None, None)]  # it ends early


async def test_the_source_reads_files_of_several_directories(tmp_path: Path, real_clock: None, either: None) -> None:
    places = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for i in range(3):
            (tmp_path / folder / str(i)).write_bytes(pattern(i + 1, 0, 1000))
            places.append((folder.encode(), b"%d" % i))
    places.insert(2, (b"gone", b"0"))
    metrics = Metrics()
    async with opened(tmp_path, metrics) as source:
        into = memoryview(bytearray(1 << 20))
        found = await source.small_files.read_batch(places, into, BatchProgress(), limit_bytes=LIMIT)
    assert [bytes(one.data) if one.data is not None else None for one in found] == [
        None if folder == b"gone" else pattern(int(name) + 1, 0, 1000) for folder, name in places
    ]
    assert (metrics["source_read_bytes"], metrics["source_reads"]) == (6000, 6)


def test_new_objects_are_written_many_at_a_time(tmp_path: Path, either: None) -> None:
    disk = Disk(str(tmp_path))
    directory = open_cache_directory(str(tmp_path), make=True)
    disk.open(directory)
    numbers = [1, 2, 257, 1 << 40]
    before = descriptors()
    contents = [
        memoryview(pattern(7, number % 1000, size)) for number, size in zip(numbers, [0, 1, 5000, LIMIT], strict=True)
    ]
    left = disk.write_new(numbers, contents)
    for number, data, stamp in zip(numbers, contents, left, strict=True):
        with open(disk.path(number), "rb") as file:
            assert file.read() == data
            assert stamp_of(file.fileno(), len(data)) == stamp
        assert os.stat(disk.path(number)).st_mode & 0o777 == 0o600
    assert descriptors() == before
    # What others have put in its place is moved away; one that cannot be written does not stop the others.
    os.makedirs(f"{disk.path(3)}/theirs")
    os.makedirs(os.path.dirname(disk.path(4)))
    os.symlink(disk.path(1), disk.path(4))
    Path(disk.objects_dir, "05").write_bytes(b"")
    folder, link, fault = disk.write_new([3, 4, 5], contents[1:])
    assert isinstance(fault, NotADirectoryError)
    assert isinstance(folder, Stamp)
    assert isinstance(link, Stamp)
    for number, data in zip([3, 4], contents[1:], strict=False):
        assert not os.path.islink(disk.path(number))
        assert Path(disk.path(number)).read_bytes() == data
    assert os.listdir(f"{disk.path(3)}.not-ours-1") == ["theirs"]
    assert Path(disk.path(1)).read_bytes() == b""
    disk.close()
    directory.close()
