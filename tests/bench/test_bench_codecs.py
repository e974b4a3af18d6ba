"""The samples of `scripts/bench codecs` look like those of the papers, and the rows are made of what was measured."""

import numpy as np
import pytest

from hfs.codecs import decode, encode
from hfs.codecs.container import unpack
from hfs.codecs.converting import accuracy
from scripts.benchmarks.codecs_data import fields, volume


def test_volumes_are_coupled_counts_of_few_values() -> None:
    counts = volume(3, 32)
    assert counts.dtype == np.int16
    assert (volume(3, 32) == counts).all()
    assert 0.9 < counts.mean() < 1.1
    values, times = np.unique(counts, return_counts=True)
    assert 50 < len(values) < 300
    assert np.polyfit(np.log(values[1:20]), np.log(times[1:20]), 1)[0] < -2  # a power law
    assert len(unpack(encode(counts))[0].parts["entries"]) < len(values) ** 2
    assert np.corrcoef(counts[..., 0].ravel(), counts[..., 3].ravel())[0, 1] > 0.3


def test_fields_are_smooth_and_of_every_size() -> None:
    shape = (16, 96, 288)
    values, label = fields(3, shape)
    assert (fields(3, shape)[0] == values).all()
    assert values.dtype == np.float32
    assert set(np.unique(label)) == {0, 1, 2}
    encoded = encode(values)
    close = accuracy(values, decode(encoded, dtype="float32"), "first")
    assert values.nbytes / len(encoded) > 3
    assert close.off < 0.03 * close.values


def test_accuracy_counts_what_is_off_and_what_of_it_is_near_zero() -> None:
    true = np.array([100.0, -100, 0.0, 0.1, np.nan], np.float32)
    found = np.array([111.0, -109, 0.5, 0.105, np.nan], np.float32)
    close = accuracy(true, found)
    assert (close.values, close.off, close.near_zero, close.near_zero_off) == (4, 2, 2, 1)
    assert close.worst == pytest.approx(11 / true[:4].std(), rel=1e-3)
