"""Files of absurd sizes, holes but for a few bytes: they are read, and keep nobody from staging the others."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuse.harness import HfsMount, must, unmount_lazily
from tests.support.pattern import pattern

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount tmpfs, which has files of any size")

SIZES = {"exabytes": (1 << 62) + 5, "terabytes": 64 << 40, "largest": (1 << 63) - 4096}


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "src"
    folder.mkdir()
    must("mount", "-t", "tmpfs", "none", folder)
    try:
        for name, size in SIZES.items():
            with (folder / name).open("wb") as file:
                file.truncate(size)
                file.write(b"begin")
                file.seek(size - 3)
                file.write(b"end")
        (folder / "usual").write_bytes(pattern(1, 0, 300_000))
        yield folder
    finally:
        unmount_lazily(folder)


def test_absurd_sizes_are_read_and_stop_nothing(source: Path, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(source)
    for name, size in SIZES.items():
        with (hfs.path / name).open("rb", buffering=0) as file:
            assert file.read(5) == b"begin"
            assert os.pread(file.fileno(), 10, size // 3) == bytes(10)
            assert os.pread(file.fileno(), 10, size - 3) == b"end"
    dry = hfs.cache_command("warm", "--dry-run", hfs.path)
    assert "usual" not in dry.stderr, dry.stderr
    warm = hfs.cache_command("warm", hfs.path)
    assert warm.returncode == 3, warm.stderr
    for name in SIZES:
        assert f"{name}: larger than any file that is staged" in warm.stdout + warm.stderr
    staged = hfs.status()["staged"]
    assert (staged["files"], staged["bytes"]) == (1, 300_000)
    assert (hfs.path / "usual").read_bytes() == pattern(1, 0, 300_000)
