"""Makes the lines of `deepcam`: where segments begin, which unit each has, and the difference of each value.

Steps along x are taken one after the other, since each difference begins at what the decoder has; each step is made for
thousands of lines at once.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hfs.policies.codecs import Unencodable
from hfs.policies.codecs.deepcam import CONSTANT, LARGEST, LONGEST, RAW, UNITS, Lines, decode

_BLOCK = 16
"""Segments begin at multiples of this: what a cut costs is looked at 72 times a line of 1152 and not 1151 times."""

_SPREAD = 3
"""Binades between the largest differences of the blocks of one segment, at most. Within a block the code spans 11; with
3 there are 8 left for the quietest block, which is 4 bits of mantissa and one binade to grow."""

_NO_DIFFERENCE, _ANY = -10_000, 10_000
"""Exponents of blocks without differences: any unit will do."""

_SEGMENT_BYTES = 2 + 4 + 1
_PATCH_BYTES = 2 + 4

_AT_ONCE = 2048
"""Lines that are encoded at a time: 19 MB of float64 for lines of 1152."""

_SMALLEST, _LARGEST_EXPONENT = -126, 100
"""Units below are denormal numbers of float32, which some devices take for zero; above, sums could overflow."""

_nearest = np.arange(LARGEST + 1)
_spacing = np.maximum(1, 2.0 ** (np.floor(np.log2(np.maximum(_nearest, 1))) - 4))
_steps = np.minimum(np.rint(_nearest / _spacing) * _spacing, LARGEST)
_positive = np.searchsorted(UNITS[:128], _steps).astype(np.uint8)
CODES = np.concatenate([_positive[:0:-1] | 128, _positive])
"""(2 * LARGEST + 1,) uint8: the code nearest to each whole number of units from -LARGEST to LARGEST."""


def encode(values: npt.NDArray[Any], max_relative_error: float | None = None) -> Lines:
    """Of floats, (lines, length). Lines with NaN or infinities stay raw.

    max_relative_error  bound on |decoded - value| / |value| of every value, as decoded to float32; a zero stays zero.
    Values that break it are patched, and where that would be larger the line stays raw. None: no bound.

    Raises Unencodable.
    """
    if values.dtype.kind != "f" or values.dtype.itemsize > 4:
        raise Unencodable(f"float32 or float16 is needed, and these are {values.dtype}: rounding is for you to decide")
    if values.ndim != 2 or not 0 < values.shape[1] <= LONGEST or not len(values):
        raise Unencodable(f"lines of 1 to {LONGEST} values are needed, and the shape is {values.shape}")
    if max_relative_error is not None and not 0 <= max_relative_error < 1:
        raise Unencodable(f"max_relative_error: {max_relative_error} is not in [0, 1)")
    parts = [
        _bounded(np.ascontiguousarray(values[start : start + _AT_ONCE], np.float32), max_relative_error)
        for start in range(0, len(values), _AT_ONCE)
    ]
    arrays = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts])
        for field in fields(Lines)
        if field.name != "length"
    }
    return Lines(values.shape[1], **arrays)


def _bounded(values: npt.NDArray[np.float32], bound: float | None) -> Lines:
    made = _smallest(values, np.zeros(len(values), bool))
    if bound is None:
        return made
    decoded = np.empty_like(values)
    decode(made, made.offsets(), decoded, 0, len(values))
    with np.errstate(invalid="ignore", over="ignore"):
        wrong = np.abs(decoded.astype(np.float64) - values) > bound * np.abs(values.astype(np.float64))
    wrong[made.segments == RAW] = False
    counts = np.count_nonzero(wrong, axis=1)
    # Patches may make a line larger than it was: then it stays raw.
    stay = made.segments == RAW
    stay |= _bytes(made) + counts * _PATCH_BYTES >= 4 * made.length
    wrong[stay] = False
    rows, columns = np.nonzero(wrong)
    again = _smallest(values, stay)
    return replace(
        again,
        patches=np.count_nonzero(wrong, axis=1).astype(np.uint16),
        patch_columns=columns.astype(np.uint16),
        patch_values=values[rows, columns],
    )


def _bytes(lines: Lines) -> npt.NDArray[np.int64]:
    """(lines,): of each line that is not raw."""
    offsets = lines.offsets()
    found: npt.NDArray[np.int64] = np.diff(offsets[0]) * _SEGMENT_BYTES + np.diff(offsets[1])
    return found


def _smallest(values: npt.NDArray[np.float32], stay: npt.NDArray[np.bool_]) -> Lines:
    """Each line in the smallest of its forms; those of `stay` raw."""
    length = values.shape[1]
    with np.errstate(over="ignore", invalid="ignore"):
        differences = np.diff(values.astype(np.float64), axis=1, prepend=values[:, :1].astype(np.float64))
    unusable = stay | ~(np.abs(values) < 2.0**126).all(axis=1)  # NaN too
    differences[unusable] = 0
    # By their bits: a run of 0.0 and -0.0 is not constant, so that not even a sign is lost in one.
    bits = values.view(np.uint32)
    same = np.zeros(values.shape, bool)
    same[:, 1:] = bits[:, 1:] == bits[:, :-1]
    begins, exponents = _segments(differences, same)
    lines, starts = np.nonzero(begins)
    of = exponents[lines, starts]
    counts = np.count_nonzero(begins, axis=1)
    lengths = np.diff(np.append(np.flatnonzero(begins), begins.size))
    coded = np.zeros(len(values), np.int64)
    np.add.at(coded, lines, np.where(of == CONSTANT, 0, lengths))
    unusable |= counts * _SEGMENT_BYTES + coded >= 4 * length
    denormal = np.zeros(len(values), bool)
    denormal[lines[(of != CONSTANT) & ((of < _SMALLEST) | (of > _LARGEST_EXPONENT))]] = True
    unusable |= denormal
    kept = ~unusable[lines]
    lines, starts, of, lengths = lines[kept], starts[kept], of[kept], lengths[kept]
    used = ~unusable
    codes = _codes(values[used], begins[used], lengths, of)
    return Lines(
        length,
        np.where(unusable, RAW, counts).astype(np.uint16),
        np.zeros(len(values), np.uint16),
        starts.astype(np.uint16),
        values[lines, starts],
        of.astype(np.int8),
        codes,
        values[unusable],
        np.empty(0, np.uint16),
        np.empty(0, np.float32),
    )


def _segments(
    differences: npt.NDArray[np.float64], same: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Two of (lines, length): where segments begin; and there, the exponent of the unit, or CONSTANT."""
    count, length = differences.shape
    blocks = -(-length // _BLOCK)
    magnitudes = np.zeros((count, blocks * _BLOCK))
    np.abs(differences, out=magnitudes[:, :length])
    magnitudes = magnitudes.reshape(count, blocks, _BLOCK)
    # The unit is 2^e with LARGEST * 2^e above all differences. That of the first value of a block is none of a segment
    # which begins there.
    inside, largest = magnitudes[:, :, 1:].max(axis=2), magnitudes.max(axis=2)
    alone = np.where(inside == 0, _NO_DIFFERENCE, np.frexp(inside / LARGEST)[1])
    joined = np.where(largest == 0, _NO_DIFFERENCE, np.frexp(largest / LARGEST)[1])

    equal = np.ones((count, blocks * _BLOCK), bool)
    equal[:, :length] = same
    equal = equal.reshape(count, blocks, _BLOCK)
    still: npt.NDArray[np.bool_] = np.logical_and.reduce(equal[:, :, 1:], axis=2)
    goes_on = np.zeros((count, blocks), bool)  # one constant with the block before
    goes_on[:, 1:] = still[:, 1:] & still[:, :-1] & equal[:, 1:, 0]
    # Runs have two blocks at least: below, the two cuts cost more than the bytes of zeros.
    run = goes_on.copy()
    run[:, :-1] |= goes_on[:, 1:]
    if blocks == 1:
        run = still

    begin = run & ~goes_on
    exponent = np.full((count, blocks), _NO_DIFFERENCE)
    rows, segment = np.arange(count), np.zeros(count, np.int64)
    high, low = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for block in range(blocks):
        after_run = run[:, block - 1] if block else np.ones(count, bool)
        here = joined[:, block]
        quiet = here == _NO_DIFFERENCE
        higher, lower = np.maximum(high, here), np.where(quiet, low, np.minimum(low, here))
        begin[:, block] |= ~run[:, block] & (after_run | (higher - lower > _SPREAD))
        new = begin[:, block]
        segment[new] = block
        high = np.where(new, alone[:, block], higher)
        low = np.where(new, np.where(alone[:, block] == _NO_DIFFERENCE, _ANY, alone[:, block]), lower)
        exponent[rows, segment] = high
    exponent = np.where(exponent == _NO_DIFFERENCE, _SMALLEST, exponent)
    begins, exponents = np.zeros((count, blocks * _BLOCK), bool), np.zeros((count, blocks * _BLOCK), np.int64)
    begins[:, ::_BLOCK], exponents[:, ::_BLOCK] = begin, np.where(run, CONSTANT, exponent)
    return begins[:, :length], exponents[:, :length]


def _codes(
    values: npt.NDArray[np.float32],
    begins: npt.NDArray[np.bool_],
    lengths: npt.NDArray[np.int64],
    exponents: npt.NDArray[np.int64],
) -> npt.NDArray[np.uint8]:
    """The codes of all values of segments that are not constant, line by line."""
    if not len(values):
        return np.empty(0, np.uint8)
    constant = exponents == CONSTANT
    unit = np.ldexp(1.0, -np.where(constant, 0, exponents))
    heads = values[begins].astype(np.float64)
    target = values.astype(np.float64)
    target -= np.repeat(heads, lengths).reshape(values.shape)
    target *= np.repeat(unit, lengths).reshape(values.shape)
    # By columns: each step works on memory in one piece.
    target = np.ascontiguousarray(target.T)
    keep = np.ascontiguousarray(~begins.T).astype(np.float64)
    codes = np.empty(target.shape, np.uint8)
    have = np.zeros(target.shape[1])
    step = np.empty_like(have)
    units = UNITS.astype(np.float64)
    for column in range(len(target)):
        have *= keep[column]
        np.subtract(target[column], have, step)
        np.clip(np.rint(step, step), -LARGEST, LARGEST, step)
        np.take(CODES, step.astype(np.intp) + LARGEST, 0, codes[column], "clip")
        have += units[codes[column]]
    rows: npt.NDArray[np.uint8] = np.ascontiguousarray(codes.T).reshape(-1)
    if constant.any():
        rows = rows[np.repeat(~constant, lengths)]
    return rows
