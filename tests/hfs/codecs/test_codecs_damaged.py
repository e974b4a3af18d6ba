"""Damaged containers: what has changed is found by the checksum; what never was right, by what the parts must be."""

import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from hfs.codecs import CodecError, decode, decode_all, encode
from hfs.codecs.codec import SampleEntry
from hfs.codecs.sample import pack
from tests.hfs.codecs.codec_samples import fields, volume
from tests.support.examples import examples

SAMPLES = {
    "cosmoflow": encode(volume(side=6), beside={"label": np.arange(4.0)}),
    "deepcam": encode(fields(shape=(3, 8, 64)), max_relative_error=0.05),
    "plain": encode(np.repeat(np.arange(9), 50), "plain"),
}
BODY = 32

each_codec = pytest.mark.parametrize("name", list(SAMPLES))


def sealed(data: bytes | bytearray) -> bytes:
    """The same with the right length and checksum: as another program might write it."""
    data = bytearray(data)
    data[16:24] = len(data).to_bytes(8, "little")
    data[24:32] = xxhash.xxh3_64(bytes(data[:24] + data[32:])).intdigest().to_bytes(8, "little")
    return bytes(data)


def with_head(data: bytes, change: Any) -> bytes:
    """The same with another header."""
    size = int.from_bytes(data[12:16], "little")
    head = json.loads(data[BODY : BODY + size])
    changed = change(head)
    text = json.dumps(head if changed is None else changed).encode()
    text += b" " * (-(BODY + len(text)) % 64)
    start = bytearray(data[:BODY])
    start[12:16] = len(text).to_bytes(4, "little")
    return sealed(bytes(start) + text + data[BODY + size :])


@each_codec
@given(place=st.integers(0, 1 << 20), bit=st.integers(0, 7))
@settings(deadline=None)
def test_every_bit_counts(name: str, place: int, bit: int) -> None:
    data = bytearray(SAMPLES[name])
    data[place % len(data)] ^= 1 << bit
    with pytest.raises(CodecError):
        decode(data)


@each_codec
@given(size=st.integers(0, 1 << 20))
@settings(deadline=None)
def test_every_byte_counts(name: str, size: int) -> None:
    data = SAMPLES[name]
    with pytest.raises(CodecError):
        decode(data[: size % len(data)])
    with pytest.raises(CodecError, match="cut short, or not one sample"):
        decode(data + b"\0")


@each_codec
@given(st.data())
@settings(deadline=None, max_examples=examples(150))
def test_what_another_program_wrote_wrongly_is_refused_or_read(name: str, draws: Any) -> None:
    """With a right checksum anything may be in it: an error of ours, or an array; never another exception."""
    data = bytearray(SAMPLES[name])
    for _ in range(draws.draw(st.integers(1, 4))):
        place = draws.draw(st.integers(32, len(data) - 1))
        data[place] = draws.draw(st.integers(0, 255))
    try:
        decode(sealed(data), dtype=draws.draw(st.sampled_from([None, "float32"])))
    except CodecError:
        pass


def test_what_float16_cannot_hold_is_infinite() -> None:
    """The head of a line, made larger than any float16. A warning would be an error here."""
    data = bytearray(SAMPLES["deepcam"])
    data[1536] = 6
    assert np.isinf(decode(sealed(data))).any()
    large = encode(np.full((2, 3, 4), 1e300), "plain")
    assert np.isinf(decode(large, dtype="float32")).all()


def test_the_future_is_named() -> None:
    data = bytearray(SAMPLES["cosmoflow"])
    data[8] = 9
    with pytest.raises(CodecError, match="version 9 of the container, and this version of hfs reads up to 1: install"):
        decode(sealed(data))

    def newer(head: Any) -> None:
        head["arrays"][0]["version"] = 7

    with pytest.raises(CodecError, match="version 7 of the codec cosmoflow, and this version of hfs reads up to 1"):
        decode(with_head(SAMPLES["cosmoflow"], newer))

    def other(head: Any) -> None:
        head["arrays"][0]["codec"] = "wavelets"

    with pytest.raises(CodecError, match="codec 'wavelets' is not known"):
        decode(with_head(SAMPLES["cosmoflow"], other))


