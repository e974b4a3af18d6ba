"""`hfs encode` and `hfs decode` as people use them: files in, files out, what is said, exit codes."""

import json
import os
from pathlib import Path

import h5py
import numpy as np
import pytest
from click.testing import CliRunner, Result

from hfs.cli import cli
from hfs.codecs import EncodedDataset, WantedOutput
from tests.hfs.codecs.codec_samples import fields, volume


def hfs(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [*map(str, arguments), "--jobs", "1"])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(folder: str = "out") -> list[str]:
    return sorted(os.path.relpath(path, folder) for path in Path(folder).rglob("*") if path.is_file())


def test_numpy_files_there_and_back() -> None:
    os.makedirs("in/deep")
    np.save("in/a.npy", volume(1))
    np.savez("in/deep/b.npz", x=volume(2), **{"a/file": np.array([0.5, 2])})
    made = hfs("encode", "in", "out")
    assert made.exit_code == 0, made.output
    assert files() == ["a.hfsc", "deep/b.hfsc"]
    assert "2 samples encoded, cosmoflow: " in made.stdout
    assert "all values as they were" in made.stdout
    back = hfs("decode", "out", "back")
    assert back.exit_code == 0, back.output
    assert files("back") == ["a.npy", "deep/b.npz"]
    assert (np.load("back/a.npy") == volume(1)).all()
    with np.load("back/deep/b.npz") as found:
        assert (found["x"] == volume(2)).all()
        assert found["a/file"].tolist() == [0.5, 2]
    assert hfs("decode", "out/a.hfsc", "half", "--op", "log1p", "--channels", "first").exit_code == 0
    right = np.moveaxis(np.log1p(volume(1), dtype=np.float32).astype(np.float16), -1, 0)
    assert (np.load("half/a.npy") == right).all()


def test_many_volumes_of_an_hdf5_file_with_their_labels() -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File("set.h5", "w") as file:
        file["universe/full"] = np.stack([volume(seed) for seed in range(11)])
        file["unitPar"] = np.arange(44.0).reshape(11, 4)
        file["names"] = [b"text"] * 11
        file["redshifts"] = [0.0, 0.5, 1.5, 3]
    made = hfs("encode", "set.h5", "out")
    assert made.exit_code == 0, made.output
    assert files() == [f"set-{number:02d}.hfsc" for number in range(11)]
    dataset = EncodedDataset("out", arrays=["universe/full", "unitPar", "redshifts"])
    data, label, redshifts = dataset[10]
    assert (data == volume(10)).all()
    assert label.tolist() == [40, 41, 42, 43]
    assert redshifts.tolist() == [0, 0.5, 1.5, 3]


def test_fields_with_labels_and_their_accuracy() -> None:
    h5py = pytest.importorskip("h5py")
    os.mkdir("in")
    with h5py.File("in/data.h5", "w") as file:
        file["climate/data"] = np.moveaxis(fields(), 0, -1)
        file["climate/labels_0"] = np.zeros((20, 96), np.int64)
    made = hfs("encode", "in", "out")
    assert made.exit_code == 0, made.output
    assert "1 sample encoded, deepcam: " in made.stdout
    assert "off by more than 10 %: " in made.stdout
    data, label = EncodedDataset("out", WantedOutput(channels="first", dtype="float32"))[0]
    assert np.abs(data - fields()).max() < 100
    assert label.dtype == np.int64
    bounded = hfs("encode", "in", "out", "--overwrite", "--max-relative-error", "0.05")
    assert "off by more than 10 %: 0.000% of the values" in bounded.stdout


def test_files_that_cannot_be_read_do_not_stop_the_others() -> None:
    os.mkdir("in")
    for name in ("empty.npy", "empty.h5", "empty.npz", "sub"):
        Path("in", name).touch() if name != "sub" else os.mkdir("in/sub")
    np.save("in/good.npy", volume())
    np.save("in/text.npy", np.array(["a", "b"]))
    np.save("in/objects.npy", np.array([{}, None]), allow_pickle=True)
    whole = Path("in/good.npy").read_bytes()
    for length in (1, 9, 60, len(whole) - 5):
        Path(f"in/cut-{length}.npy").write_bytes(whole[:length])
        Path(f"in/sub/cut-{length}.npz").write_bytes(b"PK\3\4" + whole[:length])
    with h5py.File("in/text.h5", "w") as file:
        file["text"] = "no number"
    made = hfs("encode", "in", "out")
    assert made.exit_code == 3
    assert [str(path) for path in sorted(Path("out").rglob("*.hfsc"))] == ["out/good.hfsc"]
    bad = {str(path) for path in Path("in").rglob("*.*") if path.name != "good.npy"}
    said = json.loads(hfs("encode", "in", "out", "--overwrite", "--json").stdout)
    assert ({fault["sample"] for fault in said["faults"]}, said["samples"]) == (bad, 1)
    assert all(name in made.stderr for name in sorted(bad)[:5])
    os.unlink("in/good.npy")
    assert hfs("encode", "in", "none").exit_code == 1


def test_samples_that_cannot_be_encoded_do_not_stop_the_others() -> None:
    os.mkdir("in")
    np.save("in/good.npy", volume())
    np.save("in/negative.npy", -volume())
    made = hfs("encode", "in", "out")
    assert made.exit_code == 3
    assert "hfs: in/negative.npy: data: there are negative counts" in made.stderr
    sums = json.loads(hfs("encode", "in", "out", "--overwrite", "--json").stdout)
    assert (sums["samples"], sums["failed"], sums["faults"][0]["sample"]) == (1, 1, "in/negative.npy")
    assert 0 < sums["encoded_bytes"] < sums["raw_bytes"] == volume().nbytes
    assert files() == ["good.hfsc"]
    assert hfs("encode", "in/negative.npy", "none").exit_code == 1
    assert not os.path.exists("none")
    Path("out/bad.hfsc").write_bytes(Path("out/good.hfsc").read_bytes()[:-3])
    back = hfs("decode", "out", "back")
    assert back.exit_code == 3
    assert "hfs: out/bad.hfsc: " in back.stderr
    assert files("back") == ["good.npy"]


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.h5"])
def test_files_that_cannot_be_read(name: str) -> None:
    Path(name).write_text("x")
    made = hfs("encode", name, "out")
    assert (made.exit_code, "cannot be read, or is damaged" in made.stderr) == (1, True)
