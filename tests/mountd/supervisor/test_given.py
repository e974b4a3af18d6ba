"""A connection that somebody else has mounted, as the keeper takes it: with a real /dev/fuse."""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hfs.mountd.supervisor import connection
from hfs.mountd.supervisor.connection import GivenConnection, MountRefused
from hfs.mountd.supervisor.mounts import KeeperMount
from tests.fuse.given import mounted
from tests.fuse.users import needs_root

pytestmark = [needs_root, pytest.mark.fuse]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "mnt"
    path.mkdir()
    yield path
    ctypes.CDLL(None).umount2(os.fsencode(path), 2)  # MNT_DETACH


def test_one_that_is_not_mounted_is_waited_for_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_MOUNTED_S", 0.0)
    monkeypatch.setattr(connection, "_LOOK_S", 0.0)
    with pytest.raises(MountRefused, match=r"^/dev/fd/7: not mounted, or unmounted again; whoever opens it"):
        GivenConnection.take(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC), "/dev/fd/7")


def test_one_that_somebody_serves_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_INIT_S", 0.01)
    fd = mounted(place)
    os.read(fd, 8192)
    with pytest.raises(MountRefused, match=r"^/dev/fd/7: somebody else has begun to serve it"):
        GivenConnection.take(fd, "/dev/fd/7")


def test_it_cannot_be_made_again(place: Path) -> None:
    """Where the next daemon needs a new mount: before Linux 6.9."""
    kept = KeeperMount("/dev/fd/7", "/source", {}, resend=False, given_fd=mounted(place))
    kept.make()
    assert not kept.takes_up
    with pytest.raises(MountRefused, match=r"^/dev/fd/7: the connection was given once; start hfs on a new one$"):
        kept.make()
    kept.close()
