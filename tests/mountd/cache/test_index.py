"""The index: totals that are never counted, numbers that are never used twice, files that are broken or foreign."""

import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hfs.mountd.cache.index import ChunkRow, Committed, Index, IndexFailed, Stamp
from hfs.mountd.cache.index.rows import FORMAT
from hfs.mountd.core.attributes import Version
from hfs.mountd.core.cache_directory import CacheDirectory, lock_cache, open_cache_directory
from hfs.mountd.core.errors import CacheFormatError, CacheInUse, ConfigError
from hfs.policies.cache.admission import blocks_bytes
from tests.conftest import Logs

CHUNK = 1 << 16
ROWS = 1_000_000


def committed(
    number: int,
    size: int,
    chunks: list[int],
    *,
    new: bool = True,
    version: Version | None = None,
    stored_bytes: int = 0,
) -> Committed:
    version = version or Version("aa", number, size, 1, 1)
    size_bytes = sum(min(CHUNK, size - index * CHUNK) for index in chunks)
    stored = [blocks_bytes(stored_bytes or min(CHUNK, size - index * CHUNK)) for index in chunks]
    room_bytes = sum(stored) + (4096 if new else 0)
    complete = len(chunks) * CHUNK >= size
    listed = [ChunkRow(index, (1 << 64) - 1 - index, stored_bytes) for index in chunks]
    return Committed(number, new, version, b"p/%d" % number, CHUNK, complete, size_bytes, room_bytes, 7, listed)


_opened: list[CacheDirectory] = []


def cache(path: str | os.PathLike[str]) -> CacheDirectory:
    """The directory as the index wants it, until the test has ended."""
    _opened.append(open_cache_directory(os.fspath(path), make=False))
    return _opened[-1]


@pytest.fixture(autouse=True)
def _directories_closed() -> Iterator[None]:
    yield
    while _opened:
        _opened.pop().close()


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    opened = Index(cache(tmp_path))
    yield opened
    opened.close()


def assert_totals(index: Index) -> None:
    """What is kept in one row is what a count of all rows would give."""
    rows = index.reader.page(0, 1000)
    counts = index.reader.state().counts
    assert counts == index.counts
    doomed = index.database.reader.execute("SELECT COALESCE(SUM(blocks), 0) FROM doomed").fetchone()[0] * 4096
    assert counts.files == len(rows)
    assert counts.bytes == sum(row.staged_bytes for row in rows)
    assert counts.blocks * 4096 == sum(row.room_bytes for row in rows) + doomed
    encoded = [
        (min(CHUNK, row.version.size - chunk.number * CHUNK), chunk.stored_bytes)
        for row in rows
        for chunk in (
            [ChunkRow(0, 0, row.stored_bytes)] if row.version.size <= CHUNK else index.reader.chunks(row.object_id)
        )
        if chunk.stored_bytes
    ]
    assert counts.shrunk_bytes == sum(size for size, _ in encoded)
    assert counts.shrunk_stored_bytes == sum(stored for _, stored in encoded)


def test_a_row_comes_back_as_it_went_in(index: Index) -> None:
    huge = Version("bb", (1 << 64) - 3, 5, -1, 1 << 62)
    index.writer.commit_chunks([committed(1, 3 * CHUNK + 1, [0, 3]), committed(2, 5, [0], version=huge)])
    ((one, chunks),) = index.reader.find(Version("aa", 1, 3 * CHUNK + 1, 1, 1))
    assert index.reader.find_quickly(one.version, 4) == [(one, chunks)]
    assert index.reader.find_quickly(one.version, 3) is None
    ((two, _),) = index.reader.find(huge)
    assert (one.object_id, one.complete, one.staged_bytes, one.path) == (1, False, CHUNK + 1, b"p/1")
    assert chunks == index.reader.chunks(1) == [ChunkRow(0, (1 << 64) - 1), ChunkRow(3, (1 << 64) - 4)]
    assert (two.version, two.complete, two.checksum, two.staged_bytes) == (huge, True, (1 << 64) - 1, 5)
    assert index.reader.find(Version("cc", 1, 0, 0, 0)) == []
    assert_totals(index)


