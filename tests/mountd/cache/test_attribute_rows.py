"""What the index keeps of attributes, for later mounts of a source that never changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hfs.mountd.cache.index import ChunkRow, Committed, Folder, Index
from hfs.mountd.core.attributes import Attributes
from hfs.mountd.core.cache_directory import open_cache_directory
from hfs.mountd.core.version import Version

CHUNK = 1 << 16
DIRECTORY = Attributes(0o40755, 7, 2, 0, 0, 0, 0, 0, 0, 1, 2, 3)


def committed(number: int, size: int, *, complete: bool = True) -> Committed:
    version = Version("aa", number, size, 1, 1)
    return Committed(number, True, version, b"p/%d" % number, CHUNK, complete, 5, 8192, 7, [ChunkRow(0, 1, 0)])


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    directory = open_cache_directory(str(tmp_path), make=False)
    opened = Index(directory)
    yield opened
    opened.close()
    directory.close()


def folder(index: Index, **changed: int) -> Folder:
    return Folder.of(index.attributes.identity_nowait(), "aa", DIRECTORY._replace(**changed))  # type: ignore[arg-type]  # fields


def objects(index: Index, number: int) -> list[int]:
    return [row.object_id for row in index.attributes.after(number, b"", 9)]


def test_rows_are_of_complete_files_in_their_order(index: Index) -> None:
    index.writer.commit_chunks([committed(number, 5) for number in range(1, 5)])
    index.writer.commit_chunks([committed(5, 2 * CHUNK, complete=False)])
    here = folder(index)
    rows = [here.row(number, b"%d" % (9 - number), b"seen of %d" % number) for number in range(1, 7)]
    index.attributes.keep(rows)
    assert index.attributes.after(here.number, b"", 9) == [rows[3], rows[2], rows[1], rows[0]]
    assert index.attributes.after(here.number, b"6", 1) == [rows[1]]
    assert index.attributes.named_nowait(here.number, b"7") == rows[1]
    assert index.attributes.named_nowait(here.number, b"4") is None, "not complete"
    again = here.row(2, b"7", b"seen again")
    index.attributes.keep([again])
    assert index.attributes.named_nowait(here.number, b"7") == again


@pytest.mark.parametrize("changed", [{"inode": 8}, {"mtime_ns": 9}, {"ctime_ns": 9}])
def test_a_directory_that_is_not_as_it_was_has_none(index: Index, changed: dict[str, int]) -> None:
    index.writer.commit_chunks([committed(1, 5)])
    here, there = folder(index), folder(index, **changed)
    row = here.row(1, b"a", b"seen")
    index.attributes.keep([row])
    assert (objects(index, here.number), objects(index, there.number)) == ([1], [])
    assert here.proves(row)
    assert not there.proves(row._replace(folder=there.number, directory=there.directory))
    for wrong in (
        row._replace(object_id=2),
        row._replace(name=b"b"),
        row._replace(seen=b"seem"),
        row._replace(folder=1),
    ):
        assert not here.proves(wrong)


def test_other_sources_and_file_systems_have_none(index: Index) -> None:
    identity = index.attributes.identity_nowait()
    folders = [Folder.of(identity, "aa", DIRECTORY), Folder.of(identity, "bb", DIRECTORY)]
    folders += [Folder.of(identity, "a", DIRECTORY._replace(file_system="a")), Folder.of(identity + 1, "aa", DIRECTORY)]
    assert len({one.number for one in folders}) == 4


def test_they_outlive_their_files_until_they_are_dropped(index: Index) -> None:
    index.writer.commit_chunks([committed(number, 5) for number in range(1, 5)])
    here = folder(index)
    index.attributes.keep([here.row(number, b"%d" % number, b"seen") for number in range(1, 5)])
    index.writer.doom([2])
    index.writer.forget(3, [(0, 5)])
    assert objects(index, here.number) == [1, 4]
    assert index.attributes.lost(range(1, 3)) == index.attributes.lost(range(2, 5)) == [2]
    index.attributes.drop_lost([1, 2, 3])
    assert index.attributes.lost(range(1, 5)) == []
    index.attributes.drop(range(4, 5))
    assert (objects(index, here.number), index.attributes.last_object()) == ([1], 3)
    index.attributes.drop(range(1, 4))
    assert index.attributes.last_object() == 0


def test_what_is_forgotten_is_not_found(index: Index, tmp_path: Path) -> None:
    index.writer.commit_chunks([committed(1, 5)])
    before = folder(index)
    index.attributes.keep([before.row(1, b"a", b"seen")])
    index.attributes.forget()
    assert index.attributes.identity_nowait() < 1 << 21
    assert objects(index, folder(index).number) == []
    before = index.attributes.identity_nowait()
    index.attributes.drop(range(1, 9))
    index.attributes.forget()
    assert index.attributes.identity_nowait() == before, "there was nothing"
