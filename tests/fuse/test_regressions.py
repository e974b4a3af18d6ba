"""What once went wrong through a real mount, each with its smallest reproduction."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from tests.fuse.harness import HfsMount
from tests.fuse.slowfs import SlowSource
from tests.support.pattern import pattern


def test_a_source_that_answers_estale_has_lost_no_file(
    tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount
) -> None:
    """It was taken for a name that does not exist, and remembered for the time-to-live."""
    (tmp_path / "backing").mkdir()
    (tmp_path / "backing" / "f").write_bytes(b"here")
    slow = slow_source(tmp_path / "backing")
    hfs = hfs_mount(slow.path)
    slow.order("fault lookup estale 1 forever path /f")
    with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
        (hfs.path / "f").read_bytes()
    slow.order("clear")
    assert (hfs.path / "f").read_bytes() == b"here"


def test_an_open_of_a_changed_small_file_never_fails(tmp_path: Path, hfs_mount: HfsMount) -> None:
    """Known within the time-to-live, changed, opened: the first read said ESTALE, to a reader that had seen nothing."""
    path = tmp_path / "source" / "f"
    path.parent.mkdir()
    path.write_bytes(pattern(1, 0, 5000))
    hfs = hfs_mount(path.parent)
    assert (hfs.path / "f").stat().st_size == 5000
    path.write_bytes(pattern(2, 0, 7000))
    assert (hfs.path / "f").read_bytes() == pattern(2, 0, 7000)


def test_a_directory_made_anew_is_not_empty(tmp_path: Path, hfs_mount: HfsMount) -> None:
    """Its names were looked for in the removed one, for the time-to-live."""
    directory = tmp_path / "source" / "d"
    directory.mkdir(parents=True)
    (directory / "old").write_bytes(b"old")
    hfs = hfs_mount(directory.parent)
    assert (hfs.path / "d" / "old").read_bytes() == b"old"
    shutil.rmtree(directory)
    directory.mkdir()
    (directory / "new").write_bytes(b"new")
    assert (hfs.path / "d" / "new").read_bytes() == b"new"


def test_a_daemon_killed_while_status_looks_at_a_hung_source_dies(
    tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount
) -> None:
    """A thread of its own waited in its own mount: the process stayed, and with it all who waited."""
    (tmp_path / "backing").mkdir()
    (tmp_path / "backing" / "f").write_bytes(b"here")
    slow = slow_source(tmp_path / "backing")
    hfs = hfs_mount(slow.path, "--ttl", "0", "--strict")
    assert (hfs.path / "f").read_bytes() == b"here"  # its close tells the kernel that none need be told
    with (hfs.path / "f").open("rb") as file:
        assert file.read() == b"here"
        slow.order("fault lookup hang path /f", "fault getattr hang path /f")
        for _ in range(3):
            hfs.status()
        hfs.kill()
        with pytest.raises(OSError, match=os.strerror(errno.ENOTCONN)):
            (hfs.path / "f").stat()


def test_what_is_open_is_not_asked_for_again(tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount) -> None:
    """Without a time-to-live each fstat and each cached read of an open file asked the source: nine times an open."""
    (tmp_path / "backing").mkdir()
    (tmp_path / "backing" / "f").write_bytes(b"here")
    slow = slow_source(tmp_path / "backing")
    hfs = hfs_mount(slow.path, "--ttl", "0")
    with (hfs.path / "f").open("rb", buffering=0) as file:
        before = hfs.status()["source"]["stats"]
        for _ in range(20):
            assert os.fstat(file.fileno()).st_size == 4
            assert os.pread(file.fileno(), 10, 0) == b"here"
        assert hfs.status()["source"]["stats"] - before < 20  # status itself opens it
