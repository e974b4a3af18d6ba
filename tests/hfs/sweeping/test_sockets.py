"""Sockets that nobody listens at are removed, and nothing else, from nobody's directory but its user's."""

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hfs.mountd.core.socket_places import opened, prefix_of
from hfs.sweeping import TimeForOthers, sockets

UID = os.geteuid()


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """With a socket that is listened at, two that are not, and a file."""
    tmp_path.chmod(0o700)
    (tmp_path / "plain.sock").touch()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "live.sock"))
        listening.listen()
        for name in ("dead.sock", "dead.keeper", "dead.other"):
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(tmp_path / name))
        yield tmp_path


def swept(directory: Path, *, dry_run: bool = False, uid: int = UID) -> list[str]:
    places, others = [(str(directory), uid)], TimeForOthers(10.0, 30.0)
    return [found.where for found in sockets.sweep(dry_run=dry_run, others=others, places=places)]


def test_what_is_stale_goes(directory: Path) -> None:
    stale = [f"{directory}/dead.keeper", f"{directory}/dead.sock"]
    assert swept(directory, dry_run=True) == stale
    assert swept(directory) == stale
    assert sorted(os.listdir(directory)) == ["dead.other", "live.sock", "plain.sock"]
    assert swept(directory) == []


def test_mountpoints_of_ended_commands_go(tmp_path: Path) -> None:
    """Not one that was made a moment ago, nor one whose daemon may live; and none while somebody mounts there."""
    tmp_path.chmod(0o700)
    for name in ("old", "young", "used"):
        (tmp_path / f"{name}-mount").mkdir()
        if name != "young":
            os.utime(tmp_path / f"{name}-mount", (1, 1))
    (tmp_path / f"{prefix_of(f'{tmp_path}/used-mount')}0.sock").touch()
    with opened(str(tmp_path), UID) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert swept(tmp_path) == []
    assert swept(tmp_path, dry_run=True) == swept(tmp_path) == [f"{tmp_path}/old-mount"]
    assert {path.name for path in tmp_path.glob("*-mount")} == {"young-mount", "used-mount"}


def test_a_directory_of_others_is_left(directory: Path) -> None:
    assert swept(directory, uid=UID + 1) == []
    directory.chmod(0o777)
    assert swept(directory) == []
    link = directory.parent / f"{directory.name}-link"
    link.symlink_to(directory)
    directory.chmod(0o700)
    assert swept(link) == []


def test_all_directories_are_waited_for_together(
    directory: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of whom has a socket that nobody listens at, as anybody can leave it."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    more = []
    for _ in range(3):
        more.append(tmp_path_factory.mktemp("s"))
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(more[-1] / "dead.sock"))
    places = [(str(place), UID) for place in (directory, *more)]
    found = [swept.where for swept in sockets.sweep(dry_run=False, others=TimeForOthers(10.0, 30.0), places=places)]
    assert len(found) == 5
    assert slept == [sockets._AGAIN_S]
