"""Samples to containers and back: the functions people call.

A sample is one array that is worth encoding, and what belongs to it: labels and the like, which are kept lossless as
they are (codec `plain`).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

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
from hfs.codecs.container import pack, unpack
from hfs.policies.codecs import Unencodable

MAIN = "data"
"""Name of the encoded array where the caller gives none."""

_MAX_UNASKED_BYTES = 256 * 1024**2
"""A few bytes may honestly stand for a mask of one value: DeepCAM's have 7 MB (768 x 1152 numbers of 8 bytes)."""
_MAX_FOLD = 64
"""Of larger samples. A quarter of the size is what encoding them gives as a rule."""


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
