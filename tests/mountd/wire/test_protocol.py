"""Frames of the control socket: what goes in comes out, and no bytes whatever do more than raise ProtocolError."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfs.mountd.wire import protocol
from hfs.mountd.wire.protocol import (
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    Check,
    Evict,
    Failure,
    List,
    PathFault,
    Progress,
    ProtocolError,
    Reply,
    Request,
    Result,
    Row,
    Rows,
    Status,
    Warm,
    decode_reply,
    decode_request,
    encode,
    frame_bytes,
    packed,
)

paths = st.lists(st.binary(max_size=30), max_size=5)
counts = st.integers(0, 2**62)
faults = st.lists(st.builds(PathFault, path=st.binary(max_size=9), message=st.text(max_size=9)), max_size=3)
requests = st.one_of(
    st.builds(Status),
    st.builds(Warm, paths=paths, jobs=st.integers(0, 9)),
    st.builds(Evict, paths=paths, all=st.booleans()),
    st.builds(Check, paths=paths, against_source=st.booleans()),
    st.builds(List, paths=paths),
)
replies = st.one_of(
    st.builds(Progress, files=counts, bytes=counts, files_total=st.none() | counts, faults=faults),
    st.builds(Result, files=counts, detail=st.dictionaries(st.text(max_size=5), st.integers() | st.text(), max_size=3)),
    st.builds(
        Rows, rows=st.lists(st.builds(Row, path=st.binary(), size=counts, staged_bytes=counts, complete=st.booleans()))
    ),
    st.builds(Failure, message=st.text(), code=st.integers(0, 255)),
).filter(
    lambda reply: (
        not isinstance(reply, Result) or all(abs(n) < 2**63 for n in reply.detail.values() if isinstance(n, int))
    )
)


@given(requests)
def test_requests_come_out_as_they_went_in(request: Request) -> None:
    frame = encode(request)
    assert frame_bytes(frame[:HEADER_BYTES]) == len(frame) - HEADER_BYTES
    assert decode_request(frame[HEADER_BYTES:]) == request


@given(replies)
def test_replies_come_out_as_they_went_in(reply: Reply) -> None:
    assert decode_reply(encode(reply)[HEADER_BYTES:]) == reply


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_a_protocol_error(data: bytes) -> None:
    for decode in (decode_request, decode_reply):
        try:
            decode(data)
        except ProtocolError:
            pass  # the one thing it may do


@given(requests, st.data())
def test_a_cut_message_is_a_protocol_error(request: Request, data: st.DataObject) -> None:
    body = encode(request)[HEADER_BYTES:]
    with pytest.raises(ProtocolError):
        decode_request(body[: data.draw(st.integers(0, len(body) - 1))])


@pytest.mark.parametrize("body", [b"\x91" * 100_000, b"\x81" * 100_000, encode(Result())[HEADER_BYTES:]])
def test_what_is_no_request(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_request(body)


@pytest.mark.parametrize("size", [0, MAX_FRAME_BYTES + 1, 2**32 - 1])
def test_a_length_that_no_frame_has(size: int) -> None:
    with pytest.raises(ProtocolError, match=f"a frame of {size} bytes"):
        frame_bytes(size.to_bytes(HEADER_BYTES, "big"))


@pytest.mark.parametrize("header", [b"", b"\0\0\1", b"\0\0\0\0\1"])
def test_a_header_of_another_length(header: bytes) -> None:
    with pytest.raises(ProtocolError):
        frame_bytes(header)


def test_a_message_too_long_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_FRAME_BYTES", 100)
    with pytest.raises(ProtocolError, match="in parts"):
        encode(Warm([b"x" * 100]))


def test_texts_that_are_not_utf8_are_escaped() -> None:
    reply = decode_reply(encode(Result(detail={"caf\udce9": ["\udce9", {"raw": b"\xe9"}]}))[HEADER_BYTES:])
    assert reply == Result(detail={"caf\\udce9": ["\\udce9", {"raw": b"\xe9"}]})


def test_what_is_encoded_already_is_sent_as_it_is() -> None:
    done = packed({"name": "caf\xe9", "raw": [b"\xe9"]})
    for text in ("", "\udce9"):
        reply = decode_reply(encode(Result(detail={"text": text, "done": [done]}))[HEADER_BYTES:])
        shown = text.encode("utf-8", "backslashreplace").decode()
        assert reply == Result(detail={"text": shown, "done": [{"name": "caf\xe9", "raw": [b"\xe9"]}]})


def test_the_wire_does_not_change_unnoticed() -> None:
    """Another release's client talks to this daemon: a change here must keep old frames readable."""
    status = b"\x00\x00\x00\x28\x83\xa4type\xa6status\xaapage_cache\xc3\xadmakes_overlay\xc2"
    assert encode(Status()) == status
    assert decode_request(b"\x82\xa4type\xa6status\xaapage_cache\xc3") == Status()
    assert decode_request(b"\x81\xa4type\xa6status") == Status(page_cache=True)
    warm = b"\x00\x00\x00\x20\x84\xa4type\xa4warm\xa5paths\x91\xc4\x01a\xa4jobs\x02\xa3pin\xc2"
    assert encode(Warm([b"a"], 2)) == warm
    newer = msgspec.msgpack.encode({"type": "evict", "paths": [], "all": True, "later": 1})
    assert decode_request(newer) == Evict([], all=True)