def test_totals_follow_every_change(index: Index) -> None:
    index.writer.commit_chunks(
        [committed(1, 3 * CHUNK + 1, [0, 3]), committed(2, 5, [0]), committed(3, 2 * CHUNK, [0, 1])]
    )
    index.writer.commit_chunks([committed(1, 3 * CHUNK + 1, [1], new=False)])
    assert_totals(index)
    index.writer.forget(1, [(3, 1), (2, CHUNK)])  # the second is not there
    index.writer.forget(2, [(0, 5)])
    index.writer.forget(99, [(0, 5)])
    assert_totals(index)
    assert [row.complete for row in index.reader.page(0, 9)] == [False, False, True]
    assert [row.object_id for row in index.reader.incomplete(0, 9)] == [1, 2]
    index.writer.doom([1, 3, 99])
    assert_totals(index)
    assert index.reader.doomed(0, 9) == [1, 3]
    assert index.reader.known(range(10)) == {1, 2, 3}
    assert index.writer.removed([1, 99]) == 4096 + 2 * CHUNK
    assert index.writer.removed([1]) == 0
    assert_totals(index)


def test_an_index_of_an_older_format_is_made_anew(tmp_path: Path, logs: Logs) -> None:
    logs.expect("of an older hfs: format 6, this release has")
    index = Index(cache(tmp_path))
    index.writer.commit_chunks([committed(1, 5, [0])])
    index.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "index.sqlite")) as database:
        database.execute("PRAGMA user_version = 6")
    lost: list[None] = []
    index = Index(cache(tmp_path), on_new=lambda: lost.append(None))
    assert (len(lost), index.counts.files) == (1, 0)
    index.close()
    assert (tmp_path / "index.sqlite.broken-1").exists()
    Index(cache(tmp_path), on_new=lambda: lost.append(None)).close()
    assert len(lost) == 1


def test_a_stamp_is_of_one_version_and_goes_with_other_bytes(index: Index) -> None:
    index.writer.commit_chunks([committed(1, 3 * CHUNK + 1, [2]), committed(2, 5, [0])])
    whole, other = Version("aa", 2, 5, 1, 1), Version("aa", 1, 5, 1, 1)
    index.writer.stamp([(2, whole, Stamp((1 << 64) - 1, 7)), (1, other, Stamp(3, 4))])
    assert [(row.stamp, row.proven) for row in index.reader.page(0, 9)] == [(None, True), (((1 << 64) - 1, 7), True)]
    index.writer.forget(2, [(0, 5)])
    assert [(row.stamp, row.proven) for row in index.reader.page(0, 9)] == [(None, True)] * 2
    assert_totals(index)


def test_numbers_are_never_leased_twice(tmp_path: Path) -> None:
    seen: set[int] = set()
    for _ in range(3):
        index = Index(cache(tmp_path))
        for _ in range(2):
            lease = index.writer.lease(5)
            assert not seen & set(lease)
            seen |= set(lease)
        assert index.reader.state().next_id == max(seen) + 1
        assert index.reader.state().settled_id == 5
        index.close()


def test_a_rolled_back_group_leaves_nothing(index: Index) -> None:
    index.writer.commit_chunks([committed(1, 5, [0])])
    with pytest.raises(IndexFailed):
        index.writer.commit_chunks(
            [committed(2, 5, [0], version=Version("new source", 2, 5, 1, 1)), committed(1, 5, [0])]
        )
    assert_totals(index)
    assert index.counts.files == 1
    # The source that came with it is known, or not, but never confused with another.
    index.writer.commit_chunks([committed(3, 5, [0], version=Version("third", 3, 5, 1, 1))])
    assert [row.version.source_id for row in index.reader.page(0, 9)] == ["aa", "third"]


