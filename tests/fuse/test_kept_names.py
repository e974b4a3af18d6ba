"""A later job over a source that never changes: names and attributes from the index, reads from objects found right."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fuse.harness import Hfs, HfsMount
from tests.fuse.trees import FILES, FOLDERS, different_stats, numbered_tree, seed
from tests.support.pattern import explain, pattern


@pytest.mark.parametrize("mode", [pytest.param("daemon", marks=pytest.mark.long), "auto"])
def test_a_later_job_does_not_ask_a_source_that_never_changes(tmp_path: Path, hfs_mount: HfsMount, mode: str) -> None:
    """What was opened or warmed before: its attributes are in the index. A mount that does not believe that asks."""
    source = numbered_tree(tmp_path / "source")
    hfs = hfs_mount(source, "--immutable", "--io-mode", mode)
    assert hfs.cache_command("warm", hfs.path / "1").returncode == 0
    opened = [f"2/{number:04d}" for number in range(0, FILES, 3)]
    for name in opened:
        (hfs.path / name).read_bytes()
    assert hfs.cache_command("warm", hfs.path / "2").returncode == 0
    hfs.umount()
    hfs.mount()
    for folder in (1, 2):
        for number in range(FILES):
            path = hfs.path / f"{folder}" / f"{number:04d}"
            data = path.read_bytes()
            assert data == pattern(seed(folder, number), 0, 1 + number), explain(seed(folder, number), 0, data)
    assert int(hfs.status()["counters"]["source_stats"]["value"]) <= 10, "the root, and folders on the way"
    assert not different_stats(source / "1", hfs.path / "1")
    (source / "1" / "0005").write_bytes(b"nobody has said that this may be")
    hfs.umount()
    hfs.mount()
    assert (hfs.path / "1" / "0005").read_bytes() == pattern(seed(1, 5), 0, 6)
    hfs.umount()
    asking = hfs_mount(source, cache=hfs.cache)
    assert (asking.path / "1" / "0005").read_bytes() == b"nobody has said that this may be"
    (source / "1" / "0006").write_bytes(b"nor this")
    asking.umount()
    hfs.mount()
    assert (hfs.path / "1" / "0006").read_bytes() == b"nor this", "a mount that asks was in between"


def test_names_that_come_and_go_between_two_jobs_are_seen(tmp_path: Path, hfs_mount: HfsMount) -> None:
    source = numbered_tree(tmp_path / "source")
    hfs = hfs_mount(source, "--immutable")
    assert hfs.cache_command("warm", hfs.path).returncode == 0
    hfs.umount()
    (source / "1" / "0001").unlink()
    (source / "2" / "0002").rename(source / "2" / "0003")
    (source / "3" / "new").write_bytes(b"new")
    (source / "4").rename(source / "away")
    (source / "5").rename(source / "4")
    hfs.mount()
    assert not different_stats(source, hfs.path)
    for path in sorted(source.rglob("*")):
        if path.is_file():
            assert (hfs.path / path.relative_to(source)).read_bytes() == path.read_bytes(), path


def test_two_sources_of_one_file_system_may_share_a_cache(tmp_path: Path, hfs_mount: HfsMount) -> None:
    """Below both are the same names, with files of the same sizes and times."""
    sources = [tmp_path / "one", tmp_path / "other"]
    for number, source in enumerate(sources):
        (source / "below").mkdir(parents=True)
        for name in ("a", "below/b"):
            (source / name).write_bytes(pattern(50 + number, 0, 1000))
            os.utime(source / name, (1, 1))
        os.utime(source / "below", (1, 1))
        os.utime(source, (1, 1))
    cache = tmp_path / "cache"
    for number in (0, 1, 0, 1):
        hfs = hfs_mount(sources[number], "--immutable", cache=cache)
        for name in ("a", "below/b"):
            data = (hfs.path / name).read_bytes()
            assert data == pattern(50 + number, 0, 1000), explain(50 + number, 0, data)
        assert not different_stats(sources[number], hfs.path)
        assert hfs.cache_command("warm", hfs.path).returncode == 0
        hfs.umount()
    within = hfs_mount(sources[0] / "below", "--immutable", cache=cache)
    assert (within.path / "b").read_bytes() == pattern(50, 0, 1000)


def test_reads_of_a_later_stateless_job_are_right_whatever_becomes_of_the_objects(
    tmp_path: Path, hfs_mount: HfsMount
) -> None:
    """Answered by the data plane: until an object is evicted or damaged, and by the next daemon for what is open."""
    source = numbered_tree(tmp_path / "source")
    hfs = hfs_mount(source, "--immutable", "--io-mode", "stateless")
    assert hfs.cache_command("warm", hfs.path).returncode == 0
    hfs.umount()
    hfs.mount()

    def right(folder: int) -> None:
        for number in range(FILES):
            data = (hfs.path / f"{folder}" / f"{number:04d}").read_bytes()
            assert data == pattern(seed(folder, number), 0, 1 + number), explain(seed(folder, number), 0, data)

    for folder in range(FOLDERS):
        os.listdir(hfs.path / f"{folder}")
        (hfs.path / f"{folder}" / "0000").stat()
    right(0)
    while hfs.status()["slots"]["known"] < FILES:
        pass
    before = hfs.status()["data_plane"]["reads"]
    right(1)
    right(2)
    assert hfs.status()["slots"]["known"] > 3 * FILES, "they need no nodes"
    assert hfs.status()["data_plane"]["reads"] > before
    opened = {number: os.open(hfs.path / "3" / f"{number:04d}", os.O_RDONLY) for number in range(0, FILES, 7)}
    assert hfs.cache_command("evict", hfs.path / "4").returncode == 0
    right(4)
    taken = [os.open(hfs.path / "6" / f"{number:04d}", os.O_RDONLY) for number in (1, 2)]
    assert hfs.cache_command("evict", hfs.path / "6").returncode == 0
    hfs.crash()
    for number, fd in zip((1, 2), taken, strict=True):
        assert os.pread(fd, 1000, 0) == pattern(seed(6, number), 0, 1 + number), "evicted, and its daemon killed"
        os.close(fd)
    for number, fd in opened.items():
        assert os.pread(fd, 1000, 0) == pattern(seed(3, number), 0, 1 + number)
        os.close(fd)
    right(3)
    right(5)


def _files_open(hfs: Hfs, folder: str) -> dict[int, int]:
    """Of a later stateless job, through names from the index: descriptors by number."""
    assert hfs.cache_command("warm", hfs.path).returncode == 0
    hfs.umount()
    hfs.mount()
    os.listdir(hfs.path / folder)
    (hfs.path / folder / "0000").stat()
    while hfs.status()["slots"]["known"] < FILES - 1:
        pass
    return {n: os.open(hfs.path / folder / f"{n:04d}", os.O_RDONLY) for n in range(1, FILES, 7)}


@pytest.mark.parametrize("change", ["a name more", pytest.param("renamed", marks=pytest.mark.long)])
def test_who_has_files_open_reads_on_after_a_kill_whatever_became_of_their_directory(
    tmp_path: Path, hfs_mount: HfsMount, change: str
) -> None:
    source = numbered_tree(tmp_path / "source")
    hfs = hfs_mount(source, "--immutable", "--io-mode", "stateless")
    opened = _files_open(hfs, "3")
    if change == "renamed":
        (source / "3").rename(source / "4" / "away")
        assert (hfs.path / "4" / "away" / "0000").stat().st_size == 1
    else:
        (source / "3" / "new").write_bytes(b"x")
    hfs.crash()
    os.listdir(hfs.path / "4")
    assert hfs.cache_command("warm", hfs.path / "4").returncode == 0
    for number, fd in opened.items():
        assert os.pread(fd, 1000, 0) == pattern(seed(3, number), 0, 1 + number)
        os.close(fd)


def test_what_was_seen_before_a_change_is_not_kept_as_if_seen_after_it(tmp_path: Path, hfs_mount: HfsMount) -> None:
    """The source changes under a job that was told that it never does; the next job sees the change."""
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    (source / "d" / "f").write_bytes(b"o" * 5000)
    before = hfs_mount(source)
    assert (before.path / "d" / "f").read_bytes() == b"o" * 5000
    before.umount()
    hfs = hfs_mount(source, "--immutable", cache=before.cache)
    assert (hfs.path / "d" / "f").stat().st_size == 5000
    (source / "d" / "tmp").write_bytes(b"n" * 5000)
    (source / "d" / "tmp").rename(source / "d" / "f")
    (source / "d").rename(source / "e")
    assert (hfs.path / "e" / "f").read_bytes() == b"o" * 5000
    hfs.umount()
    hfs.mount()
    assert (hfs.path / "e" / "f").read_bytes() == b"n" * 5000
