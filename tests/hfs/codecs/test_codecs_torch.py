"""Tensors: the same bits as NumPy gives, by the code for devices on the CPU and, where there is one, on a GPU."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfs.codecs import CodecError, EncodedDataset, decode_all, encode
from hfs.codecs import decode as decode_buffer
from hfs.codecs.codec import WantedOutput, find_codec
from hfs.codecs.sample import unpack
from hfs.policies.codecs import cosmoflow as kernel
from tests.hfs.codecs.codec_samples import fields, volume
from tests.support.late_module import LateModule

torch = LateModule("torch")

# The drivers of NVIDIA, AMD and of Windows below Linux: without one it is not worth asking torch, which takes seconds.
MAY_HAVE_GPU = any(map(os.path.exists, ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")))
DEVICES = ["cpu", *(["cuda"] if MAY_HAVE_GPU and torch.cuda.is_available() else [])]
each_device = pytest.mark.parametrize("device", DEVICES)


def decode(data: bytes, device: str | None = None, **asked: Any) -> Any:
    """On any device by the code that is for GPUs: asked for "cpu", `hfs.codecs.decode` takes that of NumPy."""
    if device is None:
        return decode_buffer(data, **asked)
    entry = unpack(data)[0]
    return find_codec(entry.codec).decode_torch(entry, WantedOutput(**asked), torch, torch.device(device))


def same(tensor: Any, array: Any) -> bool:
    found = tensor.cpu().numpy()
    return (
        found.shape == array.shape
        and (found.dtype == array.dtype or array.dtype == np.uint16)
        and bool((np.nan_to_num(found) == np.nan_to_num(array)).all())
    )


@each_device
@pytest.mark.parametrize("asked", [{}, {"op": "log1p"}, {"dtype": "float32", "scale": 3.0, "shift": 1.0}])
@pytest.mark.parametrize("channels", [None, "first"])
@pytest.mark.parametrize("dtype", [np.int16, np.uint16])
def test_counts(device: str, asked: Any, channels: Any, dtype: Any) -> None:
    data = encode(volume(dtype=dtype))
    found = decode(data, device=device, channels=channels, **asked)
    assert found.device.type == device
    assert same(found, decode(data, channels=channels, **asked))


@each_device
@pytest.mark.parametrize("channels", ["first", "last"])
def test_several_tables_and_groups_a_voxel(device: str, channels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "MOST_GROUPS", 500)
    array = np.concatenate([volume(seed) for seed in range(3)], axis=-1)
    array[3:7] = np.random.default_rng(0).integers(0, 5000, array[3:7].shape)
    data = encode(array)
    assert same(decode(data, device=device, channels=channels, op="log1p"), decode(data, channels=channels, op="log1p"))


@each_device
@pytest.mark.parametrize("bound", [None, 0.02])
@pytest.mark.parametrize("asked", [{}, {"dtype": "float32"}, {"scale": 0.5, "shift": [1, 2, 3, 4], "channels": "last"}])
def test_fields(device: str, bound: float | None, asked: Any) -> None:
    array = fields()
    array[1, 3, 5] = np.nan
    array[2] = 4.5
    data = encode(array, max_relative_error=bound)
    assert same(decode(data, device=device, **asked), decode(data, **asked))


@each_device
@pytest.mark.parametrize("array", [np.full((2, 64), np.nan, np.float32), np.ones((2, 64), np.float32)])
def test_lines_of_one_kind(device: str, array: Any) -> None:
    data = encode(array)
    assert same(decode(data, device=device), decode(data))


@each_device
def test_a_logarithm_of_fields(device: str) -> None:
    data = encode(np.abs(fields()))
    found = decode(data, device=device, op="log1p", dtype="float32").cpu()
    assert torch.allclose(found, torch.from_numpy(decode(data, op="log1p", dtype="float32")))


@pytest.mark.parametrize("asked", [{}, {"op": "log1p"}])
@pytest.mark.parametrize("dtype", [np.int16, np.uint16])
def test_tensors_on_the_cpu_are_those_of_numpy(asked: Any, dtype: Any) -> None:
    data = encode(volume(dtype=dtype))
    assert same(decode_buffer(data, device="cpu", **asked), decode_buffer(data, **asked))


@pytest.mark.parametrize("device", ["nowhere", "cuda:4711"])
def test_a_device_that_is_not_there(device: str) -> None:
    with pytest.raises(CodecError, match=f"device='{device}' cannot be used here"):
        decode_buffer(encode(volume()), device=device)


@each_device
def test_labels_come_along(device: str) -> None:
    found = decode_all(encode(volume(), beside={"y": np.array([1.5, 2])}), device=device)
    assert found["y"].device.type == device
    assert found["y"].tolist() == [1.5, 2]


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_loader_with_workers(tmp_path: Path, context: str) -> None:
    for number in range(4):
        (tmp_path / f"{number}.hfsc").write_bytes(encode(volume(number), beside={"y": np.array([number])}))
    loader = torch.utils.data.DataLoader(
        EncodedDataset(tmp_path, WantedOutput(op="log1p", threads=2)),
        batch_size=2,
        num_workers=1,
        multiprocessing_context=context,
    )
    batches = list(loader)
    assert [batch[1].flatten().tolist() for batch in batches] == [[0, 1], [2, 3]]
    assert batches[0][0].dtype == torch.float16
