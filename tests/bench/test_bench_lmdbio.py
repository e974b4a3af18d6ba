"""The parts of `scripts/bench lmdbio`: records that prove themselves, readers, and one group on the smallest data."""

import contextlib
from pathlib import Path
from typing import Any

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


def read_together(database: Database, script: str, world: int, *flags: object, **request: Any) -> list[dict[str, Any]]:
    with contextlib.ExitStack() as stack:
        readers = [
            stack.enter_context(common.reader(script, database.folder / NAME, rank, world, *flags))
            for rank in range(world)
        ]
        return common.together(readers, {"seed": 1, "count": None, **request})[1]


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
