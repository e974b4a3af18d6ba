"""The parts of `scripts/bench loading` that need no mount: the policies against the model, one rank that plans."""

from pathlib import Path

import pytest

from hfs.policies.cluster.cost_model import expected_imbalance
from scripts.benchmarks import loading_planning, loading_scale
from scripts.benchmarks.common import Work
from scripts.benchmarks.options import Options


def test_the_policies_move_what_the_model_expects() -> None:
    assert loading_scale.moved(64, 0) == pytest.approx(expected_imbalance(64, 512), abs=0.005)


@pytest.mark.slow
def test_rows_and_a_plot(tmp_path: Path) -> None:
    rows = loading_scale.scale(Work(tmp_path), Options(quick=True, runs=1, plots=tmp_path / "plots"), "c")
    assert all(row.value is not None for row in rows)
    assert next(row.value for row in rows if "which is 34x" in row.row) == pytest.approx(1, abs=0.05)
    assert (tmp_path / "plots" / "loading-scale.png").stat().st_size > 10_000


@pytest.mark.slow
def test_one_rank_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading_planning, "LEARNERS", 16)
    monkeypatch.setattr(loading_planning, "SAMPLES_QUICK", 5000)
    monkeypatch.setattr(loading_planning, "A_NODE", (4,))
    monkeypatch.setattr(loading_planning, "BATCHES", (8,))
    rows = loading_planning.planning(Work(tmp_path), Options(quick=True, runs=1), "c")
    assert [row.unit for row in rows] == ["s", "s", "s", "MB"]
    assert "16 learners on 4 nodes, 40 steps" in rows[0].row
