"""The benchmarks' own parts: the form of what they write, their data sets, their readers. Nothing is measured here."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from PIL import Image

from scripts.benchmarks import common, data, main, table
from scripts.benchmarks.fastpath_access import FILES, OF_LARGE, TOUCH, Access, Place, duel
from scripts.benchmarks.fastpath_dropped import OF_LARGE_COLD
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.house import Entered, entered_by_all, hand_offs
from scripts.benchmarks.mount_daemon import flatness
from scripts.benchmarks.options import Options

ROOT = Path(__file__).parents[2]
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


def test_several_runs_show_their_spread_and_one_does_not() -> None:
    several = table.median_row("t", [3.0, 1.23456, 2.0], "s", "c")
    assert (several.row, several.spread) == ("t", " (3 runs: 1.23 to 3)")
    assert table.median_row("t", [3.0], "s", "c").spread == ""


@pytest.mark.parametrize("values", [[], [float("nan")], [float("inf")]])
def test_what_has_no_median_is_an_error(values: list[float]) -> None:
    with pytest.raises(ValueError):
        table.median_row("t", values, "s", "c")


@pytest.mark.parametrize(
    ("value", "shown"), [(0, 0), (0.012345, 0.0123), (1.2345, 1.23), (98765.4, 98765), (-2.345, -2.35)]
)
def test_three_digits(value: float, shown: float) -> None:
    assert table.round_3(value) == pytest.approx(shown, abs=1e-9)


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


def test_flatness_compares_the_last_quarter_with_the_second() -> None:
    rising = [(float(moment), 100 if moment < 50 else 150) for moment in range(101)]
    assert flatness(rising) == pytest.approx(1.5)
    # What it takes to start is in the first quarter, and does not count.
    assert flatness([(float(moment), 900 if moment < 20 else 100) for moment in range(101)]) == pytest.approx(1.0)
    with pytest.raises(ValueError):
        flatness(rising[:7])


# --- The command line


@pytest.mark.slow
def test_help_names_the_benchmarks_and_a_wrong_name_is_refused() -> None:
    done = subprocess.run([ROOT / "scripts/bench", "--help"], capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in main.BENCHMARKS)
    assert "--quick" in done.stdout
    done = subprocess.run([ROOT / "scripts/bench", "nonsense"], capture_output=True, text=True, check=False)
    assert (done.returncode, "nonsense" in done.stderr) == (2, True)


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


@pytest.mark.parametrize("name", main.BENCHMARKS)
def test_every_group_can_be_called(name: str) -> None:
    benchmark = main.BENCHMARKS[name]
    assert benchmark.RUNS >= 1
    assert benchmark.GROUPS
    assert all(callable(group) for group in benchmark.GROUPS.values())


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


def test_caches_lie_in_parts_of_the_disk_of_their_own(tmp_path: Path) -> None:
    if subprocess.run(["chattr", "+T", tmp_path], capture_output=True, check=False).returncode != 0:
        pytest.skip("no ext4, or no chattr")
    names = []
    for _ in range(2):
        with common.work_folder(tmp_path / "bench") as work:
            flags = subprocess.run(["lsattr", "-d", work.run], capture_output=True, text=True, check=True).stdout
            assert "T" in flags.split()[0]
            names.append(work.new("cache").name)
    assert names[0] != names[1]


# --- Data sets


@pytest.mark.slow
def test_images_differ_decode_and_are_the_same_every_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        data.make_images(tmp_path / name, 12)
    files = common.files_at(tmp_path / "one")
    again = common.files_at(tmp_path / "two")
    assert [path.read_bytes() for path in files] == [path.read_bytes() for path in again]
    assert len({path.read_bytes() for path in files}) == len(files) == 12
    assert len(list((tmp_path / "one").iterdir())) == data.IMAGE_CLASSES
    for path in files:
        assert 80_000 < path.stat().st_size < 150_000
        with Image.open(path) as image:
            assert image.convert("RGB").size == (500, 375)


def test_two_files_of_one_picture_differ_in_their_comment_only() -> None:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (1, 2, 3)).save(file, "JPEG")
    one, other = (data.with_comment(file.getvalue(), number) for number in (1, 201))
    assert one != other
    # Marker, length (which counts itself), comment; then all the rest as it was.
    assert one[4 + int.from_bytes(one[4:6], "big") :] == file.getvalue()[2:]
    with Image.open(io.BytesIO(one)) as left, Image.open(io.BytesIO(other)) as right:
        assert left.convert("RGB").tobytes() == right.convert("RGB").tobytes()
    with pytest.raises(ValueError):
        data.with_comment(b"GIF89a", 1)


def test_a_sample_begins_with_its_index_and_lies_in_one_piece(tmp_path: Path) -> None:
    data.make_samples(tmp_path / "samples.h5", 1003)
    with h5py.File(tmp_path / "samples.h5") as file:
        samples = file["samples"]
        assert (samples.shape, samples.dtype, samples.chunks) == ((1003, 1600, 3), np.float32, None)
        assert samples[0].nbytes == data.SAMPLE_BYTES
        assert samples[:, 0, 0].tolist() == list(range(1003))
        assert not (samples[5] == samples[6]).all()


def test_plain_files_have_the_bytes_asked_for(tmp_path: Path) -> None:
    data.make_sparse(tmp_path / "sparse", 10**9)
    assert (tmp_path / "sparse").stat().st_size == 10**9
    assert (tmp_path / "sparse").stat().st_blocks == 0
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        data.make_random(tmp_path / name, 16 * 1024**2 + 5, seed)
    assert (tmp_path / "one").stat().st_size == 16 * 1024**2 + 5
    assert (tmp_path / "one").read_bytes() == (tmp_path / "same").read_bytes()
    assert (tmp_path / "one").read_bytes() != (tmp_path / "other").read_bytes()


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


def test_a_part_repeats_its_pass_and_tells_the_median(tmp_path: Path) -> None:
    data.make_random(tmp_path / "file", 4 * 1024**2, 1)
    with common.reader("staged.py", 0) as program:
        request = {"do": "random", "root": str(tmp_path), "names": ["file"], "size": 4096, "count": 10, "seed": 1}
        once = program.do(**request, direct=False, least_s=0.0)
        often = program.do(**request, direct=False, least_s=0.05)
        other = program.do(**{**request, "seed": 2}, direct=False, least_s=0.0)
    assert (once["passes"], once["bytes"], often["bytes"]) == (1, 40960, 40960)
    assert often["passes"] > 2
    assert 0 < often["pass_s"] < 0.05
    assert once["check"] == often["check"] != other["check"]


def test_a_listing_counts_files_and_no_folders(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    with common.reader("listing.py") as program:
        assert [program.do(folder=str(tmp_path), stat=stat)["names"] for stat in (False, True)] == [2, 2]


@pytest.mark.slow
def test_two_readers_take_all_samples_between_them(tmp_path: Path) -> None:
    data.make_samples(tmp_path / "samples.h5", 11)
    path = tmp_path / "samples.h5"
    with common.reader("samples.py", path, 0, 2) as one, common.reader("samples.py", path, 1, 2) as other:
        spent, answers = common.together([one, other], {"seed": 1, "count": None})
        _, part = common.together([one, other], {"seed": 1, "count": 5})
    assert spent > 0
    assert [answer["samples"] for answer in answers] == [6, 5]
    assert [answer["bytes"] for answer in part] == [3 * data.SAMPLE_BYTES, 2 * data.SAMPLE_BYTES]


def test_a_crowd_counts_who_has_come_and_who_has_ended(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / str(number)).write_text("x")
    with common.reader("crowd.py", tmp_path) as crowd:
        crowd.do(do="start")
        answer = crowd.do(do="join")
    assert [answer[key] for key in ("open", "done", "failed")] == [3, 3, 0]


def test_a_command_that_fails_is_told_with_what_it_said() -> None:
    with pytest.raises(common.BenchError, match="exit code 3: no luck"):
        common.run(sys.executable, "-c", "import sys; sys.stderr.write('no luck'); sys.exit(3)")


def test_files_that_every_request_enters_are_counted_and_each_change_of_thread_or_task() -> None:
    steps = [Entered("loop", "a"), Entered("loop", "b"), Entered("worker", "b"), Entered("loop", "c")]
    assert entered_by_all([steps, [Entered("loop", "b"), Entered("loop", "c")]]) == {"b", "c"}
    assert hand_offs(steps) == 4  # with the thread that reads requests
