"""The lossy codec of smooth fields: layouts, scaling, threads and tensors.

The kernel and what the parts mean: policies/codecs/deepcam.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from hfs.codecs.codec import (
    Array,
    Codec,
    CodecError,
    Device,
    SampleEntry,
    Tensor,
    Torch,
    WantedOutput,
    in_threads,
    to_device,
)
from hfs.policies.codecs import Unencodable
from hfs.policies.codecs import deepcam as kernel
from hfs.policies.codecs.deepcam import CONSTANT, RAW, UNITS, Lines
from hfs.policies.codecs.deepcam_encoding import encode

_PARTS = tuple(field.name for field in fields(Lines) if field.name != "length")

_STEP = 256
"""Lines that a thread takes at least: a millisecond."""


class Deepcam(Codec):
    """parameters:

    channels      "first", "last" or null: lines lie along the last axis that is not that of the channels, and come in
                  the order of the array with its channels first
    length        values of a line
    least, most   of the finite values of each channel, before encoding: what float16 must hold is known without looking
    max_relative_error
    """

    name = "deepcam"
    lossless = False

    def encode(self, array: Array, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Array]]:
        if unknown := options.keys() - {"channels", "max_relative_error"}:
            raise CodecError(f"deepcam knows no {', '.join(sorted(unknown))}")
        if not array.ndim or not array.size:
            raise CodecError(f"lines of values are needed, and the shape is {array.shape}")
        channels = options.get("channels") or _axis(array)
        if channels not in {"first", "last", None} or (channels and array.ndim < 3):
            raise CodecError(f"channels: {channels!r} is not possible for the shape {array.shape}")
        first = np.moveaxis(array, -1, 0) if channels == "last" else array
        bound = options.get("max_relative_error")
        values = first.reshape(-1, first.shape[-1])
        lines = encode(values, bound)
        by_channel = np.asarray(first, np.float32).reshape(first.shape[0] if channels else 1, -1)
        finite = np.isfinite(by_channel)
        parameters: dict[str, Any] = {
            "channels": channels,
            "length": lines.length,
            "least": np.min(by_channel, axis=1, where=finite, initial=np.float32(np.inf)),
            "most": np.max(by_channel, axis=1, where=finite, initial=np.float32(-np.inf)),
            "max_relative_error": bound,
        }
        for name in ("least", "most"):  # a channel without a finite value
            found = np.where(np.isfinite(parameters[name]), parameters[name], 0)
            parameters[name] = [float(value) for value in found]
        return parameters, {name: getattr(lines, name) for name in _PARTS}

    def decode(self, entry: SampleEntry, wanted: WantedOutput) -> Array:
        lines, target, dtype, scale, shift = _parts(entry, wanted)
        out = np.empty((len(lines.segments), lines.length), dtype)
        offsets = lines.offsets()

        def work(begin: int, end: int) -> None:
            kernel.decode(lines, offsets, out, begin, end, scale, shift, log1p=wanted.op == "log1p")

        in_threads(work, len(out), _STEP, wanted.threads)
        found = out.reshape(_first(entry))
        return np.ascontiguousarray(np.moveaxis(found, 0, -1)) if target == "last" else found

    def decode_torch(self, entry: SampleEntry, wanted: WantedOutput, torch: Torch, device: Device) -> Tensor:
        lines, target, dtype, scale, shift = _parts(entry, wanted)
        values = _lines_torch(lines, torch, device)
        if wanted.op == "log1p":
            values.log1p_()
        if shift is not None:
            values -= to_device(shift, torch, device)[:, None]
        if scale is not None:
            values *= to_device(scale, torch, device)[:, None]
        found = values.to(getattr(torch, dtype.name)).reshape(_first(entry))
        return found.movedim(0, -1).contiguous() if target == "last" else found


def _axis(array: Array) -> str | None:
    """Channels are the shorter end of a shape of three or more axes."""
    if array.ndim < 3:
        return None
    return "last" if array.shape[-1] < array.shape[0] else "first"


def _first(entry: SampleEntry) -> tuple[int, ...]:
    """The shape with the channels first."""
    return (entry.shape[-1], *entry.shape[:-1]) if entry.parameters["channels"] == "last" else entry.shape


def _parts(
    entry: SampleEntry, wanted: WantedOutput
) -> tuple[Lines, str | None, np.dtype[Any], Array | None, Array | None]:
    """The lines, where the channels are to be, the type of the output, scale and shift of each line, if any.

    Raises Unencodable or CodecError.
    """
    lines = Lines(int(entry.parameters["length"]), **{name: entry.parts[name] for name in _PARTS})
    channels = entry.parameters["channels"]
    shape = _first(entry)
    if channels not in {"first", "last", None}:
        raise Unencodable(f"channels are said to be {channels!r}")
    if len(lines.segments) * lines.length != math.prod(entry.shape) or not shape or shape[-1] != lines.length:
        raise Unencodable(f"other lines than its shape {entry.shape} has")
    lines.check()
    if channels is None and wanted.channels is not None:
        raise CodecError(f"{entry.name}: encoded without channels, so they cannot be moved")
    dtype = np.dtype(wanted.dtype or "float16")
    ends = np.array([entry.parameters["least"], entry.parameters["most"]], np.float32)
    if wanted.op == "log1p":
        if ends[0].min() <= -1:
            raise CodecError(f"{entry.name}: log1p of values down to {ends[0].min():g} has no result")
        ends = np.log1p(ends)
    count = shape[0] if channels else 1
    scale, shift = wanted.by_channel(count)
    if ends.shape != (2, count):
        raise Unencodable("other limits than its channels have")
    with np.errstate(over="ignore"):
        # A decoded value may lie a little outside what was encoded.
        ends = (ends - shift) * scale
        beyond = ~np.isfinite((ends * np.float32(1.01)).astype(dtype))
    if beyond.any() and dtype == np.float16:
        channel = int(np.flatnonzero(beyond.any(axis=0))[0])
        raise CodecError(
            f"{entry.name}: channel {channel} has values from {ends[0, channel]:g} to {ends[1, channel]:g}, "
            "which float16 cannot hold: ask for float32, or give scale and shift"
        )
    a_channel = len(lines.segments) // count
    return (
        lines,
        wanted.channels or channels,
        dtype,
        np.repeat(scale, a_channel) if (scale != 1).any() else None,
        np.repeat(shift, a_channel) if (shift != 0).any() else None,
    )


def _lines_torch(lines: Lines, torch: Torch, device: Device) -> Tensor:
    """All lines as float32, on the device: the kernel's steps, each one operation for the whole sample."""
    count, length = len(lines.segments), lines.length
    plain = lines.segments == RAW
    coded = count - int(plain.sum())
    values = torch.empty((count, length), dtype=torch.float32, device=device)
    if coded:
        constant = lines.exponents == CONSTANT
        lengths_host = lines.lengths()
        lengths = to_device(lengths_host, torch, device)
        codes = to_device(lines.codes, torch, device)
        if constant.any():
            spread = torch.zeros(coded * length, dtype=torch.uint8, device=device)
            differ = torch.repeat_interleave(to_device(~constant, torch, device), lengths, output_size=coded * length)
            codes = spread.masked_scatter_(differ, codes)
        units = to_device(UNITS, torch, device)
        sums = units.index_select(0, codes.to(torch.int32)).view(coded, length)
        sums = torch.cumsum(sums, 1, dtype=torch.int32)
        unit = np.ldexp(np.float32(1), np.where(constant, 0, lines.exponents).astype(np.int32)).astype(np.float32)
        unit, heads = to_device(unit, torch, device), to_device(lines.heads, torch, device)
        if len(unit) == coded:  # one segment a line
            found = sums.to(torch.float32).mul_(unit[:, None]).add_(heads[:, None])
        else:

            def spread_out(of: Tensor) -> Tensor:
                return torch.repeat_interleave(of, lengths, output_size=coded * length)

            flat = sums.view(-1)
            begins = to_device(np.cumsum(lengths_host) - lengths_host, torch, device)
            flat = (flat - spread_out(flat[begins])).to(torch.float32)
            found = flat.mul_(spread_out(unit)).add_(spread_out(heads)).view(coded, length)
        if coded == count:
            values = found
        else:
            values[to_device(~plain, torch, device)] = found
    if coded < count:
        values[to_device(plain, torch, device)] = to_device(lines.raw, torch, device)
    if len(lines.patch_values):
        rows = to_device(np.repeat(np.arange(count), lines.patches), torch, device)
        columns = to_device(lines.patch_columns, torch, device)
        values[rows, columns.to(torch.int64)] = to_device(lines.patch_values, torch, device)
    return values


CODEC = Deepcam()
