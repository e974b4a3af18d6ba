"""The lossy line-wise differential code: how its lines look, and how they are decoded.

Lines are made by `deepcam_encoding`. From Ibrahim & Oliker, "Preprocessing pipeline optimization for scientific deep
learning workloads", section V.A and figure 4: weather fields are smooth along x except at storms, so a line is cut into
segments of close values; a segment keeps its first value (head) and, for each value, the difference from its neighbour
in 8 bits: sign, 3 bits of exponent above the segment's smallest one, 4 bits of mantissa. Lines that this makes larger
stay raw, constant runs are a segment without differences, and each line is decoded from nothing but its own part.
Arithmetic is in float32.

What is ours: differences are whole multiples of the segment's unit, at most 1984 of it, so their sum is an integer that
float32 holds exactly: every device, adding in any order, gives the same bits. Each difference is taken
from what the decoder will have, so errors do not add up along a line. And a few values of a line may be patched.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from hfs.policies.codecs import Unencodable

RAW = 0
"""Segments of a line that is kept as it was."""

CONSTANT = -128
"""The exponent of a segment whose values are all its head."""

_CODES = np.arange(256)
_EXPONENT, _MANTISSA = _CODES >> 4 & 7, _CODES & 15
UNITS = np.where(_EXPONENT == 0, _MANTISSA, (16 + _MANTISSA) << np.maximum(_EXPONENT - 1, 0)).astype(np.int32)
"""(256,) int32: the difference that a code stands for, in units of its segment. Exponent 0 has no leading one, as in
IEEE 754, so that small differences and none at all can be said."""
UNITS[128:] *= -1

LARGEST = 31 * 64
"""Units of the largest difference."""

LONGEST = 8192
"""Values of a line: LONGEST * LARGEST < 2^24, so that sums of differences are exact in float32."""

_AT_ONCE = 1 << 16
"""Values that are decoded at a time: they stay in the processor's cache between the steps."""


@dataclass(frozen=True)
class Lines:
    """Encoded lines of `length` values each.

    segments        uint16, (lines,): segments of each line, or RAW
    patches         uint16, (lines,): patched values of each line
    starts          uint16, (all segments,): where in its line a segment begins; the first of a line at 0
    heads           float32, (all segments,)
    exponents       int8, (all segments,): the unit of its differences is 2 to this power; or CONSTANT
    codes           uint8: one for each value of each segment that is not CONSTANT, the head's being 0
    raw             float32, (raw lines, length)
    patch_columns   uint16, (all patches,): where in its line the value lies
    patch_values    float32, (all patches,)
    """

    length: int
    segments: npt.NDArray[np.uint16]
    patches: npt.NDArray[np.uint16]
    starts: npt.NDArray[np.uint16]
    heads: npt.NDArray[np.float32]
    exponents: npt.NDArray[np.int8]
    codes: npt.NDArray[np.uint8]
    raw: npt.NDArray[np.float32]
    patch_columns: npt.NDArray[np.uint16]
    patch_values: npt.NDArray[np.float32]

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, field.name).nbytes for field in fields(self) if field.name != "length")

    def lengths(self) -> npt.NDArray[np.int64]:
        """(all segments,): values of each segment."""
        ends = np.append(self.starts, self.length)[1:].astype(np.int64)
        ends[np.cumsum(self.segments[self.segments > 0], dtype=np.int64) - 1] = self.length
        ends -= self.starts
        return ends

    def offsets(self) -> npt.NDArray[np.int64]:
        """(4, lines + 1): where the segments, codes, raw values (in lines) and patches of each line begin, and the end.

        All that a line needs from the lines before it.
        """
        coded = np.where(self.exponents == CONSTANT, 0, self.lengths())
        codes_before = np.append(0, np.cumsum(coded))
        segments_before = np.append(0, np.cumsum(self.segments, dtype=np.int64))
        raw = np.append(0, np.cumsum(self.segments == RAW, dtype=np.int64))
        patches = np.append(0, np.cumsum(self.patches, dtype=np.int64))
        return np.stack([segments_before, codes_before[segments_before], raw, patches])

    def check(self) -> None:
        """Raises Unencodable where anything leads outside. After it, decoding cannot."""
        count = int(self.segments.sum(dtype=np.int64))
        patches = int(self.patches.sum(dtype=np.int64))
        same = len(self.segments) == len(self.patches) and len(self.starts) == len(self.heads) == len(self.exponents)
        if not (same and 0 < self.length <= LONGEST and len(self.starts) == count):
            raise Unencodable("its lines and segments do not belong together")
        if count:
            first = (np.append(0, np.cumsum(self.segments, dtype=np.int64))[:-1])[self.segments > 0]
            if self.starts[first].any() or int(self.lengths().min()) <= 0:
                raise Unencodable("a segment begins before the one before it ends")
        _, codes, raw, _ = self.offsets()[:, -1].tolist()
        if len(self.codes) != codes or self.raw.shape != (raw, self.length):
            raise Unencodable("its segments and differences do not belong together")
        if len(self.patch_columns) != patches or len(self.patch_values) != patches:
            raise Unencodable("its lines and patches do not belong together")
        if patches and int(self.patch_columns.max()) >= self.length:
            raise Unencodable("a patch lies behind the end of its line")


