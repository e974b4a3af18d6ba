"""`hfs plan` as people use it: tables, JSON, plots, what is missing, what is measured."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from hfs.cli import render
from hfs.planning import planning
from tests.hfs.cli.running import hfs

IMAGENET = ("--dataset", "150GB", "--samples", "1500000")
RATES = ("--storage-rate", "5GB/s", "--train-rate", "1000 samples/s")


def plan(*arguments: str | Path) -> dict[str, Any]:
    done = hfs("plan", *arguments, "--json")
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_plan_in_tables() -> None:
    done = hfs("plan", *IMAGENET, *RATES)
    assert done.exit_code == 0, done.output
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "what SOURCE gives to all nodes together 50,000 samples/s 5.00 GB/s given" in lines
    assert "what one node prepares - assumed (no limit)" in lines
    assert "64 23.4 s 30 s 23.4 s 23.4 s 23.4 s" in lines
    assert "locality-aware from 3,546 nodes from 3,223 nodes" in lines
    assert sum(line.startswith("1,024 ") for line in lines) == 1


def test_a_plan_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "_PIPE_COLUMNS", 80)
    lines = hfs("plan", *IMAGENET, *RATES).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.endswith("locality-aware") for line in lines if line.startswith(" nodes"))  # no word is cut


def test_what_goes_into_a_pipe_is_not_filled_up_with_blanks() -> None:
    lines = hfs("plan", *IMAGENET, *RATES).stdout.splitlines()
    assert [line for line in lines if line != line.rstrip(" ")] == []


def test_a_plan_as_json() -> None:
    found = plan(*IMAGENET, *RATES, "--nodes", "2,200", "--cache", "15GB", "--remote-rate", "10GB/s")
    assert [row["nodes"] for row in found["epochs"]] == [2, 200]
    assert found["inputs"]["storage_rate"] == {"value": 50_000, "origin": "given", "note": ""}
    assert found["inputs"]["remote_rate"]["value"] == 100_000
    assert found["inputs"]["preprocess_rate"]["value"] is None
    assert found["epochs"][1]["node_cache_s"] == pytest.approx(0.9 * 30)
    assert found["ways"]["direct"]["waits_from"] == 51


def test_without_matplotlib_only_plots_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    done = hfs("plan", *IMAGENET, *RATES, "--plot", "x.png")
    assert done.exit_code == 2
    assert "pip install matplotlib" in done.stderr
    assert hfs("plan", *IMAGENET, *RATES).exit_code == 0


@pytest.mark.slow
def test_a_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name, begins in (("i.png", b"\x89PNG"), ("p.svg", b"<?xml")):
        assert hfs("plan", *IMAGENET, *RATES, "--plot", tmp_path / name).exit_code == 0
        assert (tmp_path / name).read_bytes().startswith(begins)
    assert "locality-aware" in (tmp_path / "p.svg").read_text()
    done = hfs("plan", *IMAGENET, *RATES, "--plot", "/proc/p.png")
    assert (done.exit_code, "--plot /proc/p.png: cannot be written" in done.stderr) == (2, True)


def test_what_is_not_given_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "LIMIT_S", 60.0)  # it ends when all files are read
    monkeypatch.setattr(planning, "_FOLDER_BYTES", 1 << 20)
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(10):
        (folder / str(number)).write_bytes(bytes(1000))
    train = ("--train-rate", "1000 samples/s")
    done = hfs("plan", "--dataset", folder, *train, "--measure", "--cache-dir", tmp_path, "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)["inputs"]
    assert (found["samples"]["value"], found["dataset_bytes"]["value"]) == (10, 10_000)
    origins = {name: found[f"{name}_rate"]["origin"] for name in ("storage", "local", "preprocess", "remote", "train")}
    assert origins.pop("preprocess") == "assumed", "what are no pictures is not decoded"
    assert origins == {"storage": "measured", "local": "measured", "remote": "assumed", "train": "given"}
    assert found["storage_rate"]["value"] > 0
    assert "measuring what SOURCE gives" in done.stderr
    assert "not measured: " in done.stderr
    found = plan("--dataset", folder, *train, "--storage-rate", "7MB/s", "--measure", "--samples", "5")["inputs"]
    assert found["storage_rate"] == {"value": 3500, "origin": "given", "note": ""}