def test_a_second_owner_is_told_the_pid_of_the_first(tmp_path: Path) -> None:
    program = f"""
import sys
from hfs.mountd.core.cache_directory import open_cache_directory
from hfs.mountd.core.cache_directory import lock_cache
lock_cache(open_cache_directory({str(tmp_path)!r}, make=False))
print("locked", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=os.getcwd()) as owner:
        assert owner.stdout
        assert owner.stdin
        assert owner.stdout.readline() == b"locked\n"
        with pytest.raises(CacheInUse, match=f"process {owner.pid}:"):
            lock_cache(cache(tmp_path))
        owner.stdin.close()
    os.close(lock_cache(cache(tmp_path)))


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        (f"PRAGMA user_version = {FORMAT + 1}", "newer hfs.*use that release"),
        ("PRAGMA application_id = 5", "another program"),
    ],
)
def test_an_unknown_format_is_refused_with_the_remedy(tmp_path: Path, statement: str, says: str) -> None:
    Index(cache(tmp_path)).close()
    database = sqlite3.connect(tmp_path / "index.sqlite")
    database.execute(statement)
    database.close()
    with pytest.raises(CacheFormatError, match=says):
        Index(cache(tmp_path))


@pytest.mark.parametrize("how", ["text", "cut", "no state"])
def test_a_broken_index_is_set_aside(tmp_path: Path, logs: Logs, how: str) -> None:
    logs.expect("set aside as index.sqlite.broken-1, the cache starts empty")
    index = Index(cache(tmp_path))
    index.writer.commit_chunks([committed(1, 5, [0])])
    index.close()
    path = tmp_path / "index.sqlite"
    if how == "text":
        path.write_bytes(b"not a database " * 1000)
    elif how == "cut":
        os.truncate(path, 5000)
    else:
        database = sqlite3.connect(path)
        database.execute("DELETE FROM state")
        database.commit()
        database.close()
    news = []
    index = Index(cache(tmp_path), on_new=lambda: news.append("objects are garbage"))
    assert index.opened.counts.files == 0
    assert index.reader.page(0, 9) == []
    assert news == ["objects are garbage"]
    index.close()
    assert (tmp_path / "index.sqlite.broken-1").exists()
    Index(cache(tmp_path)).close()  # and it stays good


def test_a_full_disk_is_no_reason_to_set_the_index_aside(tmp_path: Path) -> None:
    class Full(sqlite3.Connection):
        def execute(self, *args: Any) -> sqlite3.Cursor:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error

    Index(cache(tmp_path)).close()
    with pytest.raises(IndexFailed):
        Index(cache(tmp_path), connect=lambda *args, **keywords: sqlite3.connect(*args, **keywords, factory=Full))
    assert not (tmp_path / "index.sqlite.broken-1").exists()


def test_damage_met_later_is_remembered(tmp_path: Path, logs: Logs) -> None:
    logs.expect("set aside as index.sqlite.broken-1, the cache starts empty")
    index = Index(cache(tmp_path))
    index.writer.commit_chunks([committed(number, 5, [0]) for number in range(1, 3000)])
    index.close()
    with (tmp_path / "index.sqlite").open("r+b") as file:
        file.seek(4096 * 20)
        file.write(b"\xff" * (os.path.getsize(tmp_path / "index.sqlite") - 4096 * 20))
    index = Index(cache(tmp_path))
    with pytest.raises(IndexFailed) as caught:
        index.reader.page(0, 3000)
    assert caught.value.damaged
    index.close()
    index = Index(cache(tmp_path))
    assert index.opened.counts.files == 0
    index.close()


class Malformed(sqlite3.Connection):
    """As SQLite over a disk that answers EIO to a read: "database disk image is malformed"."""

    left = 0

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if Malformed.left and sql.startswith(("SELECT", "INSERT")):
            Malformed.left -= 1
            error = sqlite3.DatabaseError("database disk image is malformed")
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error
        return super().execute(sql, *values)


def malformed_for(times: int) -> Callable[..., sqlite3.Connection]:
    Malformed.left = times
    return lambda *args, **keywords: sqlite3.connect(*args, **keywords, factory=Malformed)


def test_an_index_that_seems_damaged_for_a_moment_is_used_on(tmp_path: Path) -> None:
    index = Index(cache(tmp_path), connect=malformed_for(0))
    index.writer.commit_chunks([committed(1, 5, [0])])
    Malformed.left = 1
    with pytest.raises(IndexFailed) as caught:
        index.reader.page(0, 9)
    assert not caught.value.damaged
    assert len(index.reader.page(0, 9)) == 1
    index.close()
    index = Index(cache(tmp_path), connect=malformed_for(1))
    assert index.opened.counts.files == 1
    index.close()


def test_an_index_that_was_met_damaged_and_is_sound_is_used_on(tmp_path: Path) -> None:
    index = Index(cache(tmp_path))
    index.writer.commit_chunks([committed(1, 5, [0])])
    index.close()
    (tmp_path / "index.damaged").touch()
    for _ in range(2):
        index = Index(cache(tmp_path))
        assert index.opened.counts.files == 1
        index.close()
        assert not (tmp_path / "index.damaged").exists()


@pytest.mark.slow
def test_an_index_that_sqlite_opened_elsewhere_is_not_believed(tmp_path: Path) -> None:
    """SQLite takes a path, and somebody replaced a directory above while it was opened."""
    for name in ("ours", "other"):
        (tmp_path / name).mkdir(mode=0o700)
        Index(cache(tmp_path / name)).close()

    def elsewhere(_path: str, **keywords: Any) -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "other" / "index.sqlite", **keywords)

    with pytest.raises(ConfigError, match=r"index\.sqlite was opened elsewhere"):
        Index(cache(tmp_path / "ours"), connect=elsewhere)
    Index(cache(tmp_path / "ours")).close()


@pytest.mark.slow
def test_a_million_rows_are_opened_without_a_scan(tmp_path: Path) -> None:
    """Counted in steps of SQLite's virtual machine, not in seconds: a scan would take millions."""
    index = Index(cache(tmp_path))
    index.writer.commit_chunks([committed(1, 5, [0])])
    index.database.writer.execute("PRAGMA synchronous = OFF")
    index.database.writer.execute("BEGIN")
    index.database.writer.execute(
        f"""WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})
        INSERT INTO files SELECT i, 1, i, 5, 1, 1, {CHUNK}, 1, 2, i / 100, i, CAST('train/' || i AS BLOB), 0, i,
            1700000000000000000 + i, 7000000000000000000 + i, 0 FROM n"""
    )
    index.database.writer.execute(f"UPDATE state SET files = {ROWS}, bytes = {ROWS * 5}, blocks = {ROWS * 2}")
    index.database.writer.execute("COMMIT")
    index.close()
    assert os.path.getsize(tmp_path / "index.sqlite") < 140 * ROWS

    steps = 0

    class Watched(sqlite3.Connection):
        def __init__(self, *args: Any, **keywords: Any) -> None:
            super().__init__(*args, **keywords)
            self.set_progress_handler(self.count, 1)

        def count(self) -> int:
            nonlocal steps
            steps += 1
            return 0

    def watched(*args: Any, **keywords: Any) -> sqlite3.Connection:
        return sqlite3.connect(*args, **keywords, factory=Watched)

    index = Index(cache(tmp_path), connect=watched)
    assert index.opened.counts.files == index.counts.files == ROWS
    assert index.reader.find(Version("aa", 77, 5, 1, 1))[0][0].object_id == 77
    assert len(index.reader.oldest((-1, -1), 10)) == 10
    assert index.reader.incomplete(0, 10) == []
    assert index.reader.doomed(0, 10) == []
    index.writer.lease(1)
    index.close()
    assert steps < 2000


