"""The parts of `scripts/bench native`: readers of a job, what they say of files that change, and what is added up."""

from collections.abc import Iterator
from typing import Any

import pytest

from scripts.benchmarks import common
from scripts.benchmarks.common import Work
from scripts.benchmarks.native_files import FIRST_LARGE, Changing
from scripts.benchmarks.options import Options
from scripts.benchmarks.readers.pattern import LEAST_BYTES, version_block, version_of

QUICK = Options(quick=True, runs=1)


@pytest.mark.parametrize("version", [0, 1, 3])
def test_a_version_is_known_by_its_bytes(version: int) -> None:
    data = version_block(7, version).tobytes()
    assert len(data) >= LEAST_BYTES
    assert version_of(7, data, 3) == version
    assert version_of(8, data, 3) is None
    assert version_of(7, data[:-1], 3) is None
    assert version_of(7, data[:-1] + bytes([data[-1] ^ 1]), 3) is None
    assert version_of(7, data, version - 1) is None


class Readers:
    """One reader of files that change, as a job has eight."""

    def __init__(self, files: Changing, program: common.Reader) -> None:
        self.files, self._program = files, program

    def all(self) -> dict[str, Any]:
        return self._program.do(do="all")


@pytest.fixture
def readers(work: Work, monkeypatch: pytest.MonkeyPatch) -> Iterator[Readers]:
    monkeypatch.setattr("scripts.benchmarks.native_files.FILES_QUICK", 20)
    monkeypatch.setattr("scripts.benchmarks.native_files.LARGE_BYTES", 1 << 20)
    files = Changing(work, QUICK, kept=0.1)
    with common.reader("changing.py", files.source, *files.told, 0) as program:
        yield Readers(files, program)


def test_a_reader_takes_what_has_just_changed_for_right_and_what_was_refreshed_for_old(readers: Readers) -> None:
    files = readers.files
    assert files.readable == 18
    found = readers.all()
    assert (found["opens"], found.get("wrong", 0), found.get("old", 0), found.get("failed", 0)) == (22, 0, 0, 0)
    before = files.path(3).read_bytes()
    files.change(3)
    assert readers.all().get("wrong", 0) == 0
    files.path(3).write_bytes(before)
    assert readers.all().get("old", 0) == 0, "nobody was told yet"
    files.changed(3)
    found = readers.all()
    assert (found["old"], found.get("wrong", 0)) == (1, 0)
    files.may_read(20)
    assert readers.all()["opens"] == 4 * 22 + 24


@pytest.mark.parametrize("name", ["small/5", f"large/{FIRST_LARGE + 1}"])
def test_a_reader_finds_wrong_bytes_and_what_is_not_there(readers: Readers, name: str) -> None:
    path = readers.files.source / name
    size = path.stat().st_size
    path.write_bytes(bytes(size))
    assert readers.all()["wrong"] == 1
    path.unlink()
    found = readers.all()
    assert found["failed"] == 1
    assert "No such file" in found["said"][-1]
