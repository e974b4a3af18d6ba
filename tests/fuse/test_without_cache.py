"""A daemon that follows another starts whatever has become of its cache, and takes it up again when it is well."""

import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuse.harness import Hfs, HfsMount, drop_pages, hfs_command, kill, must, run
from tests.fuse.hinted import wait_until
from tests.fuse.injection import injected, setting
from tests.support.pattern import pattern

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount, and give files to others")

SIZES = {"small": 3000, "sub/other": 70_000, "large": 9 << 20}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("source")
    (tree / "sub").mkdir()
    for number, (name, size) in enumerate(SIZES.items(), 1):
        (tree / name).write_bytes(pattern(number, 0, size))
    return tree


def read_all(hfs: Hfs) -> None:
    assert sorted(os.listdir(hfs.path)) == ["large", "small", "sub"]
    for number, (name, size) in enumerate(SIZES.items(), 1):
        assert (hfs.path / name).read_bytes() == pattern(number, 0, size), name


def covered(*options: str) -> Callable[[Hfs], None]:
    return lambda hfs: must("mount", "-t", "tmpfs", *options, "none", hfs.cache) and None


def uncovered(hfs: Hfs) -> None:
    must("umount", hfs.cache)


def moved(hfs: Hfs) -> Path:
    return hfs.cache.with_name("moved")


def becomes_a_file(hfs: Hfs) -> None:
    hfs.cache.rename(moved(hfs))
    hfs.cache.touch()


def is_back(hfs: Hfs) -> None:
    hfs.cache.unlink()
    moved(hfs).rename(hfs.cache)


def written_by(version: int) -> Callable[[Hfs], None]:
    def write(hfs: Hfs) -> None:
        index = sqlite3.connect(hfs.own_cache / "index.sqlite")
        index.execute(f"PRAGMA user_version = {version}")
        index.close()

    return write


def format_of(hfs: Hfs) -> int:
    index = sqlite3.connect(hfs.own_cache / "index.sqlite")
    (found,) = index.execute("PRAGMA user_version").fetchone()
    index.close()
    return int(found)


FAULTS: dict[str, tuple[Callable[[Hfs], object], Callable[[Hfs], object], str]] = {
    "read-only": (covered("-o", "ro,mode=700"), uncovered, "Read-only file system"),
    "full": (covered("-o", "size=64k,mode=700"), uncovered, "full|No space"),
    "foreign": (
        lambda hfs: os.chown(hfs.own_cache, 4242, 4242),
        lambda hfs: os.chown(hfs.own_cache, 0, 0),
        "belongs to user 4242",
    ),
    "open to others": (lambda hfs: hfs.cache.chmod(0o777), lambda hfs: hfs.cache.chmod(0o700), "written to by others"),
    "not a directory": (becomes_a_file, is_back, "Not a directory"),
    "of a newer release": (written_by(99), written_by(6), "written by a newer hfs"),
    "its lock is a directory": (
        lambda hfs: ((hfs.own_cache / "lock").unlink(), (hfs.own_cache / "lock").mkdir()),
        lambda hfs: (hfs.own_cache / "lock").rmdir(),
        "Is a directory",
    ),
}
"""What happens to it, how that is undone, and what the status says then."""


SOON = injected(
    setting("hfs.mountd.daemon.cache_watch:_FIRST_S", 0.2), setting("hfs.mountd.daemon.cache_watch:_LONGEST_S", 0.2)
)


def wait_staging(hfs: Hfs, state: str = "ok") -> None:
    """Until the daemon that serves says that of its cache."""
    while hfs.status()["staged"]["state"] != state:
        pass
    hfs.look()


def expect(hfs: Hfs) -> None:
    hfs.expect_warning("there is no cache: .*; all is read from the source; the cache is taken up when it is well")
    hfs.expect_warning("was ended by SIGKILL .*; the next one is started|ended with exit code 0 .*; the next one")


@pytest.fixture
def hfs(source: Path, hfs_mount: HfsMount) -> Hfs:
    made = hfs_mount(source, env=SOON)
    expect(made)
    return made


@pytest.mark.parametrize("names", [["read-only", "foreign"], pytest.param(list(FAULTS), marks=pytest.mark.long)])
def test_all_reads_go_on_without_a_cache_and_it_is_taken_up_when_it_is_well(hfs: Hfs, names: list[str]) -> None:
    read_all(hfs)
    assert hfs.cache_command("warm", hfs.path).returncode == 0
    with (hfs.path / "large").open("rb", buffering=0) as held:
        for name in names:
            strike, mend, said = FAULTS[name]
            strike(hfs)
            try:
                kill(hfs.pid)
                read_all(hfs)
                assert held.read(5) == pattern(3, held.tell() - 5, 5), name
                staged = hfs.status()["staged"]
                assert staged["state"] == "off", (name, staged)
                assert re.search(said, staged["last_error"]), (name, staged)
                assert hfs.cache_command("warm", hfs.path).returncode != 0
            finally:
                mend(hfs)
            wait_staging(hfs)
            read_all(hfs)
            wait_until(hfs, lambda status: status["staged"]["files"] == len(SIZES))  # written behind its readers
    assert len(re.findall("there is no cache: .*; all is read from the source", hfs.log_text())) == len(names)


def test_a_mount_begins_without_a_cache_and_takes_it_up_when_it_is_well(
    source: Path, hfs_mount: HfsMount, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    must("mount", "--bind", cache, cache)
    must("mount", "-o", "remount,bind,ro", cache)
    try:
        hfs = hfs_mount(source, env=SOON)
        expect(hfs)
        read_all(hfs)
        kill(hfs.pid)
        read_all(hfs)
        options = ("--source", source, "--cache", cache, "--log-file", hfs.log, *hfs.options)
        joined = run(hfs_command(), "run", *options, "--", "true")
        assert (joined.returncode, "Read-only file system" in joined.stderr) == (0, True), joined
    finally:
        must("umount", cache)
    wait_staging(hfs)
    read_all(hfs)
    assert hfs.cache_command("warm", hfs.path).returncode == 0


def test_a_cache_that_was_removed_or_is_damaged_is_made_anew(hfs: Hfs) -> None:
    hfs.expect_warning("staging|index|damaged|in writing|WARNING hfs.mountd.cache")
    read_all(hfs)
    hfs.cache.rename(moved(hfs))  # at once: the next daemon may begin while a tree is being removed
    kill(hfs.pid)
    read_all(hfs)
    wait_staging(hfs)
    (hfs.own_cache / "index.sqlite").write_bytes(b"nonsense" * 5000)
    kill(hfs.pid)
    read_all(hfs)
    wait_staging(hfs)
    assert hfs.cache_command("warm", hfs.path).returncode == 0


def test_a_cache_that_is_removed_under_its_daemon_is_made_anew(hfs: Hfs) -> None:
    hfs.expect_warning("WARNING hfs.mountd.cache")
    assert (hfs.path / "small").read_bytes() == pattern(1, 0, SIZES["small"])
    before = hfs.pid
    shutil.rmtree(hfs.cache)
    while hfs.pid == before:
        read_all(hfs)
        drop_pages(hfs.path / "large")
        hfs.look()
    wait_staging(hfs)
    assert hfs.cache_command("warm", hfs.path).returncode == 0
