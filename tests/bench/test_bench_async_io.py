"""The parts of `scripts/bench async-io`: its learners, their arithmetic, the plot. Nothing is measured here."""

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from scripts.benchmarks import common, data
from scripts.benchmarks.async_io_learners import ASYNC_DB, TF, DataSet, Strategy, layout_of

FILES, A_FILE = 3, 11
SAMPLES = FILES * A_FILE


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{number}.h5" for number in range(FILES)]
    for number, path in enumerate(paths):
        data.make_samples(path, A_FILE, number * A_FILE)
    return paths


def request(strategy: Strategy, **more: Any) -> dict[str, Any]:
    words = {"order": strategy.order, "read": strategy.read, "overlap": strategy.overlap, "hint": strategy.hint}
    return {**words, "batch": 4, "group": 5, "seed": 1, "count": None, "sample_compute_s": 0.0, **more}


@pytest.mark.parametrize("strategy", [TF, ASYNC_DB], ids=lambda strategy: strategy.name)
def test_a_wrong_sample_ends_the_learner(strategy: Strategy, files: list[Path]) -> None:
    with h5py.File(files[1], "r+") as file:
        file["samples"][3, 0, 0] = 7
    with common.reader("learner.py", 0, 1, *files) as learner, pytest.raises(common.BenchError, match="exit code 1"):
        learner.do(**request(strategy))


def test_a_file_that_is_gone_ends_the_learner_even_where_a_thread_reads(files: list[Path]) -> None:
    with common.reader("learner.py", 0, 1, *files) as learner:
        files[2].write_bytes(b"no such format")
        with pytest.raises(common.BenchError, match="exit code 1"):
            learner.do(**request(ASYNC_DB))


def test_the_layout_says_where_every_sample_of_all_files_lies(files: list[Path]) -> None:
    folder = files[0].parent
    layout = layout_of(DataSet(folder, SAMPLES, data.SAMPLE_BYTES, 0, batch=4))
    assert (layout.samples, layout.sample_bytes) == (SAMPLES, SAMPLES * data.SAMPLE_BYTES)
    for number in range(SAMPLES):
        with (folder / os.fsdecode(layout.files[layout.extents[number]])).open("rb") as file:
            file.seek(layout.offsets[number])
            assert np.frombuffer(file.read(4), np.float32)[0] == number
