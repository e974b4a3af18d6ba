"""Where sockets lie: the directories of a user, names by mountpoint, and what killed processes have left."""

import contextlib
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hfs.mountd.core import socket_places
from hfs.mountd.core.socket_places import (
    DAEMON,
    KEEPER,
    connect,
    directories_of,
    is_stale,
    mountpoint_of,
    new_path,
    open_private,
    opened,
    paths_of,
    prefix_of,
    user_of,
    why_elsewhere,
    why_not_ours,
)
from tests.fuse.users import NOBODY, needs_root


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose path leaves room for the name of a socket; tmp_path may be as long as it likes."""
    with tempfile.TemporaryDirectory(prefix="hfs-", dir="/tmp") as made:
        yield Path(made)


def test_directories() -> None:
    assert directories_of(5, {"XDG_RUNTIME_DIR": "/run/user/5"}) == ["/run/user/5/hfs", "/tmp/hfs-5"]
    assert directories_of(5, {"XDG_RUNTIME_DIR": "relative"}) == ["/tmp/hfs-5"]
    assert directories_of(0, {"XDG_RUNTIME_DIR": "/run/user/5"}) == ["/run/hfs", "/tmp/hfs-0"]
    assert prefix_of("/m") != prefix_of("/m\udce9")


def bound(path: Path, *, listens: bool = False) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(str(path))
    if listens:
        made.listen(1)
    return made


def test_what_killed_processes_have_left_goes(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same mountpoint at once, of others when it is old; never what listens, nor what is another kind."""
    home = short_path / "hfs"
    monkeypatch.setattr(socket_places, "directories_of", lambda _uid: [str(home)])
    path = new_path("/m", KEEPER)
    assert path is not None
    assert paths_of(str(home), os.geteuid(), "/m", KEEPER) == []
    names = {word: home / f"{prefix_of(of)}{word}{suffix}" for word, of, suffix in [
        ("dead", "/m", KEEPER), ("alive", "/m", KEEPER), ("daemon", "/m", DAEMON), ("other", "/n", KEEPER)
    ]}  # fmt: skip
    for word in ("dead", "daemon", "other"):
        bound(names[word]).close()
    file = home / f"{prefix_of('/m')}file{KEEPER}"
    file.write_text("")
    with bound(names["alive"], listens=True):
        assert new_path("/m", KEEPER) != path
        assert sorted(os.listdir(home)) == sorted(
            p.name for p in (names["alive"], names["daemon"], names["other"], file)
        )
        monkeypatch.setattr(socket_places, "_STARTING_S", -1.0)
        new_path("/m", KEEPER)
        assert not names["other"].exists()
        assert names["alive"].exists()
        assert names["daemon"].exists()


def test_a_directory_that_others_write_to_is_passed_over(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_to_all, ours = short_path / "all", short_path / "ours"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    monkeypatch.setattr(socket_places, "directories_of", lambda _uid: [str(open_to_all), "/proc/none", str(ours)])
    path = new_path("/m", DAEMON)
    assert path is not None
    assert os.path.dirname(path) == str(ours)
    assert why_not_ours(str(ours), os.geteuid()) == why_not_ours("/proc/none", 0) == ""
    assert why_not_ours(str(ours), os.geteuid() + 1) == f"belongs to user {os.geteuid()}"
    assert why_not_ours(str(open_to_all), os.geteuid()) == "others may write to it"
    (short_path / "link").symlink_to("ours")
    (short_path / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(PermissionError):
            open_private(str(short_path / name), os.geteuid())
    monkeypatch.setattr(socket_places, "directories_of", lambda _uid: ["/proc/none"])
    monkeypatch.setattr(socket_places, "_TMP", "/proc/none")
    assert new_path("/m", DAEMON) is None


def _take(place: Path, how: str) -> None:
    """Be there first, as anybody may in /tmp."""
    if how == "link":
        place.symlink_to("/root")
    elif how == "file":
        place.touch()
    else:
        place.mkdir()
        place.chmod(0o777 if how == "open to all" else 0o755)


@needs_root
@pytest.mark.parametrize("how", ["link", "file", "open to all", "another user's"])
def test_who_was_there_first_stops_nobody(how: str, short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one is made, of a name that nobody could know before; everybody finds it again, and hears why."""
    monkeypatch.setattr(socket_places, "_TMP", str(short_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    short_path.chmod(0o1777)
    place = short_path / f"hfs-{NOBODY.uid}"

    def found() -> tuple[str | None, str | None, str | None, str | None]:
        return new_path("/m", DAEMON), new_path("/m", KEEPER), mountpoint_of("/s"), why_elsewhere()

    *before, why = eval(NOBODY.told(short_path, found))
    assert ({os.path.dirname(path) for path in before}, why) == ({str(place)}, None)
    (short_path / "again").touch()
    os.rename(place, short_path / "was")
    _take(place, how)
    (short_path / f"hfs-{NOBODY.uid}-planted0").mkdir()
    *after, why = eval(NOBODY.told(short_path, found))
    (instead,) = {os.path.dirname(path) for path in after}
    assert user_of(os.path.basename(instead)) == NOBODY.uid
    assert os.stat(instead).st_uid == NOBODY.uid
    assert directories_of(NOBODY.uid, {}) == [str(place), instead]
    assert why.startswith(f"{place}: ")
    assert instead in why
    assert "*" not in why
    assert eval(NOBODY.told(short_path, found))[2:] == (after[2], why)


def test_nothing_but_a_socket_of_its_user_is_connected_to(short_path: Path) -> None:
    """No link, which may lead to anybody's; no file; of no other user."""
    uid = os.geteuid()
    (short_path / "link.keeper").symlink_to("live.keeper")
    (short_path / "file.keeper").touch()
    bound(short_path / "dead.keeper").close()
    with bound(short_path / "live.keeper", listens=True), opened(str(short_path), uid) as directory:
        for name, owner in (("link.keeper", uid), ("file.keeper", uid), ("live.keeper", uid + 1)):
            with contextlib.closing(socket.socket(socket.AF_UNIX)) as client, pytest.raises(OSError):
                connect(client, directory, name, owner)
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as client:
            connect(client, directory, "live.keeper", uid)
        stale = {name for name in os.listdir(short_path) if is_stale(directory, name)}
    assert stale == {"dead.keeper"}


def test_names_of_others_are_told_from_ours() -> None:
    names = ("hfs-7", "hfs-0", "hfs-7-abcdefg_", "hfs-7-short", "hfs-", "hfs-07", "hfs-٣", "hfs-abcdefgh", "xhfs-7")
    assert [user_of(name) for name in names] == [7, 0, 7, None, None, None, None, None, None]


def test_mountpoints_of_our_own_go_when_nobody_uses_them(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not young ones, whose daemon may be starting; not those with a socket; not what has something in it."""
    home = short_path / "hfs"
    monkeypatch.setattr(socket_places, "directories_of", lambda _uid: [str(home)])
    names = ("old", "used", "full", "young", "again")
    made = {name: Path(mountpoint_of(f"/{name}") or "") for name in names}
    assert all(path.is_dir() for path in made.values())
    (made["full"] / "file").write_text("")
    (home / "other").mkdir()
    for path in (*made.values(), home / "other"):
        if path != made["young"]:
            os.utime(path, (1, 1))
    with bound(Path(new_path(str(made["used"]), KEEPER) or "")):
        assert mountpoint_of("/again") == str(made["again"])
        assert {name for name, path in made.items() if path.exists()} == {"used", "full", "young", "again"}
        assert (home / "other").exists()
