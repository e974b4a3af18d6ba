"""Samples to containers and back: the functions people call.

A sample is one array that is worth encoding, and what belongs to it: labels and the like, which are kept lossless as
they are (codec `plain`).
"""

from __future__ import annotations

import importlib
import json
import math
import struct
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import xxhash

from hfs.codecs.codec import (
    Array,
    Buffer,
    CodecError,
    Decoded,
    Device,
    SampleEntry,
    Torch,
    WantedOutput,
    choose_codec,
    find_codec,
    to_device,
)
from hfs.policies.codecs import Unencodable

MAIN = "data"
"""Name of the encoded array where the caller gives none."""

_MAX_UNASKED_BYTES = 256 * 1024**2
"""A few bytes may honestly stand for a mask of one value: DeepCAM's have 7 MB (768 x 1152 numbers of 8 bytes)."""
_MAX_FOLD = 64
"""Of larger samples. A quarter of the size is what encoding them gives as a rule."""


MAGIC = b"HFSC\r\n\x1a\n"
FORMAT_VERSION = 1

_HEAD = struct.Struct("<8sIIQQ")
_CHECKSUM_AT = 24
_ALIGNMENT = 64
"""A cache line, and more than any load of a vector unit asks for."""

_MAX_HEAD_BYTES = 1024**2
"""Thousands of arrays. JSON takes fifty times its size once it is read."""

_DTYPES = {f"{order}{kind}{size}" for kind in "iuf" for size in (1, 2, 4, 8) for order in ("<", "|")} | {"|b1"}


def pack(entries: Sequence[SampleEntry]) -> bytes:
    """The file of an encoded sample, `.hfsc`: a header that says what is in it, and the parts.

    All numbers are little-endian:

        offset  bytes
        0       8       the magic: "HFSC", 13, 10, 26, 10 (a transfer as text would change it)
        8       4       version of the format: 1
        12      4       H, bytes of the header; a multiple of 32, so that the parts begin at one of 64
        16      8       bytes of the whole file
        24      8       xxh3 (64 bits, seed 0) of bytes 0 to 24 followed by bytes 32 to the end
        32      H       the header: JSON in UTF-8, filled up with spaces
        32 + H          the parts; each begins at a multiple of 64 and is filled up with zeros

        {"arrays": [{"name": "data", "codec": "cosmoflow", "version": 1, "shape": [128, 128, 128, 4], "dtype": "<i2",
                     "parameters": {...},
                     "parts": [{"name": "keys16", "dtype": "<u2", "shape": [2097152], "offset": 295616}, ...]}, ...]}

    The offset of a part counts from 32 + H. NumPy alone reads one:

        head = json.loads(data[32 : 32 + H])
        part = head["arrays"][0]["parts"][0]
        np.frombuffer(data, part["dtype"], math.prod(part["shape"]), 32 + H + part["offset"]).reshape(part["shape"])

    What the parts mean is told in policies/codecs/cosmoflow.py (`Tables`) and policies/codecs/deepcam.py (`Lines`).

    Knows no codec, opens no file.

    The container of these arrays.
    """
    arrays: list[dict[str, Any]] = []
    pieces: list[bytes] = []
    at = 0
    for entry in entries:
        parts = []
        for name, part in entry.parts.items():
            data = np.ascontiguousarray(part, _little(part.dtype)).tobytes()
            parts.append({"name": name, "dtype": _little(part.dtype).str, "shape": part.shape, "offset": at})
            fill = -len(data) % _ALIGNMENT
            pieces += [data, bytes(fill)]
            at += len(data) + fill
        said = {"name": entry.name, "codec": entry.codec, "version": entry.version, "shape": entry.shape}
        arrays.append({**said, "dtype": entry.dtype.str, "parameters": dict(entry.parameters), "parts": parts})
    head = json.dumps({"arrays": arrays}, separators=(",", ":"), allow_nan=False).encode()
    if len(head) > _MAX_HEAD_BYTES - _ALIGNMENT:
        raise CodecError(f"{len(entries)} arrays are too many for one sample")
    head += b" " * (-(_HEAD.size + len(head)) % _ALIGNMENT)
    total = _HEAD.size + len(head) + at
    start = _HEAD.pack(MAGIC, FORMAT_VERSION, len(head), total, 0)[:_CHECKSUM_AT]
    body = b"".join([head, *pieces])
    return start + _checksum(start, body).to_bytes(8, "little") + body


