"""`scripts/bench compare`: when a row is worse, which rows belong together, and what the exit code says."""

import json
from pathlib import Path

import pytest

from scripts.benchmarks import about, compare, main, table
from scripts.benchmarks.compare import Measured, rows_of, verdict
from scripts.benchmarks.table import Bar, Row, at_least, at_most, median_row

ROOT = Path(__file__).parents[2]


def measured(*values: float, better: int = -1) -> Measured:
    return Measured(sorted(values)[len(values) // 2], "s", values, better)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ((1.0, 1.1, 1.2), (1.3, 1.4, 1.5), "worse"),
        ((1.0, 1.1, 1.2), (1.15, 1.19, 1.3), ""),  # within what the old runs have shown
        ((1.0, 1.1, 1.6), (1.3, 1.4, 1.5), ""),
        ((1.0, 1.1, 1.2), (1.05, 1.4, 1.5), ""),  # one of the new runs was as good
        ((1.3, 1.4, 1.5), (1.0, 1.1, 1.2), "better"),
        ((1.0, 1.0, 1.0), (1.02, 1.02, 1.02), ""),  # nobody would call it a change
        ((1.0,), (1.05,), ""),  # of one run nobody knows the spread
        ((1.0,), (1.3,), "worse"),
        ((0.0,), (1.0,), "worse"),
    ],
)
def test_a_row_is_worse_where_it_lies_beyond_its_spread(
    old: tuple[float, ...], new: tuple[float, ...], said: str
) -> None:
    assert verdict(measured(*old), measured(*new)) == said
    turned = {"worse": "better", "better": "worse", "": ""}[said]
    assert verdict(measured(*old, better=1), measured(*new, better=1)) == turned
    assert verdict(measured(*old, better=0), measured(*new, better=0)) == ""


def record(*rows: Row) -> dict[str, object]:
    return dict(json.loads(table.as_json(rows, {})))


def row(name: str, value: float, unit: str = "s", bar: Bar | None = None) -> Row:
    return median_row(name, [value], unit, "scripts/bench mount --only x", bar)


def test_a_row_belongs_to_the_one_above_it_and_the_bar_tells_which_way_is_better() -> None:
    rows = dict(
        rows_of(
            record(
                row("two workers", 2, "x", at_least(1)),
                row("  first batch", 1),
                row("    of it", 1, ""),
                row("eight workers", 3, "", at_most(4)),
                row("  first batch", 5, "files/s"),
            )
        )
    )
    better = {key[1:]: found.better for key, found in rows.items()}
    assert better == {
        ("two workers",): 1,
        ("two workers", "first batch"): -1,
        ("two workers", "first batch", "of it"): 0,
        ("eight workers",): -1,
        ("eight workers", "first batch"): 1,
    }


def test_the_exit_code_says_whether_something_is_worse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, same, worse, none, gone = (tmp_path / name for name in ("old", "same", "worse", "none", "gone"))
    for path, *rows in [
        (old, row("a", 1), row("b", 2)),
        (same, row("a", 1.01), row("b", 1.99)),
        (worse, row("a", 1.5), row("b", 1)),
        (none, row("c", 1)),
        (gone, Row("a", None, "", None, False, "scripts/bench mount --only x"), row("b", 2)),
    ]:
        path.write_text(json.dumps(record(*rows)))
    assert main.main(["compare", str(old), str(same)]) == 0
    assert "2 rows: 0 better, 0 worse, 0 gone" in capsys.readouterr().out
    assert compare.main([str(old), str(worse)]) == 1
    said = capsys.readouterr().out
    assert "2 rows: 1 better, 1 worse" in said
    assert "1.5" in said
    assert compare.main([str(old), str(gone)]) == 1
    assert compare.main([str(old), str(none)]) == 2
    assert compare.main([str(old), str(tmp_path / "nothing")]) == 2


def test_a_directory_is_all_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(record(row("a", 1))))
    (tmp_path / "b.json").write_text(json.dumps(record(row("b", 1))))
    assert [key[-1] for key in compare.read(tmp_path)] == ["a", "b"]


def test_a_file_says_where_and_what_it_was_measured_with() -> None:
    said = about.about(ROOT, "mount", quick=False, runs=3)
    assert said["benchmark"] == "mount"
    json.dumps(said)
    assert {"cores", "kernel", "memory_bytes", "processor", "load_before"} == set(said["machine"])  # type: ignore[call-overload]  # a dict
