"""The parts of `scripts/bench lmdbio`: records that prove themselves, readers, and one group on the smallest data."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from scripts.benchmarks import async_io_learners, common, lmdbio, lmdbio_data, lmdbio_mount
from scripts.benchmarks.lmdbio_data import NAME, PAGE, Database, make_database
from scripts.benchmarks.lmdbio_ladder import explicit
from scripts.benchmarks.lmdbio_mount import by_requests
from scripts.benchmarks.lmdbio_readers import Epoch
from scripts.benchmarks.options import Options
from scripts.benchmarks.readers.lmdb_records import PIXELS, RECORD_BYTES, check, key, record
from scripts.benchmarks.readers.lmdb_walk import walk

RECORDS = 300


@pytest.fixture
def database(tmp_path: Path) -> Database:
    make_database(tmp_path, RECORDS)
    return Database(tmp_path, RECORDS)


def read_together(database: Database, script: str, world: int, *flags: object, **request: Any) -> list[dict[str, Any]]:
    with contextlib.ExitStack() as stack:
        readers = [
            stack.enter_context(common.reader(script, database.folder / NAME, rank, world, *flags))
            for rank in range(world)
        ]
        return common.together(readers, {"seed": 1, "count": None, **request})[1]


# --- Records


def test_a_record_is_a_datum_that_proves_itself() -> None:
    written = record(12_345)
    check(12_345, written)
    check(12_345, memoryview(written))
    assert len(written) == RECORD_BYTES
    fields = dict(datum_fields(written))
    assert fields.pop(15)[:8] == (12_345).to_bytes(8, "little")
    assert len(fields.pop(4)) == PIXELS
    assert fields == {1: 3, 2: 32, 3: 32, 5: 12_345 % 10}


def datum_fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of a protocol buffer of variable-length numbers and bytes."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            value |= (message[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if message[at - 1] < 128:
                return value

    while at < len(message):
        tag, value = number(), number()
        if tag & 7 == 2:
            yield tag >> 3, message[at : at + value]
            at += value
        else:
            assert tag & 7 == 0
            yield tag >> 3, value


@pytest.mark.parametrize("where", [0, 2, 10, 14, 30, 1500, RECORD_BYTES - 1])
def test_no_byte_of_a_record_can_be_another(where: int) -> None:
    wrong = bytearray(record(7))
    wrong[where] ^= 1
    with pytest.raises(ValueError, match="record 7"):
        check(7, wrong)


@pytest.mark.parametrize("other", [record(8), record(7)[:-1], record(7) + b"\0", b""])
def test_nor_another_record_or_length(other: bytes) -> None:
    with pytest.raises(ValueError, match="record 7"):
        check(7, other)


def test_the_database_has_the_records_each_on_a_page_of_its_own(database: Database) -> None:
    with lmdb.open(str(database.folder / NAME), readonly=True, lock=False) as opened, opened.begin() as found:
        assert opened.stat()["entries"] == opened.stat()["overflow_pages"] == RECORDS
        for number in range(RECORDS):
            check(number, found.get(key(number)))
    assert RECORDS * PAGE < database.bytes < 1.1 * RECORDS * PAGE
    assert [path.name for path in (database.folder / NAME).iterdir()] == ["data.mdb"]


def test_layout_and_walk_say_where_each_record_lies(database: Database) -> None:
    layout = database.layout()
    assert walk(str(database.folder / NAME)).tolist() == layout.offsets.tolist()
    content = (database.folder / database.file).read_bytes()
    for number, (start, size) in enumerate(zip(layout.offsets.tolist(), layout.sizes.tolist(), strict=True)):
        check(number, content[start : start + size])


# --- Readers


def damage_record(database: Database, number: int) -> None:
    content = bytearray((database.folder / database.file).read_bytes())
    content[int(database.layout().offsets[number]) + 100] ^= 1
    (database.folder / database.file).write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--readahead"]], ids=["fixed", "readahead"])
def test_plain_readers_take_all_records_between_them(database: Database, flags: list[str]) -> None:
    answers = read_together(database, "lmdb_plain.py", 2, *flags)
    assert [answer["records"] for answer in answers] == [150, 150]
    assert all(answer["first_s"] > 0 and answer["switches"] >= 0 <= answer["major_faults"] for answer in answers)
    assert [answer["records"] for answer in read_together(database, "lmdb_plain.py", 2, *flags, count=9)] == [5, 4]


def test_a_wrong_record_ends_the_reader(database: Database) -> None:
    damage_record(database, 5)
    with pytest.raises(common.BenchError, match="exit code 1"):
        read_together(database, "lmdb_plain.py", 1)


@pytest.mark.parametrize("step", ["lmm", "dm", "dio", "prov", "coal", "stag"])
def test_the_processes_of_a_step_take_all_records_between_them(step: str, database: Database, tmp_path: Path) -> None:
    database.layout().save(str(tmp_path / "layout"))
    place = database.folder / NAME, RECORDS, 3, tmp_path / "layout"
    with common.reader("lmdb_node.py", *place, step) as node:
        for count in (0, 7, None):  # none; less than a batch of each; the last batch is a short one
            answer = node.do(seed=1, count=count)
            assert answer["records"] == (RECORDS if count is None else count)


def test_a_step_ends_with_any_of_its_processes(database: Database, tmp_path: Path) -> None:
    """Whatever the others wait for: here the first one for the position of the last."""
    database.layout().save(str(tmp_path / "layout"))
    place = database.folder / NAME, RECORDS, 3, tmp_path / "layout"
    first_batch = np.sort(np.random.default_rng(1).permutation(RECORDS)[: 3 * 64])
    damage_record(database, int(first_batch[-1]))  # which is the last one's
    with common.reader("lmdb_node.py", *place, "dm") as node, pytest.raises(common.BenchError, match="exit code 1"):
        node.do(seed=1, count=None)


# --- What is made of the answers


def test_an_epoch_by_requests_reads_each_page_once(database: Database) -> None:
    part = Epoch(
        epoch_s=2,
        first_s=1,
        source_s=1.5,
        cpu_s=0.5,
        records=30,
        reads=40,
        source_bytes=9,
        ordered=20,
        switches=50,
        major_faults=60,
    )
    pages = database.bytes / PAGE
    whole = by_requests(part, database)
    assert whole.epoch_s == pytest.approx(2 * pages / 40)
    assert (whole.reads, whole.records, whole.first_s) == (pages, RECORDS, 1)
    assert whole.ordered == pytest.approx(pages / 2, abs=1)


def test_a_step_with_a_walk_pays_for_it_once() -> None:
    counts = {"source_bytes": 8, "ordered": 6, "switches": 2, "major_faults": 1}
    walk = Epoch(epoch_s=5, first_s=0, source_s=4, cpu_s=3, records=0, reads=7, **counts)
    part = Epoch(epoch_s=2, first_s=1, source_s=1.5, cpu_s=1, records=30, reads=30, **counts)
    whole = explicit(walk, part, 300)
    assert (whole.epoch_s, whole.first_s, whole.source_s, whole.cpu_s) == (5 + 20, 5 + 1, 5 + 15, 3 + 10)
    assert (whole.records, whole.reads) == (300, 7 + 300)
    assert [getattr(whole, name) for name in counts] == [count + 10 * count for count in counts.values()]


# --- A group


@pytest.mark.fuse
@pytest.mark.long
def test_a_group_measures_all_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdbio_data, "RECORDS_QUICK", 4000)  # three chunks
    monkeypatch.setattr(lmdbio_mount, "PART_QUICK", 20)
    monkeypatch.setattr(async_io_learners, "SETTLED_S", 0.1)
    with common.work_folder(tmp_path / "bench") as work:
        rows = lmdbio.GROUPS["random-lustre"](work, Options(quick=True, runs=1), "the command")
    assert all(row.value is not None for row in rows)
