"""`hfs refresh` on real mounts: a changed source is seen at once, and only what has changed is read again."""

import os
import threading
from pathlib import Path

import pytest

from tests.fuse.harness import HfsMount, must_here
from tests.fuse.slowfs import SlowSource
from tests.support.pattern import pattern

SIZE = 50_000
COUNT = 60


def source_at(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    for folder in ("d", "other"):
        (source / folder / "below").mkdir(parents=True)
        for name in range(COUNT):
            (source / folder / str(name)).write_bytes(pattern(name + 1, 0, SIZE))
    return source


def look(path: Path) -> None:
    """All that a job asks: listings, attributes, bytes, and names that are not there."""
    for entry in sorted(path.rglob("*")):
        entry.lstat()
        if entry.is_file():
            entry.read_bytes()
    for name in ("new", "below/new", "directory/new"):
        assert not (path / name).exists()


def change(source: Path) -> None:
    """Rewritten in place, replaced, removed, made; a directory that is another one; and one that is new."""
    (source / "0").write_bytes(pattern(500, 0, SIZE))
    (source / "1~").write_bytes(pattern(501, 0, 3 * SIZE))
    (source / "1~").rename(source / "1")
    (source / "2").unlink()
    (source / "new").write_bytes(b"new")
    (source / "below").rmdir()
    (source / "below").mkdir()
    (source / "below" / "new").write_bytes(b"below")
    (source / "directory").mkdir()
    (source / "directory" / "new").write_bytes(b"further below")


def contents(path: Path) -> dict[str, bytes]:
    found = {}
    for folder, _, names in os.walk(path):
        for name in names:
            entry = Path(folder) / name
            found[str(entry.relative_to(path))] = entry.read_bytes()
    return found


OPTIONS = [
    ("--immutable",),
    ("--immutable", "--io-mode", "stateless"),
    ("-o", "ttl=1d"),
    ("--io-mode", "daemon", "-o", "ttl=1d"),
]


@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
@pytest.mark.parametrize("warm", [True, False])
def test_what_has_changed_is_seen_and_nothing_else_is_read(
    tmp_path: Path, hfs_mount: HfsMount, options: tuple[str, ...], warm: bool
) -> None:
    source = source_at(tmp_path)
    hfs = hfs_mount(source, *options)
    if warm:
        assert hfs.cache_command("warm", hfs.path).returncode == 0
    look(hfs.path / "d")
    look(hfs.path / "other")
    before = {name: os.stat(hfs.path / "other" / name).st_ino for name in ("0", "below")}
    held = (hfs.path / "d" / "0").open("rb")
    try:
        change(source / "d")
        change(source / "other")
        here = os.getcwd()
        os.chdir(hfs.path / "d")
        try:
            read = hfs.source_bytes()
            must_here("refresh", hfs.path / "d")
            assert Path.cwd() == hfs.path / "d", "a working directory keeps its name"
            assert Path("new").read_bytes() == b"new"
        finally:
            os.chdir(here)
        assert contents(hfs.path / "d") == contents(source / "d")
        assert sorted(os.listdir(hfs.path / "d")) == sorted(os.listdir(source / "d"))
        assert (hfs.path / "d").stat().st_mtime_ns == (source / "d").stat().st_mtime_ns
        changed_bytes = sum(len(data) for data in (pattern(500, 0, SIZE), pattern(501, 0, 3 * SIZE), b"x" * 100))
        assert hfs.source_bytes() - read <= changed_bytes + 65536, "only what is another version now"
        assert held.read() == pattern(1, 0, SIZE), "who has it open goes on"
    finally:
        held.close()
    assert (hfs.path / "other" / "0").read_bytes() == pattern(1, 0, SIZE), "of this nobody has said anything"
    assert not (hfs.path / "other" / "new").exists()
    assert {name: os.stat(hfs.path / "other" / name).st_ino for name in before} == before
    must_here("refresh", hfs.path)
    assert contents(hfs.path) == contents(source)


@pytest.mark.parametrize("options", OPTIONS[:3], ids=" ".join)
def test_it_holds_for_what_an_earlier_daemon_has_told_the_kernel(
    tmp_path: Path, hfs_mount: HfsMount, options: tuple[str, ...]
) -> None:
    """Names that did not exist among it, of which the next daemon knows nothing."""
    source = source_at(tmp_path)
    hfs = hfs_mount(source, *options)
    assert hfs.cache_command("warm", hfs.path).returncode == 0
    look(hfs.path / "d")
    hfs.crash()
    change(source / "d")
    must_here("refresh", hfs.path)
    assert contents(hfs.path / "d") == contents(source / "d")


def test_a_later_mount_does_not_go_back_to_what_was(tmp_path: Path, hfs_mount: HfsMount) -> None:
    """What the cache keeps of names for it is forgotten, also of directories where nobody has been."""
    source = source_at(tmp_path)
    hfs = hfs_mount(source, "--immutable")
    assert hfs.cache_command("warm", hfs.path).returncode == 0
    look(hfs.path / "d")
    hfs.umount()
    hfs.mount()
    for folder in ("d", "other"):
        (source / folder / "0").write_bytes(pattern(500, 0, SIZE))  # the directory stays as it is
    must_here("refresh", hfs.path / "other")
    assert (hfs.path / "other" / "0").read_bytes() == pattern(500, 0, SIZE)
    assert (hfs.path / "d" / "0").read_bytes() == pattern(1, 0, SIZE), "that is what --immutable says"
    hfs.umount()
    hfs.mount()
    assert (hfs.path / "other" / "0").read_bytes() == pattern(500, 0, SIZE)
    must_here("refresh", hfs.path)
    hfs.umount()
    hfs.mount()
    assert contents(hfs.path) == contents(source)


def test_a_look_up_that_hangs_keeps_neither_the_command_nor_other_readers(
    tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount
) -> None:
    """The kernel would wait for the directory that it holds, and everybody else with it."""
    backing = source_at(tmp_path)
    source = slow_source(backing)
    hfs = hfs_mount(source.path, "--immutable")
    look(hfs.path / "d")
    source.order("fault lookup hang path /d/hung")
    hung = threading.Thread(target=(hfs.path / "d" / "hung").exists)
    hung.start()
    try:
        while not source.counters()["parked"]:
            assert hung.is_alive()
        (backing / "d" / "0").write_bytes(pattern(500, 0, SIZE))
        must_here("refresh", hfs.path / "d")
        assert (hfs.path / "d" / "5").read_bytes() == pattern(6, 0, SIZE)
    finally:
        source.order("clear")
        hung.join()
    must_here("refresh", hfs.path / "d")
    assert contents(hfs.path / "d") == contents(backing / "d")
