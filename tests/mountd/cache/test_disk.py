"""Objects on the cache disk, on real files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hfs.mountd.cache.objects.changes import stamp_of
from hfs.mountd.cache.objects.disk import Disk
from hfs.mountd.core.cache_directory import open_cache_directory
from tests.support.pattern import pattern

LIMIT = 64 << 10


def test_new_objects_are_written_whole_whatever_lies_in_their_place(tmp_path: Path) -> None:
    disk = Disk(str(tmp_path))
    directory = open_cache_directory(str(tmp_path), make=True)
    disk.open(directory)
    numbers = [1, 2, 257, 1 << 40]
    before = len(os.listdir("/proc/self/fd"))
    contents = [
        memoryview(pattern(7, number % 1000, size)) for number, size in zip(numbers, [0, 1, 5000, LIMIT], strict=True)
    ]
    for number, data in zip(numbers, contents, strict=True):
        stamp = disk.write_new(number, data)
        with open(disk.path(number), "rb") as file:
            assert file.read() == data
            assert stamp_of(file.fileno(), len(data)) == stamp
        assert os.stat(disk.path(number)).st_mode & 0o777 == 0o600
    assert len(os.listdir("/proc/self/fd")) == before
    # What others have put in its place is moved away.
    os.makedirs(f"{disk.path(3)}/theirs")
    os.makedirs(os.path.dirname(disk.path(4)))
    os.symlink(disk.path(1), disk.path(4))
    Path(disk.objects_dir, "05").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        disk.write_new(5, contents[3])
    for number, data in zip([3, 4], contents[1:], strict=False):
        disk.write_new(number, data)
        assert not os.path.islink(disk.path(number))
        assert Path(disk.path(number)).read_bytes() == data
    assert os.listdir(f"{disk.path(3)}.not-ours-1") == ["theirs"]
    assert Path(disk.path(1)).read_bytes() == b""
    disk.close()
    directory.close()