def decode(
    lines: Lines,
    offsets: npt.NDArray[np.int64],
    out: npt.NDArray[Any],
    first: int,
    last: int,
    scale: npt.NDArray[np.float32] | None = None,
    shift: npt.NDArray[np.float32] | None = None,
    *,
    log1p: bool = False,
) -> None:
    """Write the lines [first, last) into out[first:last]; `out`, of any float type, is (lines, length).

    offsets       lines.offsets()
    scale, shift  (lines,): what is written is (value - shift) * scale, in float32
    log1p         and before that the logarithm is taken of value + 1

    What `out` cannot hold becomes infinite, without a warning: a file that another program wrote may have anything.

    `lines` must have passed `check`.
    """
    step = max(1, _AT_ONCE // lines.length)
    lengths = lines.lengths()
    with np.errstate(over="ignore", invalid="ignore"):  # here: a thread of a pool does not inherit it
        for start in range(first, last, step):
            stop = min(start + step, last)
            values = _values(lines, lengths, offsets, start, stop)
            if log1p:
                np.log1p(values, values)
            if shift is not None:
                values -= shift[start:stop, None]
            if scale is not None:
                values *= scale[start:stop, None]
            out[start:stop] = values


def _values(
    lines: Lines, lengths: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], first: int, last: int
) -> npt.NDArray[np.float32]:
    """(last - first, length) float32: a few lines."""
    (segment, code, raw, patch), (segments_end, codes_end, raw_end, patches_end) = offsets[:, [first, last]].T.tolist()
    counts = lines.segments[first:last]
    plain = counts == RAW
    values = np.empty((last - first, lines.length), np.float32)
    if not plain.all():
        coded = None if raw == raw_end else ~plain
        found = _coded(
            lines.length,
            counts if coded is None else counts[coded],
            lengths[segment:segments_end],
            lines.heads[segment:segments_end],
            lines.exponents[segment:segments_end],
            lines.codes[code:codes_end],
            values if coded is None else None,
        )
        if coded is not None:
            values[coded] = found
    if raw < raw_end:
        values[plain] = lines.raw[raw:raw_end]
    if patch < patches_end:
        rows = np.repeat(np.arange(last - first), lines.patches[first:last])
        values[rows, lines.patch_columns[patch:patches_end]] = lines.patch_values[patch:patches_end]
    return values


def _coded(
    length: int,
    counts: npt.NDArray[np.uint16],
    lengths: npt.NDArray[np.int64],
    heads: npt.NDArray[np.float32],
    exponents: npt.NDArray[np.int8],
    codes: npt.NDArray[np.uint8],
    out: npt.NDArray[np.float32] | None,
) -> npt.NDArray[np.float32]:
    """(lines, length) float32: lines of which none is raw; `out`, if given, is where."""
    constant = exponents == CONSTANT
    if constant.any():
        spread = np.zeros(len(counts) * length, np.uint8)
        spread[np.repeat(~constant, lengths)] = codes
        codes = spread
    # Integers: they add eight times as fast as floats, each of which waits for the one before.
    sums = np.take(UNITS, codes.reshape(len(counts), length), 0, mode="clip")
    np.cumsum(sums, axis=1, out=sums)
    unit = np.ldexp(np.float32(1), np.where(constant, 0, exponents).astype(np.int32)).astype(np.float32)
    one_each = len(heads) == len(counts)
    if not one_each:
        sums = sums.reshape(-1)
        sums -= np.repeat(sums[np.cumsum(lengths) - lengths], lengths)
    values = np.empty((len(counts), length), np.float32) if out is None else out
    flat = values if one_each else values.reshape(-1)
    np.copyto(flat, sums, casting="unsafe")
    flat *= unit[:, None] if one_each else np.repeat(unit, lengths)
    flat += heads[:, None] if one_each else np.repeat(heads, lengths)
    return values
