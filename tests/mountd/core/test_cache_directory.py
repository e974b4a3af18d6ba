"""The cache directory: which ways to it are taken, and what in it is refused. Attacks on a mount: tests/fuse."""

import os
import stat
from pathlib import Path

import pytest

from hfs.mountd.core import cache_directory
from hfs.mountd.core.cache_directory import CacheDirectory, open_cache_directory, real_path
from hfs.mountd.core.errors import ConfigError

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's files")

STRANGER = 4242


def opened(path: Path, *, make: bool = False) -> CacheDirectory:
    return open_cache_directory(str(path), make=make)


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        opened(path)
    return str(caught.value)


def test_what_is_made_is_made_for_us_alone(tmp_path: Path) -> None:
    """Whatever the umask; directories above it are as usual."""
    before = os.umask(0)
    try:
        with opened(tmp_path / "a" / "b", make=True) as directory:
            os.close(directory.open_directory("objects"))
            os.close(directory.open("lock", os.O_RDWR | os.O_CREAT))
    finally:
        os.umask(before)
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b", "a/b/objects", "a/b/lock")}
    assert modes == {"a": 0o755, "a/b": 0o700, "a/b/objects": 0o700, "a/b/lock": 0o600}


def test_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError):
        opened(tmp_path / "absent")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        for make in (False, True):
            with pytest.raises(NotADirectoryError):
                opened(path, make=make)
    assert not (tmp_path / "absent").exists()


def test_the_remedy_where_all_may_write(tmp_path: Path) -> None:
    """A node's /tmp or /scratch, or an emptyDir of Kubernetes, given as it is."""
    tmp_path.chmod(0o1777)
    assert refusal(tmp_path) == (
        f"cache {tmp_path}: may be written to by others (mode 1777); give one below it, such as {tmp_path}/hfs, "
        f"which is made for you alone, or take the right away: chmod go-w {tmp_path}"
    )
    opened(tmp_path / "hfs", make=True).close()


def test_what_hfs_does_not_use_is_not_looked_at(tmp_path: Path) -> None:
    """lost+found, or what else lies in the root of a disk."""
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "lost+found").chmod(0o777)
    (tmp_path / "lockers").symlink_to("/etc")
    opened(tmp_path).close()


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    assert "lock is neither a file nor a directory" in refusal(tmp_path)


def test_logs_that_were_open_to_others_are_closed_to_them(tmp_path: Path) -> None:
    """umask 002, the usual one where each user has a group of his own, made them so."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs").chmod(0o775)
    (tmp_path / "logs" / "m.log").touch()
    (tmp_path / "logs" / "m.log").chmod(0o664)
    with opened(tmp_path) as directory:
        os.close(directory.open_directory("logs"))
    assert stat.S_IMODE((tmp_path / "logs").stat().st_mode) == 0o755


@as_root
@pytest.mark.parametrize("what", ["directory", "file", "link"])
@pytest.mark.parametrize("uid", [0, STRANGER + 1])
def test_logs_that_somebody_else_has_made_in_a_shared_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, uid: int
) -> None:
    """Root moves them away, others go without; and nothing of them is changed."""
    tmp_path.chmod(0o1777)
    made = tmp_path / f"logs-{uid}"
    if what == "directory":
        made.mkdir()
        made.chmod(0o777)
    elif what == "file":
        made.touch()
    else:
        made.symlink_to("/etc")
    os.chown(made, STRANGER, 0, follow_symlinks=False)
    before = made.lstat()
    with open_cache_directory(str(tmp_path), make=False, shared_ok=True) as directory:
        monkeypatch.setattr(os, "geteuid", lambda: uid)
        if uid:
            with pytest.raises(OSError, match=r"belongs to user 4242|Not a directory"):
                directory.open_directory(made.name)
        else:
            os.close(directory.open_directory(made.name))
            assert (made.lstat().st_uid, stat.S_IMODE(made.lstat().st_mode)) == (0, 0o700)
            (made,) = tmp_path.glob("logs-0.not-ours-*")
    assert (made.lstat().st_mode, made.lstat().st_uid) == (before.st_mode, STRANGER)


def test_real_paths(tmp_path: Path) -> None:
    """Links are resolved as the kernel does it, and what is missing stays."""
    root = tmp_path.resolve()
    (root / "a" / "b").mkdir(parents=True)
    (root / "up").symlink_to("a/b/../b")
    (root / "absolute").symlink_to(root / "up")
    (root / "loop").symlink_to("loop")
    (root / "dangling").symlink_to("a/none")
    assert real_path(f"{root}/absolute/new/x") == f"{root}/a/b/new/x"
    assert real_path(f"{root}/dangling/x") == f"{root}/a/none/x"
    assert real_path(f"{root}/a/../a//b/.") == f"{root}/a/b"
    assert real_path("/") == "/"
    with pytest.raises(OSError, match="symbolic links"):
        real_path(f"{root}/loop")
    assert real_path(f"{root}/dangling/x", stops={f"{root}/a"}) == f"{root}/a/none/x"
    with opened(root / "absolute" / "new", make=True) as directory:
        assert (directory.path, directory.real_path) == (f"{root}/absolute/new", f"{root}/a/b/new")


def test_a_directory_that_is_replaced_on_the_way_leads_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who may rename a directory above does so between two steps: the way goes on below the old one."""
    root = tmp_path.resolve()
    (root / "project" / "cache").mkdir(parents=True, mode=0o700)
    (root / "victim" / "cache").mkdir(parents=True, mode=0o700)
    step = cache_directory._step

    def replaced(found: cache_directory.Found, name: str, path: str) -> None:
        step(found, name, path)
        if path == f"{root}/project":
            (root / "project").rename(root / "away")
            (root / "project").symlink_to("victim")

    monkeypatch.setattr(cache_directory, "_step", replaced)
    with opened(root / "project" / "cache") as directory:
        os.close(directory.open("lock", os.O_RDWR | os.O_CREAT))
    assert os.listdir(root / "victim" / "cache") == []
    assert os.listdir(root / "away" / "cache") == ["lock"]
