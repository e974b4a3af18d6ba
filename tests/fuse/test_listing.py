"""Listings through real mounts: names, inode numbers and types without a stat each, attributes ahead of who wants them.

How many look-ups reach the source is counted by slowfs; how many nodes the kernel was given is in `hfs status`. Each
name of a cold listing is neither.
"""

import ctypes
import os
import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.fuse.conftest import SMALL_CHUNK_BYTES, Mounts, SlowSources
from tests.fuse.harness import Hfs, HfsMount, must_here
from tests.fuse.slowfs import SlowFs, SlowSource
from tests.fuse.trees import different_stats, make_odd_tree, make_special_files, walk

FEW = 10
"""Look-ups and stats of the root and on the way, whatever is listed."""


MODES = {"auto": (), "immutable": ("--immutable",), "daemon": ("--io-mode", "daemon")}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Directories of no, three and many names."""
    many(tmp_path / "source/many", 700)
    (tmp_path / "source/empty").mkdir()
    (tmp_path / "source/few").mkdir()
    for name in "012":
        (tmp_path / "source/few" / name).touch()
    return tmp_path / "source"


class Counted(NamedTuple):
    """A mount of a slowfs. Each test makes a folder of its own in it, which nobody has asked for before."""

    hfs: Hfs
    slow: SlowFs
    backing: Path


@pytest.fixture(scope="module")
def counted(shared_folder: Path, shared_slow_source: SlowSources, shared_mount: Mounts) -> Counted:
    backing = shared_folder / "backing"
    backing.mkdir()
    slow = shared_slow_source(backing)
    return Counted(shared_mount(slow.path), slow, backing)


@contextmanager
def opened(path: bytes) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def many(folder: Path, count: int) -> Path:
    """A folder of `count` empty files, whose names do not come in the order in which they were made."""
    folder.mkdir(parents=True)
    for number in range(count):
        (folder / f"{number * 7919 % count:06d}.jpg").touch()
    return folder


DOTS = [b".", b".."]


def records_of(directory: int, room_bytes: int = 1 << 15) -> Iterator[tuple[bytes, int, int, int]]:
    """Name, d_ino, d_type and the offset behind it as getdents64(2) gives them: os.scandir hides the type behind a
    stat, and knows no . and .. ."""
    libc = ctypes.CDLL(None, use_errno=True)
    room = ctypes.create_string_buffer(room_bytes)
    while (size := libc.getdents64(directory, room, len(room))) > 0:
        at = 0
        while at < size:
            inode, offset, length, kind = struct.unpack_from("=QqHB", room.raw, at)
            yield room.raw[at + 19 : at + length].split(b"\0")[0], inode, kind, offset
            at += length
    assert size == 0, os.strerror(ctypes.get_errno())


def records(path: bytes) -> list[tuple[bytes, int, int]]:
    """All of these, sorted, . and .. with them; offsets are a file system's own."""
    with opened(path) as directory:
        return sorted(record[:3] for record in records_of(directory))


@pytest.mark.parametrize("options", MODES.values(), ids=MODES)
def test_dots_come_first_wherever_a_reader_begins(source: Path, hfs_mount: HfsMount, options: tuple[str, ...]) -> None:
    """Programs leave out two entries (MATLAB's `files(3:end)`). With the source's inode numbers, in a directory of the
    mount, in its root and in an empty one; before anything is known of it, and after all was looked up."""
    hfs = hfs_mount(source, *options)
    for folder in ("", "empty", "few", "many"):
        place = hfs.path / folder
        for room_bytes in (32, 80, 1 << 15):  # one record a call; two
            with opened(os.fsencode(place)) as directory, opened(os.fsencode(source / folder)) as original:
                shown = list(records_of(directory, room_bytes))
                expected = {record[0]: record[:3] for record in records_of(original)}
                assert [record[0] for record in shown[:2]] == DOTS
                assert {record[0]: record[:3] for record in shown} == expected
                assert len(shown) == len(expected)
                assert shown[0][1] == os.stat(place).st_ino
                for index in (0, 1, 2):  # from the offset behind one on, and from the beginning
                    os.lseek(directory, shown[index - 1][3] if index else 0, os.SEEK_SET)
                    assert list(records_of(directory, room_bytes)) == shown[index:]
                    if index == len(shown) - 1:
                        break
            for name in os.listdir(place):
                os.lstat(place / name)
    assert os.listdir(hfs.path / "empty") == []


def test_dots_are_no_look_ups_of_their_directories(source: Path, hfs_mount: HfsMount) -> None:
    """The kernel never gives a count back for them: a directory would be held for ever."""
    hfs = hfs_mount(source)
    assert records(os.fsencode(hfs.path / "few"))
    before = nodes(hfs)
    for _ in range(50):
        assert records(os.fsencode(hfs.path / "few"))
        assert records(os.fsencode(hfs.path / "empty"))
    assert nodes(hfs) - before <= 4


