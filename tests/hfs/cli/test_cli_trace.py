"""`hfs trace simulate` as people use it: its table, its JSON, what is recommended, and what is wrong with what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfs.layouts.trace import Read, SourceWaits, Trace, traced
from hfs.planning import planning
from tests.hfs.cli.running import hfs

SIZE = 40_000


def simulated(*arguments: object) -> dict[str, Any]:
    done = hfs("trace", "simulate", *arguments, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """200 files in random order, by two readers that compute 10 ms and wait 40 ms for each."""
    names = [b"d%d/%03d" % (number % 2, number) for number in range(200)]
    for name in names:
        path = tmp_path / "data" / name.decode()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(SIZE))
    order = np.random.default_rng(0).permutation(200).tolist()
    reads = [Read(names[number], 0, SIZE, 1000 + i // 2 * 50_000, 71 + i % 2) for i, number in enumerate(order)]
    made = traced(reads, str(tmp_path / "data"), SourceWaits(200, 200 * 40_000))
    made.save(str(tmp_path / "trace"))
    return tmp_path / "trace"


def test_a_table_with_a_row_for_each_combination(trace: Path) -> None:
    done = hfs(
        "trace",
        "simulate",
        trace,
        "--cache-size",
        "5MB",
        "--cache-size",
        "50MB",
        "--eviction",
        "fill-once",
        "--eviction",
        "lru",
    )
    assert done.exit_code == 0, done.output
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "data 8.00 MB 200 files; a cache of 9.31 MB holds all" in lines
    assert "a fetch from SOURCE takes 0.04 s recorded" in lines
    assert "between two reads of a reader 0.0096 s recorded" in lines
    assert "readers of a node 2 recorded" in lines
    assert any(line.startswith("fill-once 50.0 MB 100.0% 0 B 0.96 s") and line.endswith("<") for line in lines)
    assert sum(line.startswith("lru ") for line in lines) == 2
    assert "recommended: 50.0 MB, fill-once" in lines


def test_as_json(trace: Path) -> None:
    found = simulated(trace, "--cache-size", "6MB", "--nodes", "1", "--nodes", "2", "--epochs", "4")
    assert found["inputs"]["latency_s"] == {"value": pytest.approx(0.04), "origin": "recorded", "note": ""}
    assert found["inputs"]["source_rate"]["value"] is None
    assert [(row["eviction"], row["nodes"]) for row in found["rows"]] == [
        (way, nodes) for way in ("fill-once", "lru", "hinted") for nodes in (1, 2)
    ]
    one, two = found["rows"][:2]
    assert one["hit_share"] == pytest.approx(0.62, abs=0.04)
    # Two caches hold all between them, and each file is read from the source once.
    assert two["hit_share"] == 1.0
    assert two["epochs"][0]["source_reads"] == 200
    assert two["later_s"] < one["later_s"]
    assert len(one["epochs"]) == 4
    assert found["recommended"] == two


def test_what_is_given_goes_first(trace: Path, tmp_path: Path) -> None:
    found = simulated(
        *(trace, "--source-latency", "4ms", "--compute", "0", "--readers", "1", "--source-rate", "4MB/s"),
        *("--cache-size", "100MB", "--eviction", "fill-once", "--epochs", "1", "-o", "siblings=0"),
    )
    assert {name: given["origin"] for name, given in found["inputs"].items()} == dict.fromkeys(found["inputs"], "given")
    assert found["rows"][0]["first_s"] == pytest.approx(200 * (0.004 + 0.01), rel=0.01)
    # Nobody has waited, and no thread is known.
    whole = Trace.load(str(trace))
    whole.with_reads(whole.times_us, np.zeros(whole.samples, int), SourceWaits()).save(str(tmp_path / "untold"))
    assert "give --source-latency, or --measure SOURCE" in hfs("trace", "simulate", tmp_path / "untold").stderr
    untold = simulated(tmp_path / "untold", "--source-latency", "4ms", "--eviction", "lru")
    assert untold["inputs"]["readers"]["origin"] == "assumed"
    whole_bytes = untold["data"]["cache_bytes"]
    assert [round(row["cache_bytes"] / whole_bytes, 2) for row in untold["rows"]] == [0.25, 0.5, 0.75, 1.0]


def test_what_more_cache_gives(trace: Path) -> None:
    enough = ("--cache-size", "12MB", "--cache-size", "100MB", "--eviction", "fill-once")
    assert "more than 12.0 MB gives nothing" in hfs("trace", "simulate", trace, *enough).stdout
    little = hfs("trace", "simulate", trace, "--cache-size", "5MB", "--eviction", "fill-once").stdout
    assert "with 9.31 MB a node all of it would stay after the first epoch" in little


def test_the_source_is_measured(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "LIMIT_S", 60.0)  # it ends when all files are read
    found = simulated(trace, "--measure", trace.parent / "data", "--eviction", "fill-once", "--epochs", "1")
    assert {found["inputs"][name]["origin"] for name in ("latency_s", "source_rate")} == {"measured"}