def unpack(buffer: Buffer, *, verify: bool = True) -> list[SampleEntry]:
    """The arrays of a container, their parts where they lie in `buffer` (anything with the buffer protocol).

    verify  compare the checksum: 1 ms for 10 MB. Raises CodecError.
    """
    data = memoryview(buffer).cast("B")
    if len(data) < _HEAD.size or data[: len(MAGIC)] != MAGIC:
        raise CodecError("not an encoded sample (.hfsc), or cut short")
    _, version, head_bytes, total, checksum = _HEAD.unpack_from(data)
    if version > FORMAT_VERSION:
        raise CodecError(
            f"written in version {version} of the container, and this version of hfs reads up to {FORMAT_VERSION}: "
            "install a newer hfs"
        )
    if len(data) != total:
        raise CodecError(f"{len(data):,} bytes of an encoded sample of {total:,}: cut short, or not one sample")
    if verify and _checksum(data[:_CHECKSUM_AT], data[_HEAD.size :]) != checksum:
        raise CodecError("wrong checksum: bytes have changed since it was encoded; encode it again from its source")
    begin = _HEAD.size + head_bytes
    if head_bytes > _MAX_HEAD_BYTES:
        raise CodecError(f"its header has {head_bytes:,} bytes; at most {_MAX_HEAD_BYTES:,} are believed")
    try:
        arrays = json.loads(bytes(data[_HEAD.size : begin]))["arrays"]
        entries = [_entry(said, data[begin:]) for said in arrays]
        _refuse_overlaps([part for said in arrays for part in said["parts"]])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CodecError(f"its header is damaged ({error}); encode it again from its source") from None
    if not entries:
        raise CodecError("there is no array in it")
    return entries


def _entry(said: dict[str, Any], body: memoryview) -> SampleEntry:
    """Raises ValueError, KeyError or TypeError."""
    return SampleEntry(
        str(said["name"]),
        str(said["codec"]),
        int(said["version"]),
        _shape(said["shape"]),
        _dtype(said["dtype"]),
        dict(said["parameters"]),
        {str(part["name"]): _part(part, body) for part in said["parts"]},
    )


def _part(said: dict[str, Any], body: memoryview) -> Array:
    shape, dtype, offset = _shape(said["shape"]), _dtype(said["dtype"]), int(said["offset"])
    count = math.prod(shape)
    if offset < 0 or offset % _ALIGNMENT or offset + count * dtype.itemsize > len(body):
        raise ValueError(f"part {said['name']} lies outside")
    if not count:
        return np.empty(shape, dtype)
    return np.frombuffer(body, dtype, count, offset).reshape(shape)


def _refuse_overlaps(said: Sequence[dict[str, Any]]) -> None:
    """Each part has its own bytes: else a small file could have the same ones decoded any number of times."""
    places = sorted(
        (int(part["offset"]), math.prod(_shape(part["shape"])) * _dtype(part["dtype"]).itemsize) for part in said
    )
    for (offset, size), (following, _) in pairwise([place for place in places if place[1]]):
        if offset + size > following:
            raise ValueError(f"two parts share the bytes at {following}")


def _shape(said: Sequence[int]) -> tuple[int, ...]:
    shape = tuple(int(axis) for axis in said)
    if any(axis < 0 for axis in shape):
        raise ValueError(f"shape {shape}")
    return shape


def _dtype(said: str) -> np.dtype[Any]:
    if said not in _DTYPES:
        raise ValueError(f"dtype {said!r}")
    return np.dtype(said)


