"""Encoded samples: every array comes back as it was or as it was asked for, and labels always as they were."""

import importlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hfs.codecs import CodecError, EncodedDataset, decode, decode_all, encode
from hfs.codecs.codec import WantedOutput
from hfs.codecs.sample import MAGIC, unpack
from tests.hfs.codecs.codec_samples import fields, volume

LOG: Any = {"op": "log1p"}


def channels_first(array: Any) -> Any:
    return np.moveaxis(array, -1, 0)


@pytest.mark.parametrize("dtype", [np.int16, np.uint16, np.int32, np.uint8, np.int64, ">i2"])
@pytest.mark.parametrize("first", [False, True])
def test_counts_come_back_exactly(dtype: Any, first: bool) -> None:
    array = volume().astype(dtype)
    if first:
        array = channels_first(array)
    back = decode(encode(array))
    assert back.dtype == array.dtype.newbyteorder("<")
    assert back.shape == array.shape
    assert (back == array).all()
    other = decode(encode(array), channels="last" if first else "first")
    assert (other == (np.moveaxis(array, 0, -1) if first else channels_first(array))).all()
    assert other.flags.c_contiguous


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("channels", ["first", "last"])
def test_the_logarithm_is_that_of_every_value(dtype: str, threads: int, channels: Any) -> None:
    array = volume(side=48) if threads > 1 else volume()
    right = np.log1p(array, dtype=np.float32).astype(dtype)
    back = decode(encode(array), dtype=dtype, threads=threads, channels=channels, **LOG)
    assert back.dtype == dtype
    assert (back == (channels_first(right) if channels == "first" else right)).all()


def test_scale_and_shift_by_channel() -> None:
    array = volume()
    back = decode(encode(array), dtype="float32", scale=[1, 2, 3, 4], shift=0.5, **LOG)
    logs = np.log1p(array, dtype=np.float32)
    assert (back == (logs - np.float32(0.5)) * np.array([1, 2, 3, 4], np.float32)).all()
    with pytest.raises(CodecError, match="one for each of 4 channels"):
        decode(encode(array), scale=[1, 2])


def test_twelve_channels_are_three_groups_of_four() -> None:
    array = np.concatenate([volume(seed) for seed in range(3)], axis=-1)
    data = encode(array)
    assert (decode(data) == array).all()
    assert (decode(data, channels="first") == channels_first(array)).all()
    assert (decode(data, dtype="float32", scale=2.0) == 2 * array).all()
    with pytest.raises(CodecError, match="one scale and shift for all"):
        decode(data, scale=list(range(12)))


def test_fields_come_back_in_every_layout() -> None:
    array = fields()
    right = decode(encode(array), dtype="float32")
    assert np.abs(right - array).max(axis=(1, 2)).tolist() < (np.abs(array).max(axis=(1, 2)) / 50).tolist()
    half = decode(encode(array))
    assert half.dtype == np.float16
    assert (half == right.astype(np.float16)).all()
    last = np.moveaxis(array, 0, -1)
    assert (decode(encode(last), dtype="float32") == np.moveaxis(right, 0, -1)).all()
    assert (decode(encode(last), dtype="float32", channels="first") == right).all()
    assert (decode(encode(array), dtype="float32", channels="last") == np.moveaxis(right, 0, -1)).all()
    assert (decode(encode(array[0]), dtype="float32") == right[0]).all()
    assert (decode(encode(array), dtype="float32", threads=3) == right).all()


def test_the_bound_is_kept() -> None:
    array = fields()
    back = decode(encode(array, max_relative_error=0.01), dtype="float32")
    assert (np.abs(back - array) <= 0.01 * np.abs(array)).all()


def test_channels_of_their_own_scale() -> None:
    array = fields()
    shift, scale = array.mean((1, 2)), 1 / array.std((1, 2))
    back = decode(encode(array), dtype="float32", shift=shift, scale=scale)
    right = (decode(encode(array), dtype="float32") - shift[:, None, None]) * scale[:, None, None]
    assert (back == right).all()


def test_what_float16_cannot_hold_is_not_lost_in_silence() -> None:
    array = fields() * np.float32(100)
    with pytest.raises(CodecError, match=r"channel 3 has values from -.* which float16 cannot hold"):
        decode(encode(array))
    assert np.isfinite(decode(encode(array), dtype="float32")).all()
    assert np.isfinite(decode(encode(array), scale=0.01)).all()
    counts = volume()
    counts[0, 0, 0, 0] = 30000
    assert decode(encode(counts), **LOG).dtype == np.float16
    with pytest.raises(CodecError, match="do not fit float16"):
        decode(encode(counts), dtype="float16", scale=3.0)


def test_values_that_are_not_finite_stay_what_they_were() -> None:
    array = fields()
    array[1, 3, 5], array[1, 4, 6], array[2, 0, 0] = np.nan, np.inf, -np.inf
    array[3] = np.nan
    back = decode(encode(array), dtype="float32")
    lines = ~np.isfinite(array).all(axis=2)
    assert (back[lines].view(np.uint32) == array[lines].view(np.uint32)).all()
    assert np.isfinite(back[~lines]).all()
    half = decode(encode(array))
    assert (np.isnan(half) == np.isnan(array)).all()


def test_logarithms_that_do_not_exist_are_refused() -> None:
    with pytest.raises(CodecError, match="log1p of values down to"):
        decode(encode(fields()), **LOG)
    array = np.abs(fields())
    assert np.abs(decode(encode(array), dtype="float32", **LOG) - np.log1p(array)).mean() < 0.01


