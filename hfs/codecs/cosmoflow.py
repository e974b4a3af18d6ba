"""The lossless codec of volumes of counts: layouts, the preprocessing of its tables, threads and tensors.

The kernel and what the parts mean: policies/codecs/cosmoflow.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

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
from hfs.policies.codecs import cosmoflow as kernel
from hfs.policies.codecs.cosmoflow import GROUP, Tables

_STEP = 1 << 16
"""Voxels that a thread takes at least: half a millisecond."""


@cache
def _log1p() -> npt.NDArray[np.float32]:
    """log(1 + count) of every count: taken once, so that a sample takes no logarithm at all, on no device."""
    return np.log1p(np.arange(2**16, dtype=np.float32))


class Cosmoflow(Codec):
    """parameters: channels, "first" or "last": the axis of the redshifts, a multiple of four."""

    name = "cosmoflow"
    lossless = True

    def encode(self, array: Array, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Array]]:
        if unknown := options.keys() - {"channels"}:
            raise CodecError(f"cosmoflow is lossless and knows no {', '.join(sorted(unknown))}")
        channels = options.get("channels") or _axis(array)
        if channels not in {"first", "last"}:
            raise CodecError(f"channels: {channels!r} is neither 'first' nor 'last'")
        last = array if channels == "last" else np.moveaxis(array, 0, -1) if array.ndim else array
        tables = kernel.encode(last)
        return {"channels": channels}, {field.name: getattr(tables, field.name) for field in fields(Tables)}

    def decode(self, entry: SampleEntry, wanted: WantedOutput) -> Array:
        tables, values, channels = _parts(entry, wanted)
        voxels = tables.groups * GROUP // channels
        first = _target(entry, wanted) == "first"
        out = np.empty((channels, voxels) if first else (voxels, channels), values.dtype)
        a_voxel = channels // GROUP

        def work(begin: int, end: int) -> None:
            kernel.decode(tables, values, out, begin * a_voxel, end * a_voxel, channels, channels_first=first)

        in_threads(work, voxels, _STEP, wanted.threads)
        return out.reshape(_shape(entry, first=first))

    def decode_torch(self, entry: SampleEntry, wanted: WantedOutput, torch: Torch, device: Device) -> Tensor:
        tables, values, channels = _parts(entry, wanted)
        if wanted.dtype is None and wanted.as_it_was and values.dtype == np.uint16:
            values = values.astype(np.int32)
        table = to_device(values, torch, device)
        keys = [
            torch.arange(part.start, part.stop, dtype=torch.int32, device=device)
            if found is None
            else to_device(found, torch, device).to(torch.int32) + part.start
            for _, part, found in kernel.blocks(tables)
        ]
        of = keys[0] if len(keys) == 1 else torch.cat(keys)
        first = _target(entry, wanted) == "first"
        if not first:
            return table.index_select(0, of).reshape(_shape(entry, first=False))
        columns, groups = table.t().contiguous(), of.view(-1, channels // GROUP)
        found = [columns.index_select(1, groups[:, group].contiguous()) for group in range(channels // GROUP)]
        return (found[0] if len(found) == 1 else torch.cat(found)).reshape(_shape(entry, first=True))


def _axis(array: Array) -> str:
    """The shorter end of the shape whose length is a multiple of four."""
    first, last = (array.shape[end] if array.ndim else 0 for end in (0, -1))
    return "first" if first and first % GROUP == 0 and (last % GROUP or first < last) else "last"


def _target(entry: SampleEntry, wanted: WantedOutput) -> str:
    return wanted.channels or str(entry.parameters["channels"])


def _shape(entry: SampleEntry, *, first: bool) -> tuple[int, ...]:
    """With the channels where they are wanted."""
    shape = entry.shape
    was_first = entry.parameters["channels"] == "first"
    channels, space = (shape[0], shape[1:]) if was_first else (shape[-1], shape[:-1])
    return (channels, *space) if first else (*space, channels)


def _parts(entry: SampleEntry, wanted: WantedOutput) -> tuple[Tables, Array, int]:
    """The tables, what stands for their entries, and the number of channels. Raises Unencodable or CodecError."""
    tables = Tables(**{field.name: entry.parts[field.name] for field in fields(Tables)})
    channels = _shape(entry, first=True)[0] if entry.shape else 0
    if entry.parameters["channels"] not in {"first", "last"}:
        raise Unencodable(f"channels are said to be {entry.parameters['channels']!r}")
    if not channels or channels % GROUP or tables.groups * GROUP != math.prod(entry.shape):
        raise Unencodable(f"other groups than its shape {entry.shape} has")
    tables.check()
    if wanted.dtype is None and wanted.as_it_was:
        return tables, tables.entries.astype(entry.dtype, copy=False), channels
    dtype = np.dtype(wanted.dtype or "float16")
    scale, shift = wanted.by_channel(channels)
    if channels > GROUP and (np.ptp(scale) or np.ptp(shift)):
        raise CodecError(f"{entry.name}: {channels} channels share tables of {GROUP}: one scale and shift for all")
    values = _log1p()[tables.entries] if wanted.op == "log1p" else tables.entries.astype(np.float32)
    if wanted.scaled:
        values = (values - shift[:GROUP]) * scale[:GROUP]
    with np.errstate(over="ignore"):
        found = values.astype(dtype)
    if not np.isfinite(found).all():
        raise CodecError(f"{entry.name}: values up to {values.max():g} do not fit {dtype}: ask for float32, or scale")
    return tables, found, channels


CODEC = Cosmoflow()
