"""No mount is taken away but one that is dead or meant. Whether it is dead its connection says, no error of a path."""

import contextlib
import ctypes
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hfs.mountd.supervisor import connection as connection_module
from hfs.mountd.supervisor.connection import Connection, unmount
from hfs.mounting import mountinfo, mounting, taking_away
from tests.fuse.harness import HfsMount, hfs_command, kill, run, unmount_lazily
from tests.fuse.silent import silent_mount, told_in_time
from tests.fuse.slowfs import SlowSource
from tests.fuse.users import needs_root


def test_a_live_mount_whose_source_has_died_stays(tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount) -> None:
    """SOURCE answers "not connected" from then on, and so do paths of the mount; its daemon and who reads go on."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_bytes(b"bytes")
    slow = slow_source(tmp_path / "tree")
    hfs = hfs_mount(slow.path, "-o", "ttl=100ms")
    with (hfs.path / "file").open("rb") as opened:
        assert opened.read() == b"bytes"
        mount = mountinfo.at(str(hfs.path))
        assert mount is not None
        kill(slow.pid)
        assert not taking_away.is_dead(mount), "hfs sweep and hfs doctor ask this"
        assert not taking_away.clean_stale(str(hfs.path)), "hfs mount and hfs run"
        with pytest.raises(taking_away.Busy, match=f"process {os.getpid()} "):
            mounting.unmount(str(hfs.path))
        assert mountinfo.at(str(hfs.path)) == mount
        opened.seek(0)
        assert opened.read() == b"bytes"
    mounting.unmount(str(hfs.path))
    unmount_lazily(slow.path)
    assert mountinfo.at(str(hfs.path)) is None


@needs_root
def test_fd_mount_leaves_the_mount_of_others(tmp_path: Path, hfs_mount: HfsMount) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_bytes(b"bytes")
    hfs = hfs_mount(tmp_path / "tree")
    done = run(hfs_command(), "fd-mount", hfs.path, "--socket", tmp_path / "s.sock", "--user", "1001", limit_s=20)
    assert (done.returncode, "hfs is mounted there already" in done.stderr) == (2, True), done
    assert (hfs.path / "file").read_bytes() == b"bytes"


@pytest.fixture
def place() -> Iterator[Path]:
    """Two mounts of the same name in two folders."""
    with tempfile.TemporaryDirectory(prefix="hfs-away-") as made:
        for folder in ("a", "b"):
            (Path(made) / folder / "mnt").mkdir(parents=True)
            subprocess.run(["mount", "-t", "tmpfs", folder, f"{made}/{folder}/mnt"], check=True)
        yield Path(made)
        for mount in reversed(mountinfo.mounts()):
            if mount.mountpoint.startswith(f"{made}/"):
                ctypes.CDLL(None).umount2(os.fsencode(mount.mountpoint), 2)


def sources(place: Path) -> list[str]:
    return [mount.source for mount in mountinfo.mounts() if mount.mountpoint.startswith(f"{place}/")]


@needs_root
def test_a_path_that_leads_elsewhere_by_now_takes_nothing_away(place: Path) -> None:
    """A user may rename a directory above a mountpoint of his own, and put a link in its place."""
    mount = mountinfo.at(str(place / "a" / "mnt"))
    assert mount is not None
    (place / "a").rename(place / "was")
    (place / "a").symlink_to("b")
    taking_away.detach(mount.mountpoint, lazy=True, mount_id=mount.mount_id)
    assert sources(place) == ["a", "b"]
    taking_away.detach(str(place / "was" / "mnt"), lazy=False, mount_id=mount.mount_id)
    assert sources(place) == ["b"]


@needs_root
def test_what_was_mounted_on_top_meanwhile_stays(place: Path) -> None:
    mount = mountinfo.at(str(place / "a" / "mnt"))
    assert mount is not None
    subprocess.run(["mount", "-t", "tmpfs", "top", mount.mountpoint], check=True)
    taking_away.detach(mount.mountpoint, lazy=False, mount_id=mount.mount_id)
    assert sorted(sources(place)) == ["a", "b", "top"]


@needs_root
@pytest.mark.parametrize("how", ["link", "moved", "covered"])
def test_a_keeper_takes_away_its_own_mount_alone(how: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its path leads to, a moment after the kernel has told that."""
    mounts = {mount.source: mount for mount in mountinfo.mounts() if mount.mountpoint.startswith(f"{place}/")}
    ours = mounts["a"]
    kept = Connection(os.open("/dev/null", os.O_RDONLY), ours.mountpoint, ours.device)
    monkeypatch.setattr(Connection, "is_gone", False)

    def told(device: str) -> list[str]:
        if how != "covered":
            (place / "a").rename(place / "was")
        if how == "link":
            (place / "a").symlink_to("b")
        elif how == "moved":
            (place / "b").rename(place / "a")
        return [ours.mountpoint]

    monkeypatch.setattr(connection_module, "places_of", told)
    with silent_mount(place / "a") if how == "covered" else contextlib.nullcontext():
        assert "Error" in told_in_time(kept.detach)
        told_in_time(kept.abort)
    assert sources(place) == ["a", "b"]
    kept.close()
    monkeypatch.undo()
    place_now = next(mount.mountpoint for mount in mountinfo.mounts() if mount.device == ours.device)
    unmount(place_now, ours.device)
    assert sources(place) == ["b"]
