"""What another program does to the cache never reaches a reader: flipped bits, cut and swapped files, files of its own.

Each harm is done to objects of one chunk and of several, between two mounts and while the mount runs (then the daemon
answers the reads: what the kernel reads by itself is looked at when it is opened). In every I/O mode.
"""

import os
from pathlib import Path

import pytest

from tests.fuse.harness import Hfs, HfsMount, drop_pages
from tests.fuse.modes import MODES, Mode, warm
from tests.support.pattern import explain, pattern

CHUNK = 64 << 10
KINDS = (30_000, CHUNK, 3 * CHUNK + 1000, 700_000)
"""Of one chunk and of several; the last is large enough to be passed through in every mode that passes files."""


def flip(path: Path, number: int) -> None:
    size = path.stat().st_size
    with path.open("r+b", buffering=0) as file:
        at = (size * 2 // 3 + 7 * number) % size
        byte = os.pread(file.fileno(), 1, at)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 1 << number % 8]), at)


def flip_unseen(path: Path, number: int) -> None:
    """As a program that puts the time of the last change back, as far as it can: ctime stays what it is."""
    before = path.stat()
    flip(path, number)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def cut(path: Path, number: int) -> None:
    os.truncate(path, path.stat().st_size // (2 + number % 3))


def lengthen(path: Path, number: int) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def swap(path: Path, number: int) -> None:
    """Another file of this size and these times under its name."""
    before = path.stat()
    other = path.with_name("other")
    other.write_bytes(pattern(77 + number, 0, before.st_size))
    other.chmod(0o600)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(other, path)


def remove(path: Path, number: int) -> None:
    path.unlink()


def a_folder(path: Path, number: int) -> None:
    path.unlink()
    path.mkdir()
    (path / "inside").write_bytes(b"x")


def a_pipe(path: Path, number: int) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def a_link(path: Path, number: int) -> None:
    elsewhere = path.with_name(f"{path.name}-elsewhere")
    path.rename(elsewhere)
    flip(elsewhere, number)
    path.symlink_to(elsewhere)


HARMS = (flip, flip_unseen, cut, lengthen, swap, remove, a_folder, a_pipe, a_link)
FILES = [(harm, size + number) for size in KINDS for number, harm in enumerate(HARMS)]
"""Each harm to each kind. No two files have the same size, by which their objects are found."""


@pytest.fixture(
    params=[pytest.param(mode, id=name.replace(" ", "-"), marks=mode.marks) for name, mode in MODES.items()]
)
def mode(request: pytest.FixtureRequest) -> Mode:
    chosen: Mode = request.param
    return chosen


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    for number, (_, size) in enumerate(FILES):
        (folder / str(number)).write_bytes(pattern(number + 1, 0, size))
    return folder


def mounted(mode: Mode, hfs_mount: HfsMount, source: Path) -> Hfs:
    hfs = mode.mount(hfs_mount, source, chunk_bytes=CHUNK)
    # What is done to its cache may be told, and is.
    hfs.expect_warning("staged bytes of|a staged file|removing evicted files|other than a file")
    return hfs


def assert_right(hfs: Hfs) -> None:
    for number, (harm, size) in enumerate(FILES):
        drop_pages(hfs.path / str(number))  # what the kernel has of the mount was right
        data = (hfs.path / str(number)).read_bytes()
        assert data == pattern(number + 1, 0, size), f"{harm.__name__}: {explain(number + 1, 0, data)}"


def do_harm(hfs: Hfs) -> None:
    """To every object."""
    by_size = {path.stat().st_size: path for path in (hfs.own_cache / "objects").rglob("*") if path.is_file()}
    for number, (harm, size) in enumerate(FILES):
        harm(by_size[size], number)


def test_what_was_changed_between_two_mounts_is_never_read(mode: Mode, source: Path, hfs_mount: HfsMount) -> None:
    hfs = mounted(mode, hfs_mount, source)
    warm(hfs)
    assert_right(hfs)
    hfs.umount()
    do_harm(hfs)
    hfs.mount()
    assert_right(hfs)  # from what was found broken
    warm(hfs)  # what was fetched in its place is durable, and may be passed through
    assert_right(hfs)
    mode.prove(hfs)


def test_what_is_changed_while_it_is_mounted_is_never_read(mode: Mode, source: Path, hfs_mount: HfsMount) -> None:
    """By the daemon; and the kernel is handed nothing that was changed before the open."""
    hfs = mounted(mode, hfs_mount, source)
    warm(hfs)
    assert_right(hfs)
    do_harm(hfs)
    for _ in range(2):
        assert_right(hfs)
