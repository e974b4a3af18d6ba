"""Arrays as they are, or as runs of equal values where that is smaller: labels, masks, what lies beside a sample."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from hfs.codecs.codec import Array, Codec, CodecError, SampleEntry, WantedOutput
from hfs.policies.codecs import Unencodable

_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class Plain(Codec):
    """Lossless, of numbers of any shape.

    parts: values, of the type of the array; and, if these are runs, lengths (uint32) of the same number.
    """

    name = "plain"
    lossless = True

    def encode(self, array: Array, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Array]]:
        if options:
            raise CodecError(f"plain: there is no option {', '.join(options)}")
        if array.dtype.kind not in "biuf" or array.dtype.itemsize not in _BITS:
            raise CodecError(f"values of {array.dtype} cannot be kept: numbers of up to 8 bytes can")
        flat = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1)
        bits = flat.view(_BITS[array.dtype.itemsize])  # NaN is NaN, and 0.0 is not -0.0
        begins = np.flatnonzero(np.append(True, bits[1:] != bits[:-1])) if len(flat) else np.empty(0, np.int64)
        if len(flat) < 2**32 and len(begins) * (array.dtype.itemsize + 4) < flat.nbytes:
            return {}, {"values": flat[begins], "lengths": np.diff(np.append(begins, len(flat))).astype(np.uint32)}
        return {}, {"values": flat}

    def decode(self, entry: SampleEntry, wanted: WantedOutput) -> Array:
        if wanted.channels is not None:
            raise CodecError(f"{entry.name}: kept plain, so it has no channels that could be moved")
        values = entry.parts["values"]
        lengths = entry.parts.get("lengths")
        if lengths is not None and len(lengths) == len(values):
            found = np.repeat(values, lengths) if int(lengths.sum(dtype=np.int64)) == math.prod(entry.shape) else values
        else:
            found = values.copy()
        if found.size != math.prod(entry.shape) or found.dtype != entry.dtype:
            raise Unencodable(f"other values than {entry.shape} of {entry.dtype}")
        if not wanted.as_it_was:
            computed = found.astype(np.float32)
            if wanted.op == "log1p":
                computed = np.log1p(computed)
            scale, shift = wanted.by_channel(1)
            found = (computed - shift) * scale
        dtype = wanted.dtype or (found.dtype if wanted.as_it_was else "float16")
        with np.errstate(over="ignore", invalid="ignore"):  # what it cannot hold becomes infinite, as in every codec
            return found.astype(dtype, copy=False).reshape(entry.shape)


CODEC = Plain()
