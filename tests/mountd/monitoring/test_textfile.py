"""The metrics as a file: whole at every moment, readable for others, and gone with the mount."""

import os
import stat
from pathlib import Path

import pytest
import trio

from hfs.mountd.monitoring.service import TextFile
from tests.conftest import Logs

pytestmark = pytest.mark.usefixtures("real_clock")

TEXT = b"a 1\n"


def new_file(path: Path | str, text: bytes = TEXT, mountpoint: str = "/mnt/data") -> TextFile:
    return TextFile(str(path), mountpoint, lambda: text, trio.to_thread.run_sync)


async def test_it_is_written_and_removed(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        file = new_file(tmp_path / "hfs.prom")
        await file.write()
    finally:
        os.umask(before)
    assert (tmp_path / "hfs.prom").read_bytes() == TEXT
    assert stat.S_IMODE((tmp_path / "hfs.prom").stat().st_mode) == 0o644
    await file.write()
    assert os.listdir(tmp_path) == ["hfs.prom"]
    assert file.error is None
    await file.remove()
    assert os.listdir(tmp_path) == []
    await file.write()  # one that was under way
    assert os.listdir(tmp_path) == []


async def test_whoever_reads_finds_all_of_it(tmp_path: Path) -> None:
    """It is replaced, never written over: who has it open reads on what it was."""
    path = tmp_path / "hfs.prom"
    await new_file(path, b"old\n").write()
    with path.open("rb") as open_file:
        await new_file(path, b"new\n").write()
        assert open_file.read() == b"old\n"
    assert path.read_bytes() == b"new\n"


async def test_in_a_directory_each_mount_has_its_own(tmp_path: Path) -> None:
    names = set()
    for mountpoint in ("/mnt/data", "/mnt-data", "/mnt/caf\udce9", "/" + "long/" * 100, "/lon"):
        file = new_file(tmp_path, mountpoint=mountpoint)
        await file.write()
        assert file.error is None
        names.add(os.path.basename(file.path))
    assert set(os.listdir(tmp_path)) == names
    assert len(names) == 5
    assert all(name.startswith("hfs-") and name.endswith(".prom") and name.isascii() for name in names)


async def test_what_cannot_be_written_is_told(tmp_path: Path, logs: Logs) -> None:
    """Once; and it is tried again."""
    logs.expect("metrics: ")
    file = new_file(tmp_path / "gone" / "hfs.prom")
    for _ in range(3):
        await file.write()
    assert "is no directory" in str(file.error)
    (tmp_path / "gone").mkdir()
    await file.write()
    assert file.error is None
    assert (tmp_path / "gone" / "hfs.prom").read_bytes() == TEXT
    (tmp_path / "taken.prom").mkdir()
    other = new_file(tmp_path / "taken.prom")
    await other.write()
    assert "cannot be written: Is a directory" in str(other.error)
    await other.remove()
    assert sorted(os.listdir(tmp_path)) == ["gone", "taken.prom"]
    assert len(logs.records) == 2


async def test_it_is_not_written_below_the_mount(tmp_path: Path, logs: Logs) -> None:
    """Nor by way of a link."""
    logs.expect("lies in the mount itself")
    (tmp_path / "mount" / "sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to("mount/sub")
    for path in (tmp_path / "mount" / "hfs.prom", tmp_path / "link" / "hfs.prom", tmp_path / "mount"):
        file = new_file(path, mountpoint=str(tmp_path / "mount"))
        await file.write()
        assert "lies in the mount itself" in str(file.error)
    assert os.listdir(tmp_path / "mount" / "sub") == []


async def test_two_mounts_of_one_file_do_not_take_turns(tmp_path: Path, logs: Logs) -> None:
    """The one that comes later has it; the other says so, goes on when the file has gone, and never removes it."""
    logs.expect("is written by another program")
    path = tmp_path / "hfs.prom"
    first, second = new_file(path, b"first\n"), new_file(path, b"second\n")
    await first.write()
    await second.write()
    await first.write()
    assert path.read_bytes() == b"second\n"
    assert "another program" in str(first.error)
    await first.remove()
    assert path.read_bytes() == b"second\n"
    third = new_file(path, b"third\n")
    await third.write()
    await second.write()
    await third.remove()
    await second.write()
    assert path.read_bytes() == b"second\n"
    assert second.error is None


async def test_what_a_killed_daemon_has_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "hfs.prom").write_bytes(b"stale\n")
    (tmp_path / ".hfs.prom.new").write_bytes(b"half")
    victim = tmp_path / "victim"
    victim.write_bytes(b"untouched")
    (tmp_path / ".other.prom.new").symlink_to(victim)
    (tmp_path / "other.prom").symlink_to(victim)
    for name in ("hfs.prom", "other.prom"):
        await new_file(tmp_path / name).write()
        assert (tmp_path / name).read_bytes() == TEXT
    assert victim.read_bytes() == b"untouched"
    assert sorted(os.listdir(tmp_path)) == ["hfs.prom", "other.prom", "victim"]
