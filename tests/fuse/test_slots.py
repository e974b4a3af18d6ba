"""Files that the data plane alone remembers: looked through like `find -size` does, in a real mount."""

import os
import threading
import time
from pathlib import Path

import pytest

from tests.fuse.harness import HfsMount, hfs_command, must
from tests.fuse.slowfs import SlowSource
from tests.fuse.trees import FILES, FOLDERS, different_stats, numbered_tree, seed
from tests.support.pattern import explain, pattern

TTL_S = 1.0


def look_through(root: Path) -> dict[str, os.stat_result]:
    """As find does: a folder is listed, then each of its names is looked up."""
    found = {}
    for folder in sorted(os.listdir(root)):
        for name in os.listdir(root / folder):
            found[f"{folder}/{name}"] = os.lstat(root / folder / name)
    return found


def test_they_are_what_the_source_has(tmp_path: Path, hfs_mount: HfsMount) -> None:
    source = numbered_tree(tmp_path / "source")
    hfs = hfs_mount(source)
    found = look_through(hfs.path)
    slots = hfs.status()["slots"]
    assert slots["known"] > FOLDERS * FILES * 3 // 4
    assert slots["held"] == slots["known"]
    assert hfs.status()["counters"]["source_stats"]["value"] <= FOLDERS * FILES + FOLDERS + 10, "each is asked for once"
    assert not different_stats(source, hfs.path)
    assert {name: stat.st_ino for name, stat in found.items()} == {
        name: stat.st_ino for name, stat in look_through(source).items()
    }
    for folder, number in ((0, 199), (3, 0), (7, 120)):
        path = hfs.path / f"{folder}" / f"{number:04d}"
        with path.open("rb") as file:
            data = file.read()
            assert data == pattern(seed(folder, number), 0, 1 + number), explain(seed(folder, number), 0, data)
            assert os.fstat(file.fileno()).st_ino == os.lstat(path).st_ino
    assert hfs.status()["slots"]["known"] >= slots["known"] - 3


def test_a_change_is_seen_when_the_time_to_live_is_over(tmp_path: Path, hfs_mount: HfsMount) -> None:
    source = numbered_tree(tmp_path / "source")
    hfs = hfs_mount(source, "--ttl", str(TTL_S))
    before = look_through(hfs.path)
    assert hfs.status()["slots"]["known"] > FILES
    (source / "1" / "0007").write_bytes(b"another one of another size")
    (source / "2" / "0008").unlink()
    os.link(source / "3" / "0009", source / "3" / "linked")
    os.replace(source / "4" / "0010", source / "4" / "0011")
    (source / "5" / "0012").unlink()
    (source / "5" / "0012").mkdir()
    time.sleep(TTL_S)  # what is tested: there is no event that tells of it
    after = look_through(hfs.path)
    assert not different_stats(source, hfs.path)
    assert after["1/0007"].st_size == 27
    assert (hfs.path / "1" / "0007").read_bytes() == b"another one of another size"
    assert {"2/0008", "4/0010"} == set(before) - set(after)
    assert set(after) - set(before) == {"3/linked"}
    assert (hfs.path / "4" / "0011").read_bytes() == pattern(seed(4, 10), 0, 11)


def test_the_next_daemon_looks_them_up_anew(tmp_path: Path, hfs_mount: HfsMount) -> None:
    source = numbered_tree(tmp_path / "source")
    hfs = hfs_mount(source)
    look_through(hfs.path)
    shown = os.open(hfs.path / "2" / "0150", os.O_PATH)
    hfs.crash()
    assert not different_stats(source, hfs.path)
    assert (hfs.path / "2" / "0150").read_bytes() == pattern(seed(2, 150), 0, 151)
    os.close(shown)


def test_a_mount_that_becomes_stateless_notes_what_it_has_not_told_yet(
    tmp_path: Path, hfs_mount: HfsMount, slow_source: SlowSource
) -> None:
    """Names were asked for ahead; then the kernel opens files without asking; then the daemon is killed."""
    source = numbered_tree(tmp_path / "source")
    hfs = hfs_mount(slow_source(source).path, "--immutable")
    must(hfs_command(), "cache", "warm", hfs.path / "1")
    names = os.listdir(hfs.path / "0")
    for name in names[:120]:
        os.lstat(hfs.path / "0" / name)
    assert hfs.status()["slots"]["known"] > 100
    for number in range(80):
        (hfs.path / "1" / f"{number:04d}").read_bytes()
    assert hfs.status()["io_mode"]["mode"] == "stateless"
    opened = {name: os.open(hfs.path / "0" / name, os.O_RDONLY) for name in names[125:175]}
    hfs.crash()
    for name, fd in opened.items():
        assert os.read(fd, 1000) == pattern(seed(0, int(name)), 0, 1 + int(name))
        os.close(fd)


@pytest.mark.parametrize("fault", ["eio forever", "hang"])
def test_a_listing_does_not_fail_for_a_name_that_nobody_has_asked_for(
    tmp_path: Path, hfs_mount: HfsMount, slow_source: SlowSource, fault: str
) -> None:
    """A folder beside it was looked through, so its attributes are expected to be wanted; one cannot be had."""
    slow = slow_source(numbered_tree(tmp_path / "source"))
    hfs = hfs_mount(slow.path, "-o", "source-timeout=30")
    for name in os.listdir(hfs.path / "0"):
        os.lstat(hfs.path / "0" / name)
    os.listdir(hfs.path)
    (hfs.path / "1").stat()
    slow.order(f"fault lookup {fault} path /1/0150")
    assert len(os.listdir(hfs.path / "1")) == FILES
    slow.order("clear")


def test_many_look_through_it_at_once(tmp_path: Path, hfs_mount: HfsMount) -> None:
    source = numbered_tree(tmp_path / "source")
    hfs = hfs_mount(source, "--ttl", "0.2")
    expected = {name: (stat.st_ino, stat.st_size) for name, stat in look_through(source).items()}
    wrong: list[str] = []

    def look() -> None:
        for _ in range(6):
            for name, stat in look_through(hfs.path).items():
                if (stat.st_ino, stat.st_size) != expected[name]:
                    wrong.append(name)
            with (hfs.path / "0" / "0199").open("rb") as file:
                if file.read() != pattern(seed(0, 199), 0, 200):
                    wrong.append("0/0199")

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
