"""The benchmarks' own parts: the form of what they write, their data sets and samples, their readers, the
parts that need no mount. Nothing is measured here, but for the longest turn of the event loop under what another user
may say: at a size at which one turn for all of it would be twice too long, in CPU time of the loop's thread, so that
what else the machine does is not counted. `scripts/bench trust --only turns` has every case at its allowed maximum."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hfs.codecs.converting import accuracy
from scripts.benchmarks import common, data, main, table
from scripts.benchmarks.fastpath_access import FILES, OF_LARGE, TOUCH, Access, Place, duel
from scripts.benchmarks.fastpath_dropped import OF_LARGE_COLD
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.house import Entered, entered_by_all, hand_offs
from scripts.benchmarks.options import Options
from scripts.benchmarks.trust_turns import BAR_S, measured
from tests.conftest import Logs

KEYS = ["row", "value", "unit", "bar", "holds", "command", "values"]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(common, "WORK", tmp_path / "bench")
    monkeypatch.setattr(main.signal, "signal", lambda *_: None)
    return tmp_path / "bench"


@pytest.fixture
def blocks() -> Iterator[common.Reader]:
    with common.reader("blocks.py") as started:
        yield started


# --- Rows


def test_a_bar_is_judged_by_the_median_as_measured() -> None:
    row = table.median_row("speed-up", [2.0, 0.9996, 0.5], "x", "c", table.at_least(1.0))
    assert (row.value, row.bar, row.holds) == (1.0, ">= 1", False)
    assert table.median_row("time", [1.25], "x", "c", table.at_most(1.25)).holds is True


def test_json_has_the_form_that_others_read() -> None:
    rows = [
        table.median_row("a", [2.0], "x", "scripts/bench mount", table.at_least(1)),
        table.median_row("b", [3.0], "s", "scripts/bench mount"),
        table.failed_row("c", "no reason", "scripts/bench mount"),
    ]
    written = json.loads(table.as_json(rows, {"cores": 2}))
    assert list(written) == ["cores", "rows"]
    assert [list(row) for row in written["rows"]] == [KEYS] * 3
    assert [(row["value"], row["bar"], row["holds"]) for row in written["rows"]] == [
        (2.0, ">= 1", True),
        (3.0, None, None),
        (None, None, False),
    ]


# --- The command line


@pytest.mark.parametrize("wrong", [["--only", "nonsense"], ["--runs", "0"], ["--json", "/nonexistent/x.json"]])
def test_wrong_arguments_are_refused_before_anything_is_done(wrong: list[str], work: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["mount", *wrong])
    assert ended.value.code == 2
    assert not work.exists()


def test_a_group_that_fails_is_a_row_and_the_others_go_on(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> list[table.Row]:
        raise common.BenchError("the mount is gone")

    def works(_: common.Work, options: Options, command: str) -> list[table.Row]:
        assert options == Options(quick=True, runs=1, plots=main.PLOTS)
        return [table.median_row("fine", [1.0], "x", command)]

    monkeypatch.setitem(main.BENCHMARKS, "mount", SimpleNamespace(RUNS=3, GROUPS={"fails": fails, "works": works}))
    file = tmp_path / "rows.json"
    assert main.main(["mount", "--quick", "--json", str(file)]) == 1
    first, second = json.loads(file.read_text())["rows"]
    assert (first["row"], first["value"], first["holds"]) == ("fails: not measured: the mount is gone", None, False)
    assert second["row"] == "fine"
    assert second["command"] == "scripts/bench mount --only works --quick"
    assert "not measured" in capsys.readouterr().out
    assert main.main(["mount", "--quick", "--only", "works"]) == 0
    assert sorted(path.name for path in work.iterdir()) == [".gitignore", ".lock"]


def test_what_fails_in_one_run_is_one_row_with_its_reason_and_keeps_its_bar() -> None:
    got = Results("c")
    for value in (1.0, 3.0):
        with got.attempt("fine", "both"):
            got.add("fine", value)
        with got.attempt("fails", "both"):
            got.add("fails", value)
            raise common.BenchError("no such mode")
    assert got.row("one", "fine", table.at_least(2)).holds is True
    assert got.last("fine") == 3.0
    for key, bar, holds in (("fails", table.at_least(2), False), ("both", None, None)):
        row = got.row("two", key, bar)
        assert (row.row, row.value) == ("two: not measured: no such mode", None)
        assert (row.bar, row.holds) == (str(bar) if bar else None, holds)
    with pytest.raises(common.BenchError, match="no such mode"):
        got.last("fails")


def test_one_benchmark_at_a_time_and_what_a_broken_one_left_is_removed(tmp_path: Path) -> None:
    with common.work_folder(tmp_path) as owned:
        owned.new("left").joinpath("file").write_text("x")
        with pytest.raises(common.BenchError, match="another benchmark"), common.work_folder(tmp_path):
            pass
        assert owned.run.exists()
    assert not owned.run.exists()
    (tmp_path / "run" / "cache-1").mkdir(parents=True)
    with common.work_folder(tmp_path) as again:
        assert not list(again.run.iterdir())


# --- Data sets


def test_a_data_set_is_made_once_unless_something_changes(tmp_path: Path) -> None:
    made = []

    def make(folder: Path) -> None:
        made.append(list(folder.iterdir()))
        (folder / "file").write_text("x")

    def fail(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise OSError("disk full")

    for spec in ({"count": 1}, {"count": 1}, {"count": 2}):
        data.stamped(tmp_path / "set", dict(spec), make)
    assert made == [[], []]
    with pytest.raises(OSError, match="disk full"):
        data.stamped(tmp_path / "set", {"count": 3}, fail)
    # The last one that was complete is gone, too.
    for _ in range(2):
        data.stamped(tmp_path / "set", {"count": 2}, make)
    assert made == [[], [], []]
    assert data.tree_bytes(tmp_path / "set") == (1, 1)


# --- Readers


def test_readers_read_all_and_say_when(tmp_path: Path, blocks: common.Reader) -> None:
    (tmp_path / "file").write_bytes(bytes(100_000))
    path = str(tmp_path / "file")
    answers = [
        blocks.do(sequential=path, size=4096),
        blocks.do(random=path, count=3, size=1000, seed=1),
        blocks.do(files=[path, path, path + ".missing"]),
    ]
    assert [answer["bytes"] for answer in answers] == [100_000, 3000, 200_000]
    assert answers[2]["failed"] == 1
    moments = [moment for answer in answers for moment in (answer["begin_s"], answer["end_s"])]
    assert moments == sorted(moments)
    assert common.seconds(answers[0]) >= 0


def test_a_reader_that_finds_wrong_bytes_or_ends_is_an_error(tmp_path: Path, blocks: common.Reader) -> None:
    (tmp_path / "file").write_bytes(b"x" * 5000)
    with pytest.raises(common.BenchError, match="exit code 1"):
        blocks.do(random=str(tmp_path / "file"), count=1, size=1000, seed=1)


@pytest.mark.parametrize("access", [*OF_LARGE, TOUCH, *OF_LARGE_COLD, FILES], ids=lambda access: access.what)
def test_both_sides_of_a_ratio_read_the_same_bytes(access: Access, tmp_path: Path) -> None:
    names = ("a.bin", "b.bin", "c.bin") if access is FILES else ("a.bin",)
    for place in ("native", "same", "other"):
        (tmp_path / place).mkdir()
        for number, name in enumerate(names):
            data.make_random(tmp_path / place / name, 1024**2, number + 10 * (place == "other"))
    if access.direct and not takes_direct(tmp_path / "native" / "a.bin"):
        pytest.skip("this file system takes no O_DIRECT")
    native, same, other = (Place(tmp_path / place, names) for place in ("native", "same", "other"))
    with duel(access, native, Options(quick=True, runs=1), 1) as reads:
        reads.least_s = 0.0
        assert reads.first(same) > 0
        assert reads.again(same) > 0
        assert reads.cold(same, lambda: None) > 0
        assert reads.read_bytes == (256 if access is TOUCH else len(names) * 1024**2)
        with pytest.raises(common.BenchError, match="other bytes"):
            reads.first(other)


def takes_direct(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


def test_files_that_every_request_enters_are_counted_and_each_change_of_thread_or_task() -> None:
    steps = [Entered("loop", "a"), Entered("loop", "b"), Entered("worker", "b"), Entered("loop", "c")]
    assert entered_by_all([steps, [Entered("loop", "b"), Entered("loop", "c")]]) == {"b", "c"}
    assert hand_offs(steps) == 4  # with the thread that reads requests


CASES = ("a list of files", "a layout that is none", "parts of", "requests", "many learners")


@pytest.mark.slow
def test_nobody_keeps_the_event_loop_for_long(logs: Logs) -> None:
    logs.expect("is not followed")
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        Path(directory).chmod(0o755)  # the client is nobody
        longest, _late_s = measured(directory, 400_000, 16, *CASES)
    longest_s = dict(longest.longest_s)
    longest_s.pop("")  # before the first case, and after the last
    assert len(longest_s) >= len(CASES)
    assert not {case: turn_s for case, turn_s in longest_s.items() if turn_s > BAR_S}


def test_accuracy_counts_what_is_off_and_what_of_it_is_near_zero() -> None:
    true = np.array([100.0, -100, 0.0, 0.1, np.nan], np.float32)
    found = np.array([111.0, -109, 0.5, 0.105, np.nan], np.float32)
    close = accuracy(true, found)
    assert (close.values, close.off, close.near_zero, close.near_zero_off) == (4, 2, 2, 1)
    assert close.worst == pytest.approx(11 / true[:4].std(), rel=1e-3)
