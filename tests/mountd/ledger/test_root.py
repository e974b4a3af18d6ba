"""The cache root: what caches are called, and how one of earlier releases becomes one of them."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import hfs.mountd.ledger.root as root_module
from hfs.mountd.core.cache_directory import CacheDirectory, lock_cache, open_cache_directory
from hfs.mountd.core.errors import CacheInUse, ConfigError
from hfs.mountd.core.version import passing_id
from hfs.mountd.ledger.root import CacheRoot, cache_name, caches_below

NAME = cache_name("0" * 16, 5, "/data")
FILES = ("index.sqlite", "index.sqlite-wal", "objects/00/x", "objects.broken-1/y")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A cache of an earlier release, with a log and something that is none of ours."""
    root = tmp_path / "root"
    root.mkdir(mode=0o700)
    for name in (*FILES, "lock", "logs/l", "mine"):
        (root / name).parent.mkdir(mode=0o700, exist_ok=True, parents=True)
        (root / name).write_text(name)
    return root


def take_over(root: Path) -> None:
    opened = CacheRoot(str(root))
    try:
        opened.take_over(NAME)
    finally:
        opened.close()


def assert_moved(root: Path) -> None:
    assert {name: (root / NAME / name).read_text() for name in FILES} == {name: name for name in FILES}
    assert {path.name for path in root.iterdir()} == {NAME, "ledger", "logs", "mine"}
    assert caches_below(str(root)) == [str(root / NAME)]


def test_a_name_is_of_what_the_source_is() -> None:
    assert cache_name("0" * 16, 5, "/elsewhere") == NAME
    assert cache_name("0" * 16, 6, "/data") != NAME
    assert NAME.startswith(f"{os.geteuid()}-")
    assert cache_name(passing_id(), 5, "/data") == cache_name(passing_id(), 6, "/data")
    assert cache_name(passing_id(), 5, "/data") != cache_name(passing_id(), 5, "/other\udcff")


def test_a_cache_of_earlier_releases_is_taken_over_as_it_is(old: Path) -> None:
    take_over(old)
    assert_moved(old)
    take_over(old)
    assert_moved(old)


class Killed(BaseException):
    pass


class KilledDirectory:
    """Puts an end to whoever renames or removes for the last of so many times."""

    def __init__(self, patch: pytest.MonkeyPatch, steps: int) -> None:
        self._left = steps
        for name in ("rename", "unlink"):
            patch.setattr(CacheDirectory, name, self._or_die(getattr(CacheDirectory, name)))

    def _or_die(self, call: Callable[..., None]) -> Callable[..., None]:
        def one(*arguments: object) -> None:
            if not self._left:
                raise Killed
            self._left -= 1
            call(*arguments)

        return one


@pytest.mark.parametrize("steps", range(6))
def test_a_take_over_that_is_killed_anywhere_goes_on(old: Path, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Four files and folders, the folder of the cache, the lock."""
    with monkeypatch.context() as patch:
        KilledDirectory(patch, steps)
        with pytest.raises(Killed):
            take_over(old)
    take_over(old)
    (old / "lock").unlink(missing_ok=True)  # it was the last thing to be removed
    assert_moved(old)


def test_one_that_is_in_use_is_not_taken_over(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root_module, "_TAKEN_OVER_S", 0.0)
    with open_cache_directory(str(old), make=False) as directory:
        lock_fd = lock_cache(directory)
        with pytest.raises(CacheInUse):
            take_over(old)
        os.close(lock_fd)
    assert (old / "index.sqlite").exists()


def test_an_old_one_is_found_without_being_moved(old: Path) -> None:
    assert caches_below(str(old)) == [str(old)]
    with pytest.raises(FileNotFoundError):
        caches_below(str(old / "absent"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a directory that is root's")
def test_a_root_that_several_users_share_is_sticky_and_of_root(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    opened = CacheRoot(str(shared))
    assert opened.directory.shared
    opened.close()
    assert (shared / "ledger").stat().st_mode & 0o7777 == 0o1777
    (shared / NAME).mkdir()
    os.chown(shared / NAME, 4242, 4242)
    assert caches_below(str(shared)) == []  # another user's
    with pytest.raises(ConfigError, match="belongs to user 4242"):
        open_cache_directory(str(shared / NAME), make=True)
    shared.chmod(0o777)
    with pytest.raises(ConfigError, match="may be written to by others"):
        CacheRoot(str(shared))


def test_two_daemons_that_take_over_at_once(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits for the first, and finds that nothing is left to be done."""
    with open_cache_directory(str(old), make=False) as directory:
        lock_fd = lock_cache(directory)

    def done_meanwhile(_seconds: float) -> None:
        os.close(lock_fd)
        monkeypatch.setattr(root_module.time, "sleep", lambda _seconds: None)
        take_over(old)

    monkeypatch.setattr(root_module.time, "sleep", done_meanwhile)
    take_over(old)
    (old / "lock").unlink(missing_ok=True)
    assert_moved(old)
