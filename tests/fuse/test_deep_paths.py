"""Trees that are deeper than a path may be long: whoever goes there step by step finds all that the source has."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fuse.harness import HfsMount

NAME = "d" * 200
LEVELS = 24
FILES = 6
"""In the deepest directory: the first is read by Python, others by the data plane."""


@contextmanager
def deep(top: Path, *, make: bool = False) -> Iterator[int]:
    """A descriptor of the deepest directory."""
    fd = os.open(top, os.O_RDONLY)
    for _ in range(LEVELS):
        if make:
            os.mkdir(NAME, dir_fd=fd)
        below = os.open(NAME, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    try:
        yield fd
    finally:
        os.close(fd)


def read(directory: int, name: str) -> bytes:
    with open(os.open(name, os.O_RDONLY, dir_fd=directory), "rb") as file:
        return file.read()


def read_all(mount: Path) -> None:
    with deep(mount) as here:
        assert sorted(os.listdir(here)) == [*map(str, range(FILES)), "link"]
        for number in range(FILES):
            assert os.stat(str(number), dir_fd=here).st_size == 1000 + number
            assert read(here, str(number)) == bytes([number]) * (1000 + number)
        assert os.readlink("link", dir_fd=here) == "0"


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Path]:
    source = tmp_path / "source"
    source.mkdir()
    with deep(source, make=True) as here:
        for number in range(FILES):
            with open(os.open(str(number), os.O_WRONLY | os.O_CREAT, dir_fd=here), "wb") as file:
                file.write(bytes([number]) * (1000 + number))
        os.symlink("0", "link", dir_fd=here)
    yield source
    shutil.rmtree(source)


def test_what_lies_deeper_than_a_path_is_long_is_read_and_warmed(source: Path, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(source)
    assert LEVELS * len(NAME) > 4096
    read_all(hfs.path)
    read_all(hfs.path)
    hfs.umount()
    hfs.mount()
    warmed = hfs.cache_command("warm", hfs.path)
    assert warmed.returncode == 0, warmed.stderr
    before = hfs.source_bytes()
    read_all(hfs.path)
    assert hfs.source_bytes() == before
