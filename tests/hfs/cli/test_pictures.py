"""The pictures that our commands draw: every line is seen, and no legend hides what it explains. Tables: no title is
cut where the screen has 80 columns."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hfs.cli import cli, render
from hfs.cli.learners import epochs_table, learners_table
from tests.support.statuses import learner

pytest.importorskip("matplotlib")

pytestmark = pytest.mark.slow

QUICKSTART = Path(__file__).parents[3] / "scripts" / "quickstart_files" / "picture.py"


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The figures that were saved."""
    from matplotlib.figure import Figure

    figures: list[Any] = []
    save = Figure.savefig

    def kept(figure: Any, *arguments: Any, **options: Any) -> None:
        save(figure, *arguments, **options)
        figures.append(figure)

    monkeypatch.setattr(Figure, "savefig", kept)
    yield figures
    assert figures


def outside(legend: Any, axis: Any) -> bool:
    return not legend.get_window_extent().overlaps(axis.get_window_extent())


def test_lines_of_a_plan_that_lie_on_each_other_are_all_seen(drawn: list[Any], tmp_path: Path) -> None:
    rates = ("--storage-rate", "5GB/s", "--train-rate", "1000 samples/s")
    data = ("--dataset", "150GB", "--samples", "1500000")
    done = CliRunner().invoke(cli, ["plan", *data, *rates, "--plot", str(tmp_path / "p.svg")])
    assert done.exit_code == 0, done.output
    widths = [line.get_linewidth() for line in drawn[0].axes[0].lines]  # the last is drawn over the others
    assert len(widths) == 5
    assert widths == sorted(set(widths), reverse=True)


def test_the_legend_of_the_quickstart_lies_on_nothing(drawn: list[Any], tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("picture", QUICKSTART)
    assert spec
    assert spec.loader
    picture = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(picture)
    seconds = {(source, way): [9.0, 9.0] for source in ("lustre", "busy") for way in ("direct", "hfs run")}
    picture.draw(seconds, tmp_path / "p.svg")
    (legend,) = drawn[0].legends
    assert all(outside(legend, axis) for axis in drawn[0].axes)
    assert all(axis.get_ylim()[1] > 9.5 for axis in drawn[0].axes)  # labels of bars do not touch the frame


@pytest.mark.parametrize("columns", [80, 120])
def test_no_figure_of_an_epoch_is_folded(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(render, "_PIPE_COLUMNS", columns)
    times = {"exposed_s": 35.41, "compute_s": 0.635, "other_s": 0.0, "source_wait_s": 0.003541, "daemon_cpu_s": 12345.6}
    table = epochs_table(
        {"learners": [{"rank": 10, "world": 1024, "epochs": [{"epoch": 99, "batches": 20_018, **times}]}]}
    )
    assert table is not None
    render.stdout().print(table)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    (line,) = [line.split() for line in lines if "20,018" in line]
    assert line[-8:] == ["99", "35.4", "0.635", "0", "98.2%", "20,018", "0.004", "12,346"]
    assert not any("learner" in line and ", rank" not in line and "epoch" not in line for line in lines), lines


def test_tables_of_many_columns_fit_80(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(render, "_PIPE_COLUMNS", 80)
    far = {**learner(63, 95.0), "pid": 4194303, "position": 123_456, "total": 1_281_167, "ahead_bytes": 10**10}
    for made in (learners_table, epochs_table):
        table = made({"learners": [far]})
        assert table is not None
        render.stdout().print(table)
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 80
        above = next(number for number, line in enumerate(lines) if "─" in line)
        words = " ".join(lines[:above]).split()
        assert [column.header for column in table.columns if not set(str(column.header).split()) <= set(words)] == []
