"""The exchange of a tunnel: what goes in comes out, and nothing else is believed."""

from __future__ import annotations

import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfs.mountd.wire.tunnel import BODY_BYTES, EXCHANGE, EXCHANGE_BYTES, TOKEN_BYTES, Answer, Exchange, NoExchange
from tests.layers import ROOT

tokens = st.binary(min_size=TOKEN_BYTES, max_size=TOKEN_BYTES)


@given(tokens, st.binary(max_size=100), st.integers(0, 3), st.integers(0, BODY_BYTES))
def test_requests(token: bytes, data: bytes, flags: int, room_bytes: int) -> None:
    asked = Exchange(token, data, flags, room_bytes)
    assert len(asked.encode()) == EXCHANGE_BYTES
    assert Exchange.decode(asked.encode()) == asked


@given(st.integers(0, BODY_BYTES), st.binary(max_size=100), st.integers(0, 3))
def test_answers(taken_bytes: int, data: bytes, flags: int) -> None:
    answer = Answer(taken_bytes, data, flags)
    assert Answer.decode(answer.encode()) == answer
    assert Answer.decode(answer.encode().ljust(EXCHANGE_BYTES, b"x")) == answer


def test_the_longest_fit() -> None:
    data = b"x" * BODY_BYTES
    assert Exchange.decode(Exchange(b"t" * TOKEN_BYTES, data).encode()).data == data
    assert len(Answer(0, data).encode()) <= EXCHANGE_BYTES


@pytest.mark.parametrize(
    "argument",
    [
        b"",
        b"x" * (EXCHANGE_BYTES - 1),
        b"x" * (EXCHANGE_BYTES + 1),
        b"\xff" * EXCHANGE_BYTES,
        struct.pack("=16sIII", b"t", 0, BODY_BYTES + 1, 0).ljust(EXCHANGE_BYTES, b"\0"),
        struct.pack("=16sIII", b"t", 0, 0, BODY_BYTES + 1).ljust(EXCHANGE_BYTES, b"\0"),
        struct.pack("=16sIII", b"t", 4, 0, 0).ljust(EXCHANGE_BYTES, b"\0"),
    ],
)
def test_what_is_no_request(argument: bytes) -> None:
    with pytest.raises(NoExchange):
        Exchange.decode(argument)


@pytest.mark.parametrize("argument", [b"", b"x" * 11, struct.pack("=III", 0, 0, 4) + b"abc"])
def test_what_is_no_answer(argument: bytes) -> None:
    with pytest.raises(NoExchange):
        Answer.decode(argument)


def test_the_extension_means_the_same_command() -> None:
    """_IOWR of <asm-generic/ioctl.h>: direction, size, type, number."""
    header = (ROOT / "mountd" / "native" / "plane" / "plane.h").read_text()
    found = re.search(r"TUNNEL_EXCHANGE _IOWR\((\w+), (\d+), char\[(\d+)\]\)", header)
    assert found is not None
    kind, number, size = (int(text, 0) for text in found.groups())
    assert 3 << 30 | size << 16 | kind << 8 | number == EXCHANGE
    assert size == EXCHANGE_BYTES < 1 << 14