def test_a_stranger_who_looks_into_the_index_takes_no_log_away(tmp_path: Path) -> None:
    """SQLite removes the log when the last connection closes; that ours are still open it knows by their locks."""
    looks = """if True:
        import sqlite3, sys
        database = sqlite3.connect(sys.argv[1])
        print(*database.execute("SELECT next_id FROM state"))
        database.close()"""
    index = Index(cache(tmp_path))
    for _ in range(2):
        leased = index.writer.lease(1)
        command = [sys.executable, "-c", looks, str(tmp_path / "index.sqlite")]
        seen = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
        assert seen == f"({leased.stop},)\n"
        assert (tmp_path / "index.sqlite-wal").exists()
    index.close()
    again = Index(cache(tmp_path))
    assert again.opened.next_id == leased.stop
    again.close()


@pytest.mark.slow
@pytest.mark.parametrize("step", [91, pytest.param(23, marks=pytest.mark.long)])
def test_no_bit_that_is_turned_gives_a_file_the_bytes_of_another(tmp_path: Path, step: int) -> None:
    """Files of one size and one time, whose inode numbers differ in one bit: nothing else tells them apart."""
    count = 64
    (tmp_path / "whole").mkdir(mode=0o700)
    (tmp_path / "turned").mkdir(mode=0o700)
    versions = [Version("aa", number, 5, 1, 1) for number in range(1, count + 1)]
    index = Index(cache(tmp_path / "whole"))
    index.writer.commit_chunks([committed(version.inode, 5, [0], version=version) for version in versions])
    index.writer.forget(7, [(0, 5)])
    where = "WHERE name IN ('files', 'files_by_inode')"
    pages = [page for (page,) in index.database.reader.execute(f"SELECT rootpage FROM sqlite_master {where}")]
    index.close()
    whole = (tmp_path / "whole" / "index.sqlite").read_bytes()
    found = wrong = 0
    for at in (4096 * (page - 1) + offset for page in pages for offset in range(0, 4096, step)):
        for path in (tmp_path / "turned").glob("*"):
            path.unlink()
        turned = bytearray(whole)
        turned[at] ^= 1 << at % 8
        (tmp_path / "turned" / "index.sqlite").write_bytes(turned)
        try:
            index = Index(cache(tmp_path / "turned"))
        except IndexFailed:
            continue
        try:
            for version in versions:
                for row, _ in index.reader.find(version):
                    if row.proven and row.version == version:
                        found += 1
                        wrong += row.object_id != version.inode
                        wrong += (row.checksum is None) != (version.inode == 7)
        except IndexFailed:
            pass
        index.close()
    assert found > count
    assert not wrong
