"""Where a plain user has mounted what never answers, for all users, nothing of ours looks: no command of root hangs."""

import os
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from hfs.client import control_socket
from hfs.mountd.core import path_steps, socket_places
from hfs.mountd.core.cache_directory import open_cache_directory
from hfs.mountd.core.socket_places import socket_peer
from hfs.mountd.ledger import CacheRoot, ServedSource, caches_below, has_ledger
from hfs.mountd.supervisor.connection import Connection
from hfs.mounting import keeper, mountinfo, taking_away
from hfs.sweeping import TimeForOthers, caches, sockets
from tests.fuse.silent import silent_mount, told_in_time
from tests.fuse.users import MEMBER, NOBODY, needs_root

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


@pytest.mark.parametrize("name", ["a.keeper", "a.sock"])
def test_a_name_in_a_directory_of_sockets(name: str, tmp: Path) -> None:
    """A file system of FUSE may lie on a file, too."""
    place = tmp / f"hfs-{MEMBER.uid}"
    place.mkdir(mode=0o700)
    os.chown(place, MEMBER.uid, MEMBER.gid)
    (place / name).touch()
    with silent_mount(place / name):
        told = {what: told_in_time(look) for what, look in LOOKS.items()}
    assert not [what for what, text in told.items() if text == "no answer" or "Error" in text], told


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


@pytest.mark.parametrize("user", [0, NOBODY.uid])
def test_a_socket_that_the_owner_of_a_mount_has_named(user: int, tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may lie anywhere; where it is a file system of the owner's, which may answer once, it is not connected to."""
    (tmp / "theirs").mkdir()

    def connect(path: str) -> object:
        monkeypatch.setattr(os, "geteuid", lambda: user)  # who alone may not reach the interpreter
        return control_socket._connected(path, MEMBER.uid, 1.0)

    with silent_mount(tmp / "theirs"):
        assert "TimeoutError" in told_in_time(lambda: connect(f"{tmp}/theirs/x.sock"))
        assert WHOSE in told_in_time(lambda: connect(f"{tmp}/theirs"))


def test_it_is_we_who_connect_to_a_socket_that_was_named(tmp_path: Path) -> None:
    """The daemon knows learners by their processes."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        with (
            control_socket._connected(str(tmp_path / "s"), os.geteuid(), 10.0),
            closing(listener.accept()[0]) as client,
        ):
            assert socket_peer(client).pid == os.getpid()
        with pytest.raises(PermissionError, match="not of user 61001"):
            control_socket._connected(str(tmp_path / "s"), MEMBER.uid, 10.0)


# -- a cache root that several users share ----------------------------------------------------------------------------

OURS = f"{os.geteuid()}-0123456789abcdef"
SERVED = ServedSource(source=b"/data", device=5, inode=7, mountpoint=b"/mnt")


@pytest.fixture
def root(tmp: Path) -> Path:
    """As sharing.md has it made."""
    for made in (tmp / "root", tmp / "root" / "ledger"):
        made.mkdir()
        made.chmod(0o1777)
    return tmp / "root"


def use_root(root: Path) -> str:
    """All that a daemon does with it until it serves, and that commands do."""
    list(caches.sweep(str(root), 1.0, dry_run=True, others=TimeForOthers(10.0, 30.0)))
    assert has_ledger(str(root)) == ("ledger" in os.listdir(root))
    with closing(CacheRoot(str(root))) as opened:
        opened.make_way(OURS)
        registration = opened.ledger.register(OURS, SERVED, 1 << 30)
        with closing(registration), opened.ledger.start_lock(5, 7):
            granted = registration.take(0, 1 << 20).granted_bytes
            entries = [entry.name for entry in opened.ledger.listed()]
        with opened.directory as directory:
            os.close(directory.open_directory("logs-0"))
    caches_below(str(root))
    with open_cache_directory(f"{root}/{OURS}", make=True):
        pass
    return f"{granted > 0} {OURS in entries}"


@pytest.mark.parametrize(
    "name",
    [
        f"ledger/{name}"
        for name in ("lock", "size", "start-0-5-7", OURS, f"{MEMBER.uid}-0123456789abcdef", "0-aaaaaaaaaaaaaaaa")
    ]
    + [OURS, f"{MEMBER.uid}-0123456789abcdef", "0-aaaaaaaaaaaaaaaa"],
)
@pytest.mark.parametrize("openat2", [path_steps._SYS_OPENAT2, -1])
def test_names_in_a_shared_cache_root(name: str, openat2: int, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of files and directories that root would use, or look at: what is mounted there is not asked, or moved away. Also
    by kernels, and in sandboxes, that do not have the call."""
    monkeypatch.setattr(path_steps, "_SYS_OPENAT2", openat2)
    if name.startswith("ledger/"):
        (root / name).touch()
    else:
        (root / name).mkdir()
    with silent_mount(root / name):
        assert told_in_time(lambda: use_root(root)) == repr("True True")


@pytest.mark.parametrize("name", ["ledger", "logs-0", "ledger/own-0"])
def test_folders_of_a_shared_cache_root(name: str, root: Path) -> None:
    if not name.startswith("ledger/"):
        (root / "ledger").rmdir()
    (root / name).mkdir()
    with silent_mount(root / name):
        assert told_in_time(lambda: use_root(root)) == repr("True True")


def test_a_cache_below_a_directory_of_theirs(tmp: Path) -> None:
    (tmp / "above" / "cache").mkdir(parents=True)
    with silent_mount(tmp / "above"):
        assert WHOSE in told_in_time(lambda: open_cache_directory(f"{tmp}/above/cache", make=False).fd)