def _little(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype.newbyteorder("<")


def _checksum(start: bytes | memoryview, body: bytes | memoryview) -> int:
    state = xxhash.xxh3_64(start)
    state.update(body)
    return int(state.intdigest())


def encode(
    data: Array,
    codec: str = "auto",
    *,
    name: str = MAIN,
    beside: Mapping[str, Array] | None = None,
    **options: Any,
) -> bytes:
    """The container (the bytes of an .hfsc file) of one sample.

    codec    cosmoflow (lossless, counts), deepcam (lossy, floats), plain, or auto: by the type of the values
    name     of the array, beside those of `beside`
    beside   labels and the like: lossless
    options  channels="first" | "last": where the channels are (by default the shorter end that fits);
             max_relative_error=0.01: a bound for deepcam

    Raises CodecError.
    """
    others = {} if beside is None else dict(beside)
    if name in others:
        raise CodecError(f"two arrays are called {name!r}")
    entries = [encode_entry(name, data, codec, options)]
    entries += [encode_entry(other, np.asarray(array), "plain", {}) for other, array in others.items()]
    return pack(entries)


def encode_entry(name: str, array: Array, codec: str, options: Mapping[str, Any]) -> SampleEntry:
    """One array. Raises CodecError."""
    chosen = choose_codec(codec, array)
    given = {key: value for key, value in options.items() if value is not None}
    try:
        parameters, parts = chosen.encode(array, given)
    except Unencodable as error:
        raise CodecError(f"{name}: {error}") from None
    dtype = array.dtype.newbyteorder("<")
    return SampleEntry(name, chosen.name, chosen.version, array.shape, dtype, parameters, parts)


def decode(
    buffer: Buffer,
    *,
    device: Device = None,
    dtype: str | None = None,
    op: Literal["log1p"] | None = None,
    scale: float | Sequence[float] = 1.0,
    shift: float | Sequence[float] = 0.0,
    channels: Literal["first", "last"] | None = None,
    threads: int = 1,
    verify: bool = True,
    max_bytes: int | None = None,
) -> Decoded:
    """The sample in `buffer` (bytes, a memoryview, a mapped file): (op(value) - shift) * scale.

    device    None: a NumPy array; "cpu", "cuda", a torch.device: a tensor there, decoded there
    verify    compare the checksum first
    For the others see `WantedOutput`. Raises CodecError.
    """
    wanted = WantedOutput(dtype, op, scale, shift, channels, threads, max_bytes)
    entry = unpack(buffer, verify=verify)[0]
    check_size([entry], wanted)
    return decode_entry(entry, wanted, device)


def decode_all(
    buffer: Buffer, wanted: WantedOutput | None = None, device: Device = None, *, verify: bool = True
) -> dict[str, Decoded]:
    """All arrays of the sample by name: the first as wanted, those beside it as they were. Raises CodecError."""
    asked = WantedOutput() if wanted is None else wanted
    entries = unpack(buffer, verify=verify)
    check_size(entries, asked)
    return {
        entry.name: decode_entry(entry, asked if number == 0 else WantedOutput(), device)
        for number, entry in enumerate(entries)
    }


def check_size(entries: Sequence[SampleEntry], wanted: WantedOutput) -> None:
    """Raise CodecError if these would take more memory than their file can be believed to stand for.

    To be asked before any of them is decoded: the shapes are the file's word, and a few bytes of runs or of constant
    lines stand for thousands.
    """
    made_bytes = sum(max(entry.raw_bytes, 4 * math.prod(entry.shape)) for entry in entries)
    parts_bytes = sum(entry.encoded_bytes for entry in entries)
    limit_bytes = wanted.max_bytes
    if limit_bytes is None:
        limit_bytes = max(_MAX_UNASKED_BYTES, _MAX_FOLD * parts_bytes)
    if made_bytes > limit_bytes:
        names = ", ".join(repr(entry.name) for entry in entries[:3])
        raise CodecError(
            f"{names}: {parts_bytes:,} bytes that would become {made_bytes:,}; more than {limit_bytes:,} are not "
            f"decoded unless max_bytes={made_bytes} says that they are meant"
        )


def decode_entry(entry: SampleEntry, wanted: WantedOutput, device: Device = None) -> Decoded:
    """One array. Raises CodecError."""
    codec = find_codec(entry.codec, entry.version)
    torch, place = (None, None) if device is None else _usable(device)
    try:
        if place is None:
            return codec.decode(entry, wanted)
        if place.type == "cpu":
            # NumPy's kernels work in pieces that stay in the processor's cache: ten times as fast as whole tensors.
            return to_device(codec.decode(entry, wanted), torch, place)
        return codec.decode_torch(entry, wanted, torch, place)
    except Unencodable as error:
        raise CodecError(f"{entry.name}: its parts are damaged ({error})") from None
    except (ValueError, TypeError, LookupError, OverflowError, MemoryError) as error:
        raise CodecError(f"{entry.name}: its header is damaged ({error}); encode it again from its source") from error


def _usable(device: Device) -> tuple[Torch, Any]:
    """torch, and its device of this name. Raises CodecError."""
    try:
        torch = importlib.import_module("torch")
        place = torch.device(device)
        torch.empty(0, device=place)  # else what is missing shows only in the middle, and not by an error of ours
    except ImportError:
        raise CodecError(f"device={device!r} needs PyTorch; without device= arrays are given") from None
    except (RuntimeError, AssertionError, TypeError) as error:
        first_line = str(error).partition("\n")[0]
        raise CodecError(f"device={device!r} cannot be used here ({first_line})") from None
    return torch, place
