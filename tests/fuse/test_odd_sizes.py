"""Sources whose files give more bytes than they say, or fewer at a time than they are asked for, through real mounts.

Documents that are made when they are read, files that are decompressed on their way, procfs. What is read of them is
what the source gives, or an error: never less, whoever has read, listed or warmed them before.
"""

import errno
import os
import threading
from pathlib import Path

import pytest

from tests.fuse.harness import Hfs, HfsMount, must, run
from tests.fuse.slowfs import SlowSource
from tests.fuse.users import needs_root
from tests.support.pattern import pattern

SIZES = (1, 1000, 4096, 5000, 8192, 70_000, 3 * 65_536, 300_001)
"""Small ones, whole pages, and such as have several chunks."""
COPIES = 4
"""Of the same size: the first ones are read by Python, the others by the data plane."""
WAYS = [("--io-mode", "daemon"), (), ("--immutable",), ("--immutable", "--io-mode", "stateless")]


def tree(tmp_path: Path) -> Path:
    backing = tmp_path / "backing"
    (backing / "d").mkdir(parents=True)
    for index, size in enumerate(SIZES):
        for copy in range(COPIES):
            (backing / "d" / f"{copy}-{size}").write_bytes(pattern(1 + index * COPIES + copy, 0, size))
    (backing / "d" / "empty").touch()
    (backing / "d" / "empty too").touch()
    return backing


def read(path: Path) -> bytes | None:
    """None: an error. In small pieces, as a program does that believes no size."""
    try:
        fd = os.open(path, os.O_RDONLY)
        try:
            return b"".join(iter(lambda: os.read(fd, 40_000), b""))
        finally:
            os.close(fd)
    except OSError as error:
        assert error.errno == errno.EIO, error
        return None


def read_all(mount: Path, backing: Path) -> dict[str, bool]:
    """By name whether it could be read. What could be read is all of it."""
    found = {}
    for path in sorted((backing / "d").iterdir()):
        data = read(mount / "d" / path.name)
        assert data is None or data == path.read_bytes(), f"{path.name}: {len(data)} bytes"
        found[path.name] = data is not None
    return found


def phases(hfs: Hfs, backing: Path) -> list[dict[str, bool]]:
    """As they are found, again by many, after a listing with attributes, and after a warm, which says what fails."""
    found = [read_all(hfs.path, backing)]
    readers = [threading.Thread(target=lambda: found.append(read_all(hfs.path, backing))) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert len(found) == 4
    run("ls", "-l", hfs.path / "d")  # with an error, where the mount has no opens
    found.append(read_all(hfs.path, backing))
    warmed = hfs.cache_command("warm", hfs.path)
    found.append(read_all(hfs.path, backing))
    all_sizes_are_right = (backing / "d" / "4-1").exists()
    assert (warmed.returncode == 0) == all_sizes_are_right, warmed.stdout + warmed.stderr
    return found


@pytest.mark.parametrize("options", WAYS, ids=lambda options: " ".join(options) or "auto")
@pytest.mark.parametrize("hidden", [100, *(pytest.param(percent, marks=pytest.mark.long) for percent in (50, 1))])
def test_no_byte_of_a_file_is_cut_that_says_too_few(
    tmp_path: Path,
    slow_source: SlowSource,
    hfs_mount: HfsMount,
    options: tuple[str, ...],
    hidden: int,
) -> None:
    backing = tree(tmp_path)
    source = slow_source(backing, "none", "--set", f"hidden_percent={hidden}")
    hfs = hfs_mount(source.path, *options)
    hfs.expect_warning("gives more")
    for found in phases(hfs, backing):
        assert found["empty"]
        assert found["empty too"]
        if hidden == 100 and "stateless" not in options:
            assert all(found.values()), "of these the source's own bytes are given"
    assert "gives more" in hfs.log_text()
    assert hfs.status()["source"]["wrong_sizes"] > 0


def test_a_file_that_says_too_few_is_an_error_at_its_end(
    tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount
) -> None:
    backing = tree(tmp_path)
    source = slow_source(backing, "none", "--set", "hidden_percent=50")
    hfs = hfs_mount(source.path)
    hfs.expect_warning("gives more")
    right = {path.name for path in (backing / "d").iterdir() if path.stat().st_size < 2}
    assert {name for name, is_read in read_all(hfs.path, backing).items() if is_read} == right
    assert hfs.status()["source"]["wrong_sizes"] > 0


@pytest.mark.parametrize("options", WAYS[:2], ids=lambda options: " ".join(options) or "auto")
@pytest.mark.parametrize("most", [1000, *(pytest.param(most, marks=pytest.mark.long) for most in (4096, 7))])
def test_a_short_read_is_not_the_end_of_the_file(
    tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount, options: tuple[str, ...], most: int
) -> None:
    backing = tree(tmp_path)
    (backing / "d" / "4-1").write_bytes(b"1")
    if most == 7:  # that is slow
        for path in (backing / "d").iterdir():
            if path.stat().st_size > 10_000:
                path.unlink()
    source = slow_source(backing, "none", "--set", f"read_most={most}")
    hfs = hfs_mount(source.path, *options)
    for found in phases(hfs, backing):
        assert all(found.values())


@needs_root
def test_what_the_kernel_makes_up_is_shown_below_the_source(tmp_path: Path, hfs_mount: HfsMount) -> None:
    source = tmp_path / "source"
    (source / "kernel").mkdir(parents=True)
    must("mount", "--bind", "/proc/sys/kernel", source / "kernel")
    try:
        hfs = hfs_mount(source)
        hfs.expect_warning("gives more")
        for _ in range(2):
            for name in ("ostype", "osrelease", "pid_max"):
                there, here = Path("/proc/sys/kernel", name), hfs.path / "kernel" / name
                assert here.read_bytes() == there.read_bytes()
                assert here.stat().st_size == 0
                fd = os.open(here, os.O_RDONLY)
                try:
                    assert os.pread(fd, 2, 0) == there.read_bytes()[:2]
                finally:
                    os.close(fd)
        hfs.umount()
    finally:
        must("umount", "-l", source / "kernel")