@each_codec
@pytest.mark.parametrize(
    "change",
    [
        lambda head: [],
        lambda head: {},
        lambda head: {"arrays": 3},
        lambda head: {"arrays": [{}]},
        lambda head: {"arrays": []},
        lambda head: head["arrays"][0].update(shape=[2**62, 2**62]),
        lambda head: head["arrays"][0].update(shape=[-1, 4]),
        lambda head: head["arrays"][0].update(shape="abc"),
        lambda head: head["arrays"][0].update(shape=[]),
        lambda head: head["arrays"][0].update(dtype="O"),
        lambda head: head["arrays"][0].update(dtype=["<i2"]),
        lambda head: head["arrays"][0].update(parts=[]),
        lambda head: head["arrays"][0].update(parameters=None),
        lambda head: head["arrays"][0]["parts"][0].update(offset=-64),
        lambda head: head["arrays"][0]["parts"][0].update(offset=2**40),
        lambda head: head["arrays"][0]["parts"][0].update(shape=[2**60, 2**60]),
        lambda head: head["arrays"][0]["parts"][0].update(dtype="<f8"),
    ],
)
def test_headers_that_cannot_be(name: str, change: Any) -> None:
    with pytest.raises(CodecError):
        decode(with_head(SAMPLES[name], change))


@pytest.mark.parametrize("key", ["channels", "length", "least", "most"])
@pytest.mark.parametrize("value", [None, "x", 5, [1, 2], float(2**70)])
def test_parameters_that_cannot_be(key: str, value: Any) -> None:
    def change(head: Any) -> None:
        head["arrays"][0]["parameters"][key] = value

    if key == "channels" and value is None:
        return  # one way in which it may have been encoded
    with pytest.raises(CodecError):
        decode(with_head(SAMPLES["deepcam"], change))


@pytest.mark.parametrize("data", [b"", b"\x89HDF\r\n\x1a\n" + bytes(100), b"\x93NUMPY" + bytes(100), bytes(4096)])
def test_other_files_are_named_as_such(data: bytes) -> None:
    with pytest.raises(CodecError, match="not an encoded sample"):
        decode(data)


def hostile(name: str, parts: dict[str, Any], shape: tuple[int, ...], dtype: str, **parameters: Any) -> bytes:
    """A container with a right checksum."""
    return pack([SampleEntry("x", name, 1, shape, np.dtype(dtype), parameters, parts)])


def runs(length: int) -> bytes:
    return hostile("plain", {"values": np.zeros(1, "u1"), "lengths": np.array([length], "<u4")}, (length,), "u1")


def constant_lines(count: int, length: int = 8192) -> bytes:
    each = {"segments": "<u2", "patches": "<u2", "starts": "<u2", "heads": "<f4", "exponents": "i1"}
    parts = {name: np.zeros(count, dtype) for name, dtype in each.items()}
    parts["segments"][:] = 1
    parts["exponents"][:] = -128
    empty = {"codes": "u1", "patch_columns": "<u2", "patch_values": "<f4"}
    parts |= {name: np.empty(0, dtype) for name, dtype in empty.items()} | {"raw": np.empty((0, length), "<f4")}
    limits = {"least": [0.0], "most": [0.0], "max_relative_error": None}
    return hostile("deepcam", parts, (count, length), "<f4", channels=None, length=length, **limits)


@pytest.mark.parametrize("make", [lambda: runs(2**32 - 1), lambda: constant_lines(10_000)], ids=["runs", "lines"])
@pytest.mark.parametrize("read", [decode, decode_all], ids=["one", "all"])
def test_a_small_file_does_not_become_a_large_array_unasked(make: Any, read: Any) -> None:
    """Of what is said to be in it nothing is made before it is known to be affordable."""
    data = make()
    tracemalloc.start()
    try:
        with pytest.raises(
            CodecError, match=r"would become [\d,]+; more than 268,435,456 are not decoded unless max_bytes="
        ):
            read(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_what_is_meant_is_decoded() -> None:
    data = constant_lines(100)
    assert decode(data).shape == (100, 8192)
    with pytest.raises(CodecError, match="would become 3,276,800; more than 1,000 "):
        decode(data, max_bytes=1000)
    assert decode(runs(300 << 20), max_bytes=2 << 30).nbytes == 300 << 20


def test_parts_have_bytes_of_their_own() -> None:
    """Else a thousand arrays could be made of the bytes of one."""
    data = encode(np.repeat(np.arange(9), 50), "plain", beside={"other": np.arange(100)})

    def shared(head: Any) -> None:
        head["arrays"][1]["parts"] = head["arrays"][0]["parts"]

    with pytest.raises(CodecError, match="two parts share the bytes"):
        decode(with_head(data, shared))


def test_a_header_is_small() -> None:
    def long(head: Any) -> None:
        head["more"] = [0] * 500_000

    with pytest.raises(CodecError, match="its header has"):
        decode(with_head(SAMPLES["plain"], long))
    with pytest.raises(CodecError, match="too many for one sample"):
        encode(np.arange(9), "plain", beside={f"label-{number}": np.arange(2) for number in range(10_000)})
