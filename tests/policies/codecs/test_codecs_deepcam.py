"""The lossy kernel: small where lines are smooth, within its bound, raw where it must be, lines independent."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hfs.policies.codecs import Unencodable
from hfs.policies.codecs.deepcam import CONSTANT, LARGEST, RAW, UNITS, Lines, decode
from hfs.policies.codecs.deepcam_encoding import CODES, encode


def restored(lines: Lines, dtype: Any = np.float32, first: int = 0, last: int | None = None) -> Any:
    lines.check()
    out = np.full((len(lines.segments), lines.length), 777, dtype)
    decode(lines, lines.offsets(), out, first, len(out) if last is None else last)
    return out


def waves(lines: int = 20, length: int = 320) -> Any:
    x = np.arange(length) / length * 6.3
    return (250 + 30 * np.sin(x[None] + np.arange(lines)[:, None])).astype(np.float32)


def bits(array: Any) -> Any:
    return np.asarray(array, np.float32).view(np.uint32)


def test_every_code_is_the_nearest_to_its_difference() -> None:
    for units in range(-LARGEST, LARGEST + 1):
        distance = abs(int(UNITS[CODES[units + LARGEST]]) - units)
        assert distance == np.abs(UNITS - units).min()
    assert CODES[LARGEST] == 0
    assert sorted(set(UNITS.tolist())) == sorted({int(sign * u) for u in UNITS[:128] for sign in (-1, 1)})


def test_smooth_lines_take_a_quarter_and_are_close() -> None:
    values = waves()
    lines = encode(values)
    assert values.nbytes / lines.nbytes > 3.7
    assert not len(lines.raw)
    assert np.abs(restored(lines) - values).max() < 30 * 6.3 / 320 / 16
    assert (restored(lines, np.float16) == restored(lines).astype(np.float16)).all()


def test_lines_decode_alone_and_in_any_pieces() -> None:
    values = waves(12, 100)
    values[3] = 5
    values[5, 40] = np.nan
    values[7, 30:70] = 0
    lines = encode(values, 0.001)
    whole = restored(lines)
    for line in range(12):
        alone = restored(lines, first=line, last=line + 1)
        assert (bits(alone[line]) == bits(whole[line])).all()
        assert (np.delete(alone, line, 0) == 777).all()


def test_each_line_takes_its_smallest_form() -> None:
    length = 160
    values = np.zeros((5, length), np.float32)
    values[0] = 3.5
    values[1, 60:] = 7
    values[2] = np.linspace(1, 2, length)
    values[3] = np.random.default_rng(0).permutation(2.0 ** np.arange(-80, 80))
    values[4, ::3] = np.inf
    lines = encode(values)
    assert lines.segments.tolist()[0] == 1
    assert lines.exponents[0] == CONSTANT
    assert (lines.exponents[1:4] == CONSTANT).sum() == 2
    assert lines.segments.tolist()[2] == 1
    assert lines.segments[4] == RAW
    back = restored(lines)
    assert (back[[0, 1, 4]] == values[[0, 1, 4]]).all()
    assert (back[3] == values[3]).all() == (lines.segments[3] == RAW)


def test_steps_of_very_different_size_lie_in_segments_of_their_own() -> None:
    rng = np.random.default_rng(3)
    values = np.cumsum(rng.standard_normal((4, 640)), axis=1)
    values[:, 320:] = values[:, 319:320] + 1e-4 * np.cumsum(rng.standard_normal((4, 320)), axis=1)
    lines = encode(values.astype(np.float32))
    assert (lines.segments >= 2).all()
    error = np.abs(restored(lines)[:, 336:] - values[:, 336:].astype(np.float32))
    assert error.max() < 2e-5


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 3e38])
def test_lines_with_values_that_arithmetic_would_spoil_are_kept_as_they_are(special: float) -> None:
    values = waves(3, 64)
    values[1, 17] = special
    lines = encode(values)
    assert lines.segments.tolist()[1] == RAW
    assert (bits(restored(lines)[1]) == bits(values[1])).all()


def test_denormal_numbers_are_not_lost() -> None:
    tiny = np.float32(1e-45)
    values = (np.arange(64)[None] * tiny).astype(np.float32)
    lines = encode(values)
    assert (restored(lines) == values).all()


numbers = st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True)
fuzzed = st.one_of(
    hnp.arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(1, 70)), elements=numbers),
    st.builds(
        lambda seed, shape, power: np.cumsum(
            np.random.default_rng(seed).standard_normal(shape) * 10.0 ** np.random.default_rng(seed).integers(power, 3),
            axis=1,
        ).astype(np.float32),
        st.integers(0, 2**32),
        st.tuples(st.integers(1, 6), st.integers(1, 200)),
        st.integers(-12, 2),
    ),
)


@given(fuzzed, st.sampled_from([0.0, 0.001, 0.1]))
@settings(deadline=None)
def test_the_bound_holds_for_every_value(values: Any, bound: float) -> None:
    lines = encode(values, bound)
    back = restored(lines).astype(np.float64)
    finite = np.isfinite(values).all(axis=1)
    true = values[finite].astype(np.float64)
    assert (np.abs(back[finite] - true) <= bound * np.abs(true)).all()
    assert (bits(restored(lines)[~finite]) == bits(values[~finite])).all()


@given(fuzzed)
@settings(deadline=None)
def test_never_larger_than_raw_and_each_step_within_its_unit(values: Any) -> None:
    lines = encode(values)
    assert lines.nbytes <= values.nbytes + 4 * len(values)
    finite = np.isfinite(values).all(axis=1)
    back, values = restored(lines)[finite], values[finite]
    # Of the largest difference of a segment, at most a 1/62 goes wrong; those of a line are a bound for all.
    steps = np.abs(np.diff(values.astype(np.float64), axis=1, prepend=values[:, :1])).max(axis=1, initial=0)
    error = np.abs(back.astype(np.float64) - values).max(axis=1, initial=0)
    rounding = np.abs(values).max(axis=1, initial=0) * 2.0**-23
    assert (error <= steps / 30 + rounding).all()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.zeros((2, 8)), "these are float64"),
        (np.zeros((2, 8), np.int16), "these are int16"),
        (np.zeros((2, 8), np.complex64), "these are complex64"),
        (np.zeros(8, np.float32), r"the shape is \(8,\)"),
        (np.zeros((0, 8), np.float32), r"the shape is \(0, 8\)"),
        (np.zeros((2, 0), np.float32), r"the shape is \(2, 0\)"),
        (np.zeros((1, 8193), np.float32), r"the shape is \(1, 8193\)"),
    ],
)
def test_what_cannot_be_encoded(values: Any, words: str) -> None:
    with pytest.raises(Unencodable, match=words):
        encode(values)


@pytest.mark.parametrize("bound", [-0.1, 1.0, np.nan])
def test_a_bound_that_is_none(bound: float) -> None:
    with pytest.raises(Unencodable, match="max_relative_error"):
        encode(np.zeros((1, 8), np.float32), bound)


def test_not_contiguous_and_half_precision() -> None:
    values = waves(20, 64)
    assert (restored(encode(values[::2])) == restored(encode(values[::2].copy()))).all()
    assert np.abs(restored(encode(values.astype(np.float16))) - values).max() < 1


def test_scale_and_shift_and_logarithm() -> None:
    values = waves(6, 64)
    lines = encode(values)
    scale, shift = np.arange(1, 7, dtype=np.float32), np.full(6, 5.5, np.float32)
    out = np.empty(values.shape, np.float32)
    decode(lines, lines.offsets(), out, 0, 6, scale, shift, log1p=True)
    assert (out == (np.log1p(restored(lines)) - shift[:, None]) * scale[:, None]).all()


@pytest.mark.parametrize(
    ("field", "spoil"),
    [
        ("segments", lambda a: a + 1),
        ("segments", lambda a: a[:-1]),
        ("patches", lambda a: a + 1),
        ("starts", lambda a: a + 1),
        ("starts", lambda a: a[::-1].copy()),
        ("heads", lambda a: a[:-1]),
        ("exponents", lambda a: np.full_like(a, CONSTANT)),
        ("codes", lambda a: a[:-1]),
        ("raw", lambda a: a[:-1]),
        ("raw", lambda a: a[:, :-1]),
        ("patch_columns", lambda a: a + 64),
        ("patch_values", lambda a: a[:-1]),
    ],
)
def test_damaged_parts_are_found_before_they_lead_outside(field: str, spoil: Any) -> None:
    values = waves(8, 64)
    values[2, 16:48] = 1
    values[3] = np.nan
    values[4] = 30 * np.sin(np.arange(64) / 9 + 1)
    lines = encode(values, 0.01)
    lines.check()
    assert len(lines.patch_values)
    assert lines.segments.max() == 3
    with pytest.raises(Unencodable):
        dataclasses.replace(lines, **{field: spoil(getattr(lines, field))}).check()
