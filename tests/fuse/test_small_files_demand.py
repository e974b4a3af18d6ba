"""The look-up of a small file that is about to be opened brings its bytes: what the source sees of a real mount."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fuse.harness import Hfs, HfsMount
from tests.fuse.slowfs import SlowFs, SlowSource
from tests.support.pattern import pattern, write_pattern

FILES = 40
HABIT = 3
"""Look-ups of a thread before it is believed, and one of its directory."""


def _size(number: int) -> int:
    return 3000 + 777 * number


@pytest.fixture
def slow(tmp_path: Path, slow_source: SlowSource) -> SlowFs:
    folder = tmp_path / "backing" / "d"
    folder.mkdir(parents=True)
    for number in range(FILES):
        write_pattern(folder / str(number), number + 1, _size(number))
    return slow_source(tmp_path / "backing")


def _read(hfs: Hfs, number: int) -> None:
    assert (hfs.path / "d" / str(number)).read_bytes() == pattern(number + 1, 0, _size(number))


@pytest.mark.parametrize("options", [(), ("--immutable",), ("--ttl", "0"), ("--io-mode", "daemon")])
def test_a_reader_of_small_files_has_each_opened_once_and_none_asked_for(
    slow: SlowFs, hfs_mount: HfsMount, options: tuple[str, ...]
) -> None:
    hfs = hfs_mount(slow.path, "-o", "siblings=0", *options)
    before = hfs.status()["counters"]
    for number in range(FILES):
        _read(hfs, number)
    found = {name: row["value"] - before[name]["value"] for name, row in hfs.status()["counters"].items()}
    assert found["source_read_bytes"] == sum(map(_size, range(FILES)))
    assert found["source_reads"] == FILES
    if "0" not in options:  # else every look-up and every open asks what the file is now
        assert found["source_stats"] <= HABIT + 2


def test_who_only_looks_at_files_has_none_read(slow: SlowFs, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(slow.path, "-o", "siblings=0")
    for number in range(FILES):
        assert (hfs.path / "d" / str(number)).stat().st_size == _size(number)
    assert hfs.source_bytes() == 0


def test_a_reader_that_begins_to_look_has_two_files_read_too_many(slow: SlowFs, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(slow.path, "-o", "siblings=0")
    for number in range(10):
        _read(hfs, number)
    for number in range(10, FILES):
        assert (hfs.path / "d" / str(number)).stat().st_size == _size(number)
    assert hfs.source_reads() <= 12


def test_a_source_that_fails_and_files_that_go_are_told_as_ever(slow: SlowFs, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(slow.path, "-o", "siblings=0")
    hfs.expect_warning("I/O error")
    for number in range(10):
        _read(hfs, number)
    slow.order("fault read eio 1 forever path /d/10")
    with pytest.raises(OSError, match="Input/output error"):
        _read(hfs, 10)
    slow.order("clear")
    _read(hfs, 10)
    with pytest.raises(FileNotFoundError):
        (hfs.path / "d" / "none").read_bytes()
    (slow.backing / "d" / "11").unlink()
    with pytest.raises(FileNotFoundError):
        (hfs.path / "d" / "11").read_bytes()
    os.symlink("12", slow.backing / "d" / "link")
    os.mkfifo(slow.backing / "d" / "fifo")
    (slow.backing / "d" / "sub").mkdir()
    assert (hfs.path / "d" / "link").read_bytes() == pattern(13, 0, _size(12))
    assert (hfs.path / "d" / "fifo").is_fifo()
    assert (hfs.path / "d" / "sub").is_dir()
    for number in range(12, FILES):
        _read(hfs, number)
