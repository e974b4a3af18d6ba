"""The parts of `scripts/bench lmdbio`: records that prove themselves, readers, and one group on the smallest data."""

from pathlib import Path

import numpy as np
import pytest

from scripts.benchmarks import common
from scripts.benchmarks.lmdbio_data import NAME, Database, make_database
from scripts.benchmarks.readers.lmdb_records import RECORD_BYTES, check, record
from scripts.benchmarks.readers.lmdb_walk import walk

RECORDS = 300


@pytest.fixture
def database(tmp_path: Path) -> Database:
    make_database(tmp_path, RECORDS)
    return Database(tmp_path, RECORDS)


# --- Records


@pytest.mark.parametrize("where", [0, 2, 10, 14, 30, 1500, RECORD_BYTES - 1])
def test_no_byte_of_a_record_can_be_another(where: int) -> None:
    wrong = bytearray(record(7))
    wrong[where] ^= 1
    with pytest.raises(ValueError, match="record 7"):
        check(7, wrong)


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


def test_a_wrong_record_ends_the_reader(database: Database) -> None:
    damage_record(database, 5)
    place = database.folder / NAME, 0, 1
    with common.reader("lmdb_plain.py", *place) as reader, pytest.raises(common.BenchError, match="exit code 1"):
        reader.do(seed=1, count=None)


def test_a_step_ends_with_any_of_its_processes(database: Database, tmp_path: Path) -> None:
    """Whatever the others wait for: here the first one for the position of the last."""
    database.layout().save(str(tmp_path / "layout"))
    place = database.folder / NAME, RECORDS, 3, tmp_path / "layout"
    first_batch = np.sort(np.random.default_rng(1).permutation(RECORDS)[: 3 * 64])
    damage_record(database, int(first_batch[-1]))  # which is the last one's
    with common.reader("lmdb_node.py", *place, "dm") as node, pytest.raises(common.BenchError, match="exit code 1"):
        node.do(seed=1, count=None)
