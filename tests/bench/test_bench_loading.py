"""The parts of `scripts/bench loading` that need no mount: the cost model against the paper, one rank that plans."""

from pathlib import Path

import pytest

from policies.cluster.cost_model import expected_imbalance
from scripts.benchmarks import loading, loading_planning, loading_scale
from scripts.benchmarks.common import Work
from scripts.benchmarks.options import Options


def test_every_group_can_be_called() -> None:
    assert list(loading.GROUPS) == ["threads", "planning", "scale"]
    assert all(callable(group) for group in loading.GROUPS.values())


def test_the_model_gives_the_papers_speed_ups() -> None:
    for of in loading_scale.PAPER:
        for nodes, measured in of.speed_ups.items():
            found = loading_scale.speed_up(of, nodes, 0)
            if nodes == of.taken_from:
                assert found == pytest.approx(measured, rel=0.02)
            elif nodes < 128 or of.name == "ImageNet":
                assert found == pytest.approx(measured, rel=0.05)
            else:  # something that the model does not know begins to limit MuMMI
                assert measured < found < 1.25 * measured


def test_the_policies_move_what_the_model_expects() -> None:
    assert loading_scale.moved(64, 0) == pytest.approx(expected_imbalance(64, 512), abs=0.005)


def test_rows_and_a_plot(tmp_path: Path) -> None:
    rows = loading_scale.scale(Work(tmp_path), Options(quick=True, runs=1, plots=tmp_path / "plots"), "c")
    assert all(row.value is not None for row in rows)
    assert next(row.value for row in rows if "which is 34x" in row.row) == pytest.approx(1, abs=0.05)
    assert (tmp_path / "plots" / "loading-scale.png").stat().st_size > 10_000


def test_one_rank_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading_planning, "LEARNERS", 16)
    monkeypatch.setattr(loading_planning, "SAMPLES_QUICK", 5000)
    monkeypatch.setattr(loading_planning, "A_NODE", (4,))
    monkeypatch.setattr(loading_planning, "BATCHES", (8,))
    rows = loading_planning.planning(Work(tmp_path), Options(quick=True, runs=1), "c")
    assert [row.unit for row in rows] == ["s", "s", "s", "MB"]
    assert "16 learners on 4 nodes, 40 steps" in rows[0].row
