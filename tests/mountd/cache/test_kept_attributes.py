"""Attributes that the index keeps for later mounts of a source that never changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mountd.base.version import Version
from mountd.cache.index import AttributesRow, ChunkRow, Committed, Index
from mountd.core.cache_directory import open_cache_directory

CHUNK = 1 << 16


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


def test_attributes_go_with_their_file(index: Index) -> None:
    index.writer.commit_chunks([committed(number, 5) for number in range(1, 5)])
    index.writer.commit_chunks([committed(5, 2 * CHUNK, complete=False)])
    rows = [AttributesRow(number, b"p/%d" % number, b"seen of %d" % number) for number in range(1, 7)]
    index.writer.keep_attributes(rows)
    assert index.reader.attributes_in(b"p", "aa", 0, 9) == rows[:4], "complete files with a row"
    assert index.reader.attributes_in(b"p", "aa", 2, 1) == [rows[2]]
    assert index.reader.attributes_in(b"q", "aa", 0, 9) == index.reader.attributes_in(b"p", "bb", 0, 9) == []
    index.writer.keep_attributes(
        [AttributesRow(2, b"p/2", b"seen again"), AttributesRow(3, b"elsewhere/3", b"renamed")]
    )
    assert [row.seen for row in index.reader.attributes_in(b"p", "aa", 1, 2)] == [b"seen again", b"seen of 3"]
    index.writer.doom([1])
    assert [row.object_id for row in index.reader.attributes_in(b"p", "aa", 0, 9)] == [2, 3, 4]
    index.writer.touch([], [(b"p/33", 3)])
    with index.database.transaction(durable=False) as database:
        database.execute("UPDATE attributes SET seen = 'seen of 5' WHERE file = 4")
    assert [row.object_id for row in index.reader.attributes_in(b"p", "aa", 0, 9)] == [2], (
        "a row that nobody has written"
    )
