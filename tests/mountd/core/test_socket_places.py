"""Where sockets lie: the directories of a user, names by mountpoint, and what killed processes have left."""

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
    directories_of,
    is_private,
    mountpoint_of,
    new_path,
    paths_of,
    prefix_of,
)


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
    assert paths_of(str(home), "/m", KEEPER) == []
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
    assert is_private(str(ours), os.geteuid())
    assert not is_private(str(ours), os.geteuid() + 1)
    (short_path / "link").symlink_to("ours")
    assert not is_private(str(short_path / "link"), os.geteuid())
    monkeypatch.setattr(socket_places, "directories_of", lambda _uid: ["/proc/none"])
    assert new_path("/m", DAEMON) is None


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
