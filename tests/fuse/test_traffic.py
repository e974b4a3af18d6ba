"""What `hfs status` says that was read, beside what readers have counted, in each I/O mode."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuse.harness import Hfs, drop_pages
from tests.support.pattern import pattern

HfsMount = Callable[..., Hfs]

COUNT, SIZE = 60, 70_000
ROUNDS = 4


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir(mode=0o755)
    for number in range(COUNT):
        (folder / str(number)).write_bytes(pattern(number + 1, 0, SIZE + number))
    return folder


def read_all(path: Path) -> int:
    """Bytes of all files, read whole."""
    total = 0
    for name in sorted(os.listdir(path)):
        with open(path / name, "rb", buffering=0) as file:
            while part := file.read(1 << 20):
                total += len(part)
    return total


def traffic(hfs: Hfs) -> dict[str, float]:
    found: dict[str, float] = hfs.status()["traffic"]
    return found


@pytest.mark.in_modes
def test_small_files_that_are_read_whole(tree: Path, hfs_mount: HfsMount, io_mode: object) -> None:
    hfs = hfs_mount(tree)
    counted = sum(read_all(hfs.path) for _ in range(ROUNDS))
    drop_pages(hfs.path)
    counted += read_all(hfs.path)
    told = traffic(hfs)
    ratio = told["read_bytes"] / counted
    if told["is_at_least"]:
        assert ratio <= 1.05
    else:
        assert 0.95 <= ratio <= 1.05
    assert told["source_bytes"] == sum(SIZE + number for number in range(COUNT))
    assert 0 <= told["minute"]["read_bytes"] <= told["read_bytes"]  # type: ignore[index]