def test_a_killed_daemon_between_dots_and_names(source: Path, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(source)
    with opened(os.fsencode(hfs.path / "few")) as directory:
        reader = records_of(directory, 32)
        shown = []
        for _ in range(3):
            shown.append(next(reader)[0])
            hfs.crash()
        shown += [record[0] for record in reader]
    assert (shown[:2], sorted(shown[2:])) == (DOTS, [b"0", b"1", b"2"])


def folders(root: bytes) -> Iterator[bytes]:
    return (name for name in walk(root) if os.path.isdir(os.path.join(root, name)))


def look_ups(slow: SlowFs) -> int:
    """How often the source was asked for the attributes of a name.

    Its getattr is asked for the directory only: once a second by each thread that stats names in it at that moment. The
    names have no getattr of their own, as what the kernel knows of an entry and of its attributes lasts equally long.
    """
    return int(slow.counters()["lookup"])


def nodes(hfs: Hfs) -> int:
    """What the kernel knows."""
    status = hfs.status()
    return int(status["open"]["nodes"]) + int(status["slots"]["held"])


def test_names_inodes_and_types_are_the_sources(tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount) -> None:
    """Every kind of file and name, in a listing that nothing was looked up before, and in one after everything was."""
    tree = make_odd_tree(tmp_path / "tree", SMALL_CHUNK_BYTES)
    make_special_files(tree)
    hfs = hfs_mount(slow_source(tree).path)
    left, right = os.fsencode(tree), os.fsencode(hfs.path)
    expected = {name: records(os.path.join(left, name)) for name in folders(left)}
    assert {kind for found in expected.values() for _, _, kind in found} >= {1, 4, 8, 10, 12}
    for _ in range(2):
        assert {name: records(os.path.join(right, name)) for name in expected} == expected
        assert different_stats(tree, hfs.path) == []


def test_a_cold_listing_asks_for_no_attributes(counted: Counted) -> None:
    """Neither the source for attributes nor the kernel to remember nodes, however many names there are."""
    hfs, slow, backing = counted
    count = 20_000
    many(backing / "cold", count)
    slow.order("reset")
    known, listings = nodes(hfs), hfs.status()["source"]["listings"]
    with os.scandir(hfs.path / "cold") as entries:
        assert sum(entry.is_file(follow_symlinks=False) for entry in entries) == count
    assert look_ups(slow) <= FEW
    assert nodes(hfs) - known <= FEW
    assert hfs.status()["source"]["listings"] - listings == 1


def test_walking_a_tree_looks_up_its_folders_only(counted: Counted) -> None:
    hfs, slow, backing = counted
    for number in range(30):
        many(backing / "classes" / f"class-{number}", 50)
    slow.order("reset")
    shown, there = hfs.path / "classes", backing / "classes"
    found = [(Path(top).relative_to(shown), sorted(files)) for top, _, files in os.walk(shown)]
    assert sorted(found) == sorted((Path(top).relative_to(there), sorted(files)) for top, _, files in os.walk(there))
    assert look_ups(slow) <= 2 * 30 + FEW


def test_what_is_known_goes_in_whole(tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount) -> None:
    """The daemon has seen half of the names, the kernel none: it gets these with attributes, the others as names."""
    backing = tmp_path / "backing"
    many(backing / "d", 40)
    slow = slow_source(backing)
    hfs = hfs_mount(slow.path)
    names = sorted(os.listdir(backing / "d"))
    for name in names[:20]:
        (backing / "d" / name).write_bytes(b"x")
    must_here("cache", "warm", *(hfs.path / "d" / name for name in names[:20]))
    before = nodes(hfs)
    assert records(os.fsencode(hfs.path / "d")) == records(os.fsencode(backing / "d"))
    assert nodes(hfs) - before in (20, 21)  # and the directory
    assert {name: (hfs.path / "d" / name).stat().st_size for name in names} == {
        name: int(name in names[:20]) for name in names
    }


def test_look_ups_in_the_order_of_a_listing_are_foreseen(
    tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount
) -> None:
    """List, then stat each: all but the first few were asked for ahead, none twice."""
    count = 3000
    slow = slow_source(many(tmp_path / "backing", count))
    hfs = hfs_mount(slow.path)
    slow.order("reset")
    for name in os.listdir(hfs.path):
        assert os.lstat(hfs.path / name).st_size == 0
    assert hfs.status()["ahead"]["stats_ahead"] >= count - 3
    assert count <= look_ups(slow) <= count + FEW


def test_who_stats_what_he_is_shown_is_shown_attributes(counted: Counted) -> None:
    """`ls -l` of a large directory: after the first reply the entries come in whole, before they are looked up."""
    hfs, slow, backing = counted
    count = 3000
    many(backing / "as shown", count)
    known = nodes(hfs)
    with os.scandir(hfs.path / "as shown") as entries:
        for number, entry in enumerate(entries):
            if number == 1000:
                break
            entry.stat(follow_symlinks=False)
            shown = number + 1
        assert nodes(hfs) - known > shown + 20  # in the kernel, and nobody has looked them up
    slow.order("reset")
    with os.scandir(hfs.path / "as shown") as entries:
        assert sum(entry.stat(follow_symlinks=False).st_size for entry in entries) == 0
    assert look_ups(slow) <= count + FEW


def test_a_random_order_of_look_ups_is_no_storm(tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount) -> None:
    """A shuffled loader that opens a part of a large directory: the source is asked for what is used."""
    count, used = 5000, 700
    slow = slow_source(many(tmp_path / "backing", count))
    hfs = hfs_mount(slow.path, "-o", "siblings=0")
    names = random.Random(3).sample(sorted(os.listdir(hfs.path)), used)
    slow.order("reset")
    for name in names:
        os.lstat(hfs.path / name)
    assert used <= look_ups(slow) <= used * 1.1


def test_positions_can_be_taken_up_again(counted: Counted) -> None:
    """telldir, seekdir and rewinddir; any offset that a program makes up is no harm."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.opendir.restype = libc.readdir64.restype = libc.telldir.restype = ctypes.c_long
    for function in (libc.readdir64, libc.telldir, libc.rewinddir, libc.closedir):
        function.argtypes = (ctypes.c_long,)
    libc.seekdir.argtypes = (ctypes.c_long, ctypes.c_long)
    many(counted.backing / "positions", 2500)
    stream = libc.opendir(os.fsencode(counted.hfs.path / "positions"))

    def next_name() -> bytes:
        record = libc.readdir64(stream)
        return ctypes.string_at(record + 19) if record else b""

    try:
        places, shown = [], []
        while True:
            places.append(libc.telldir(stream))
            name = next_name()
            if not name:
                break
            shown.append(name)
        assert shown[:2] == DOTS
        assert sorted(shown[2:]) == [os.fsencode(f"{number:06d}.jpg") for number in range(2500)]
        for index in [0, 1, 2, *random.Random(1).sample(range(2502), 60)]:
            libc.seekdir(stream, places[index])
            assert next_name() == shown[index]
        libc.rewinddir(stream)
        assert [next_name() for _ in shown] == shown
        for made_up in (2501, 2502, 2503, 99_999, 2**40, 2**62):
            libc.seekdir(stream, made_up)
            assert (next_name() == b"") is (made_up >= 2502)
    finally:
        libc.closedir(stream)


def test_a_directory_that_changes_while_it_is_read(tmp_path: Path, hfs_mount: HfsMount) -> None:
    """Who is in the middle sees one state, each name once; who opens it afterwards sees the new one."""
    backing = many(tmp_path / "tree", 3000)
    hfs = hfs_mount(backing, "--ttl", "0")
    with os.scandir(hfs.path) as entries:
        begun = [next(entries).name for _ in range(5)]
        for number in range(0, 3000, 3):
            (backing / f"{number:06d}.jpg").unlink()
        for number in range(500):
            (backing / f"new-{number}").touch()
        names = begun + [entry.name for entry in entries]
    assert len(names) == len(set(names))
    assert set(names) >= {f"{number:06d}.jpg" for number in range(3000) if number % 3}
    assert records(os.fsencode(hfs.path)) == records(os.fsencode(backing))


def test_the_first_names_are_shown_before_the_last_are_known(counted: Counted) -> None:
    hfs, slow, backing = counted
    count = 30_000
    many(backing / "slow", count)
    slow.order("fault readdir hang 3 path /slow")
    with os.scandir(hfs.path / "slow") as entries:
        names = [next(entries).name for _ in range(100)]
        while not slow.counters()["parked"]:
            pass
        slow.order("release")
        names += [entry.name for entry in entries]
    assert sorted(names) == [f"{number:06d}.jpg" for number in range(count)]


def test_a_source_that_fails_in_the_middle_of_a_listing(counted: Counted) -> None:
    """An error, not a directory that ends early; and nothing of it is kept. A moment's failure is not seen at all."""
    hfs, slow, backing = counted
    count = 30_000
    many(backing / "failing", count)
    hfs.expect_warning("answered with an I/O error")
    slow.order("fault readdir eio 3 forever path /failing")
    with pytest.raises(OSError, match="Input/output error"):
        os.listdir(hfs.path / "failing")
    slow.order("clear", "fault readdir eio 2 path /failing")
    assert len(set(os.listdir(hfs.path / "failing"))) == count
