"""Where a plain user has mounted what never answers, for all users, nothing of ours looks: no command of root hangs."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hfs.mountd.core import path_steps, socket_places
from hfs.mountd.supervisor.connection import Connection
from hfs.mounting import keeper, mountinfo, taking_away
from hfs.mounting.time_for_others import TimeForOthers
from hfs.sweeping import sockets
from tests.fuse.silent import silent_mount, told_in_time
from tests.fuse.users import MEMBER, needs_root

pytestmark = needs_root
WHOSE = f"user {MEMBER.uid} serves"


@pytest.fixture
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What stands for /tmp."""
    place = tmp_path / "tmp"
    place.mkdir()
    place.chmod(0o1777)
    monkeypatch.setattr(socket_places, "_TMP", str(place))
    return place


LOOKS: dict[str, Callable[[], object]] = {
    "of root": lambda: len(socket_places.directories_of(0)),
    "of theirs": lambda: len(socket_places.directories_of(MEMBER.uid, {})),
    "why": socket_places.why_elsewhere,
    "keepers": lambda: len(list(keeper.ours())),
    "keepers of theirs": lambda: len(list(keeper.of_user(MEMBER.uid))),
    "all": lambda: len(sockets.directories()),
    "sweep": lambda: len(list(sockets.sweep(dry_run=True, others=TimeForOthers(10.0, 30.0)))),
}


@pytest.mark.parametrize("name", ["hfs-0", f"hfs-{MEMBER.uid}", f"hfs-{MEMBER.uid}-abcdefgh"])
def test_a_directory_of_sockets(name: str, tmp: Path) -> None:
    (tmp / name).mkdir(mode=0o700)
    with silent_mount(tmp / name):
        told = {what: told_in_time(look) for what, look in LOOKS.items()}
        assert not [what for what, text in told.items() if text == "no answer" or "Error" in text], told
        assert WHOSE in told_in_time(lambda: socket_places.why_not_ours(str(tmp / name), MEMBER.uid))


def test_a_directory_above_it(tmp: Path) -> None:
    """As /run/user/UID, which is its user's."""
    (tmp / "user").mkdir()
    with silent_mount(tmp / "user"):
        assert WHOSE in told_in_time(lambda: socket_places.open_private(f"{tmp}/user/hfs", MEMBER.uid))


def test_what_root_serves_is_gone_into(tmp: Path) -> None:
    """A container may live on such a file system."""
    (tmp / "roots").mkdir()
    with silent_mount(tmp / "roots", uid=0):
        os.close(path_steps.open_step(str(tmp / "roots")))


def test_the_way_to_a_mount_that_is_taken_away(tmp: Path) -> None:
    """A dead mount of hfs, over which, or over a directory above it, its user has mounted something else."""
    place = tmp / "a" / "b" / "mnt"
    place.mkdir(parents=True)
    Connection.make(str(place), "/s", allow_other=True, noexec=False, owner=(MEMBER.uid, MEMBER.gid)).close()
    mount = mountinfo.at(str(place))
    assert mount is not None
    for above in (tmp / "a", tmp / "a" / "b"):
        with silent_mount(above):
            told = told_in_time(lambda: taking_away.detach(str(place), lazy=True, mount_id=mount.mount_id))
            assert WHOSE in told, told
            assert told_in_time(lambda: mountinfo.canonical(f"{place}/x/..")) == repr(str(place))
    taking_away.detach(str(place), lazy=True, mount_id=mount.mount_id)
    assert mountinfo.at(str(place)) is None


def test_steps_follow_no_link(tmp: Path) -> None:
    (tmp / "link").symlink_to("/")
    with pytest.raises(NotADirectoryError):
        path_steps.open_steps(f"{tmp}/link/etc")
    os.close(path_steps.open_steps(f"{tmp}/"))
