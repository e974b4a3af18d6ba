"""The parts of `scripts/bench native`: readers of a job, what they say of files that change, and what is added up."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hfs.mountd.native.cachestat import resident_of
from scripts.benchmarks import common, native
from scripts.benchmarks.common import BenchError, Work
from scripts.benchmarks.native_files import FIRST_LARGE, HANGS_S, Changing, Seen
from scripts.benchmarks.native_job import ROOT, USERS, WITHOUT
from scripts.benchmarks.options import Options
from scripts.benchmarks.planes_warm import ONE
from scripts.benchmarks.readers.pattern import LEAST_BYTES, version_block, version_of

QUICK = Options(quick=True, runs=1)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Work]:
    monkeypatch.setattr("scripts.benchmarks.native_files.FILES_QUICK", 20)
    monkeypatch.setattr("scripts.benchmarks.native_files.LARGE_BYTES", 1 << 20)
    with common.work_folder(tmp_path / "bench") as work:
        yield work


def test_every_row_of_both_users_has_its_group() -> None:
    assert list(WITHOUT) == list(USERS)
    assert set(native.GROUPS) == {"large", "dropped", "small", "stopped", "kills", "renewals", "cold", "epochs"}


@pytest.mark.parametrize("version", [0, 1, 3])
def test_a_version_is_known_by_its_bytes(version: int) -> None:
    data = version_block(7, version).tobytes()
    assert len(data) >= LEAST_BYTES
    assert version_of(7, data, 3) == version
    assert version_of(8, data, 3) is None
    assert version_of(7, data[:-1], 3) is None
    assert version_of(7, data[:-1] + bytes([data[-1] ^ 1]), 3) is None
    assert version_of(7, data, version - 1) is None


def test_several_readers_answer_as_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(100_000))
    with common.reader("several.py", 3, "blocks.py") as several:
        requests = [{"sequential": str(tmp_path / "file"), "size": size} for size in (4096, 1 << 20)]
        answers = several.do(each=requests)["answers"]
        assert [answer["bytes"] for answer in answers] == [100_000, 100_000]
        done = several.do(command=[sys.executable, "-c", "import sys; print(1); sys.stderr.write('no'); sys.exit(3)"])
        assert (done["code"], done["out"], done["err"]) == (3, "1\n", "no")
        assert several.do(overlays=str(tmp_path))["overlays"] == []
        several.end(10)
    with common.reader("several.py", 1, "blocks.py") as several, pytest.raises(BenchError, match="exit code"):
        several.do(each=[{"files": 3}])


def test_what_lies_in_memory_is_counted_in_pages(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(110_000))
    with (tmp_path / "file").open("rb") as file:
        if resident_of(file.fileno()) is None:
            pytest.skip("this kernel does not tell what is in memory")
    with common.reader("several.py", 0, "blocks.py") as several:
        assert several.do(resident=[str(tmp_path / "file")])["bytes"] == 27 * 4096
        common.forget([tmp_path / "file"])
        assert several.do(resident=[str(tmp_path / "file")])["bytes"] == 0


class Readers:
    """One reader of files that change, as a job has eight."""

    def __init__(self, files: Changing, program: common.Reader) -> None:
        self.files, self._program = files, program

    def all(self) -> dict[str, Any]:
        return self._program.do(do="all")


@pytest.fixture
def readers(work: Work) -> Iterator[Readers]:
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


def test_a_reader_reads_on_by_itself(readers: Readers) -> None:
    readers._program.do(do="start")
    limit = time.monotonic() + 30
    while readers._program.do(do="look").get("opens", 0) < 20:
        assert time.monotonic() < limit


def test_who_reads_for_ever_has_failed_and_is_the_longest() -> None:
    seen = Seen()
    plain = {"said": [], "longest_s": 0.5, "longest_open_s": 0.2, "for_s": 0.0, "opens": 3}
    for answer in (plain, plain | {"for_s": HANGS_S + 1, "wrong": 2}):
        seen.add(answer)
    assert (seen.counts["opens"], seen.counts["wrong"], seen.counts["failed"]) == (6, 2, 1)
    assert (seen.longest_s, seen.longest_open_s) == (HANGS_S + 1, 0.2)


@pytest.mark.fuse
@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another user")
def test_small_files_are_measured_within_a_job(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scripts.benchmarks.native_small.USERS", (ROOT,))
    monkeypatch.setattr("scripts.benchmarks.native_small.ACCESSES", (ONE,))
    monkeypatch.setattr("scripts.benchmarks.fastpath_staged.FILES_QUICK", 20)
    rows = native.GROUPS["small"](work, QUICK, "")
    assert all(row.value is not None for row in rows) or "there is no overlay" in rows[0].row, rows
