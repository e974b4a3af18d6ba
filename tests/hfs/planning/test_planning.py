"""What `hfs plan` works with: rates as people write them, measured rates, and epochs as the equations say."""

from __future__ import annotations

import io
import json
import math
import os
from pathlib import Path

import pytest

from hfs.mountd.core.errors import ConfigError
from hfs.planning import planning
from hfs.planning.planning import (
    RATES,
    DataSet,
    Given,
    Inputs,
    NotMeasured,
    decode_rate,
    epochs,
    file_rate,
    folder_rate,
    look_through,
    nodes_of,
    rate_of,
)
from hfs.policies.cluster.cost_model import costs


@pytest.mark.parametrize(
    ("text", "samples"),
    [
        ("1000 samples/s", 1000),
        ("1 sample/s", 1),
        ("1.5samples/s", 1.5),
        ("200MB/s", 2000),
        ("200 mb / s", 2000),
        ("1MiB/s", 10.48576),
        ("1G/s", 10737.41824),
        ("50000B/s", 0.5),
    ],
)
def test_rates(text: str, samples: float) -> None:
    assert rate_of("--x", text, 100_000) == pytest.approx(samples)


@pytest.mark.parametrize(
    "text", ["", "/s", "200", "200/s", "MB/s", "200MB", "200MB/m", "-1MB/s", "0MB/s", "0 samples/s", "2x/s", "inf/s"]
)
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--storage-rate is .* give more than 0 with its unit, like 200MB/s"):
        rate_of("--storage-rate", text, 100)


def test_nodes() -> None:
    assert nodes_of("8,1, 4,4") == [1, 4, 8]
    for text in ("", "0", "1,x", "-1", "65537", "1-8", "1.5"):
        with pytest.raises(ConfigError, match="--nodes"):
            nodes_of(text)


def inputs(cache: float = math.inf) -> Inputs:
    rates = {name: Given(100.0, "given") for name in RATES} | {"train": Given(10.0, "given")}
    rates["local"] = Given(math.inf, "assumed")
    of = Given(1000, "given")
    return Inputs(Given(1e6, "given"), of, rates, Given(cache, "given"), Given(32, "assumed"))


def test_epochs_are_those_of_the_equations() -> None:
    found = epochs(inputs(), [1, 16])
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["inputs"]["cache_bytes"]["value"] is found["inputs"]["local_rate"]["value"] is None
    assert [row["nodes"] for row in found["epochs"]] == [1, 16]
    assert found["epochs"][0]["moved"] == 0
    wanted = costs(inputs().job, 16)
    for way in ("train", "direct", "node_cache", "distributed", "locality"):
        assert found["epochs"][1][f"{way}_s"] == getattr(wanted, f"{way}_s")
    assert found["ways"]["direct"] == {"waits_from": 10, "gains_end": 9}


def test_a_cache_that_is_smaller_than_the_data() -> None:
    assert inputs(250_000).job.node_cached == 0.25
    assert inputs(4e6).job.node_cached == 1


# -- Measuring: that it reads and counts the right things, not how fast ----------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(20):
        (tmp_path / f"d{number % 3}").mkdir(exist_ok=True)
        (tmp_path / f"d{number % 3}" / str(number)).write_bytes(bytes(number * 1000))
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to(".")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


def test_a_data_set_is_looked_through(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = look_through(str(folder))
    assert (found.files, found.bytes, len(found.paths)) == (20, 190_000, 20)
    assert look_through(str(folder / "d1" / "4")) == DataSet(1, 4000, [str(folder / "d1" / "4")])
    monkeypatch.setattr(planning, "_FILES", 5)
    few = look_through(str(folder))
    assert (few.files, len(set(few.paths))) == (20, 5)
    assert look_through(str(folder)) == few


def test_there_is_nothing_to_look_through(folder: Path) -> None:
    for path in (folder / "missing", folder / "d0" / "0", folder / "pipe"):
        with pytest.raises(NotMeasured):
            look_through(str(path))


def test_files_and_folders_are_read_once(folder: Path) -> None:
    rate = file_rate(look_through(str(folder)).paths, 60, 4)
    assert (rate.files, rate.bytes) == (20, 190_000)
    assert rate.bytes_a_second == pytest.approx(rate.files_a_second * 9500)
    rate = folder_rate(str(folder), 60, 4, 3 << 20)
    assert (rate.files, rate.bytes) == (3, 3 << 20)
    assert sorted(path.name for path in folder.iterdir()) == ["d0", "d1", "d2", "gone", "loop", "pipe"]


def test_the_time_limit_ends_it(folder: Path) -> None:
    assert file_rate(look_through(str(folder)).paths, 0, 4).files == 0
    assert folder_rate(str(folder), 0, 4, 3 << 20).files == 0


def test_pictures_are_decoded(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    data = io.BytesIO()
    image.new("RGB", (8, 8)).save(data, "PNG")
    (tmp_path / "a.png").write_bytes(data.getvalue())
    (tmp_path / "b").write_bytes(b"no picture")
    rate = decode_rate([str(tmp_path / "a.png")], 0.05, 2)
    assert rate.bytes == rate.files * len(data.getvalue()) > 0
    for names in (["b"], ["a.png", "b"], ["missing"]):
        with pytest.raises(NotMeasured):
            decode_rate([str(tmp_path / name) for name in names], 5, 2)


def test_faults_say_where(tmp_path: Path) -> None:
    for measure in (lambda: file_rate([str(tmp_path / "x")], 5, 2), lambda: folder_rate(str(tmp_path / "x"), 5, 2)):
        with pytest.raises(NotMeasured, match=str(tmp_path / "x")):
            measure()