@pytest.mark.parametrize(
    "label",
    [
        np.array([0.3, 0.8, -0.0, np.nan]),
        np.zeros((20, 96), np.int64),
        np.repeat(np.arange(5, dtype=np.uint8), 77).reshape(5, 77),
        np.float32(3.25),
        np.zeros((0, 3), np.int8),
        np.array([[True, False]] * 40),
        np.random.default_rng(0).standard_normal((3, 7)).T,
    ],
)
def test_labels_are_kept_as_they_are(label: Any) -> None:
    label = np.asarray(label)
    found = decode_all(encode(volume(), name="universe", beside={"label": label}), WantedOutput(**LOG))
    assert list(found) == ["universe", "label"]
    assert found["universe"].dtype == np.float16
    assert found["label"].dtype == label.dtype
    assert found["label"].shape == label.shape
    assert found["label"].tobytes() == label.tobytes()


def test_maps_of_classes_take_little() -> None:
    label = np.zeros((768, 1152), np.int64)
    label[100:200, 300:500] = 2
    assert len(encode(label, "plain")) < label.nbytes / 500


@given(hnp.arrays(st.sampled_from([np.uint8, np.int32, np.float32, np.float64]), hnp.array_shapes(min_side=0)))
@settings(deadline=None)
def test_plain_keeps_every_bit(array: Any) -> None:
    assert decode(encode(array, "plain")).tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("array", "codec", "words"),
    [
        (np.full((4, 4), -3), "auto", "negative counts"),
        (np.zeros((3, 3), int), "auto", "groups of 4 counts"),
        (np.zeros((8, 8)), "auto", "these are float64"),
        (np.zeros((8, 8), complex), "auto", "no codec for values of complex128"),
        (np.array(["a"]), "plain", "cannot be kept"),
        (np.zeros((4, 4), np.longdouble), "plain", "cannot be kept"),
        (np.zeros((4, 4), np.float32), "cosmoflow", "these are float32"),
        (np.zeros((4, 4), int), "deepcam", "these are int64"),
        (np.float32(1), "deepcam", r"the shape is \(\)"),
        (np.zeros((4, 4), int), "zip", "'zip' is not known; this version of hfs has cosmoflow, deepcam, plain"),
    ],
)
def test_what_cannot_be_encoded(array: Any, codec: str, words: str) -> None:
    with pytest.raises(CodecError, match=words):
        encode(array, codec)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"dtype": "float64"}, "float16 and float32"),
        ({"op": "sqrt"}, "log1p"),
        ({"channels": "middle"}, "neither"),
        ({"threads": 0}, "1 or more"),
    ],
)
def test_what_cannot_be_asked_for(asked: Any, words: str) -> None:
    with pytest.raises(CodecError, match=words):
        decode(encode(volume()), **asked)


def test_options_of_another_codec_are_refused() -> None:
    with pytest.raises(CodecError, match="lossless and knows no max_relative_error"):
        encode(volume(), max_relative_error=0.1)
    with pytest.raises(CodecError, match="two arrays are called"):
        encode(volume(), beside={"data": np.zeros(3)})


def test_a_data_set(tmp_path: Path) -> None:
    for number in range(3):
        label = np.array([number, 0.5])
        (tmp_path / f"{number}.hfsc").write_bytes(encode(volume(number), name="x", beside={"y": label}))
    (tmp_path / "other.txt").write_text("not a sample")
    found = EncodedDataset(tmp_path, WantedOutput(op="log1p"))
    assert len(found) == 3
    array, label = found[2]
    assert array.dtype == np.float16
    assert (array == np.log1p(volume(2), dtype=np.float32).astype(np.float16)).all()
    assert label.tolist() == [2, 0.5]
    # What is not wanted is not decoded: with this scale the other array would be refused.
    assert EncodedDataset(tmp_path, WantedOutput(scale=1e9), arrays=["y"])[1].tolist() == [1, 0.5]
    assert (EncodedDataset([tmp_path / "1.hfsc"])[0][0] == volume(1)).all()
    with pytest.raises(IndexError):
        found[3]
    with pytest.raises(CodecError, match=r"0.hfsc: has no array 'z'; it has x, y"):
        EncodedDataset(tmp_path, arrays=["z"])[0]
    (tmp_path / "0.hfsc").write_bytes((tmp_path / "0.hfsc").read_bytes()[:-1])
    with pytest.raises(CodecError, match=r"0.hfsc: .* cut short"):
        found[0]
    (tmp_path / "1.hfsc").unlink()
    with pytest.raises(CodecError, match=r"1.hfsc: cannot be read \(No such file"):
        found[1]


def test_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(CodecError, match=r"has no .hfsc files; `hfs encode` makes them"):
        EncodedDataset(tmp_path)
    with pytest.raises(CodecError, match="cannot be listed"):
        EncodedDataset(tmp_path / "missing")


def test_numpy_alone_reads_a_container() -> None:
    data = encode(volume())
    assert data[:8] == MAGIC
    head_bytes = int.from_bytes(data[12:16], "little")
    head = json.loads(data[32 : 32 + head_bytes])
    parts = {
        part["name"]: np.frombuffer(
            data, part["dtype"], math.prod(part["shape"]), 32 + head_bytes + part["offset"]
        ).reshape(part["shape"])
        for part in head["arrays"][0]["parts"]
    }
    keys = parts["keys8"] if len(parts["keys8"]) else parts["keys16"]
    assert (parts["entries"][keys].reshape(head["arrays"][0]["shape"]) == volume()).all()


def test_parts_lie_where_vector_units_like_them() -> None:
    data = encode(fields())
    start = np.frombuffer(data, np.uint8).ctypes.data
    assert all((part.ctypes.data - start) % 64 == 0 for part in unpack(data)[0].parts.values() if part.size)


def test_the_logarithms_are_not_taken_again_for_each_sample() -> None:
    module = importlib.import_module("hfs.codecs.cosmoflow")
    assert module._log1p() is module._log1p()
