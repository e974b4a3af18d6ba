"""As much HTTP as collectors speak; whatever else comes is refused, and not repeated."""

import pytest

from hfs.mountd.monitoring.http import is_whole, reply_to, wants_openmetrics

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


def metrics(openmetrics: bool) -> bytes:
    return b"open\n" if openmetrics else b"text\n"


def reply(head: bytes) -> tuple[int, list[str], bytes]:
    status, data = reply_to(head, metrics)
    fields, _, body = data.partition(b"\r\n\r\n")
    lines = fields.decode().split("\r\n")
    assert lines[0].startswith(f"HTTP/1.1 {status} ")
    assert f"Content-Length: {len(body)}" in lines or not body
    assert "Connection: close" in lines
    return status, lines, body


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"text\n"),
        (b"GET /metrics HTTP/1.0\r\n\r\n", b"text\n"),
        (b"GET /metrics HTTP/1.1\n\n", b"text\n"),
        (b"GET /metrics?name[]=x HTTP/1.1\r\n\r\n", b"text\n"),
        (b"GET http://localhost:9/metrics HTTP/1.1\r\n\r\n", b"text\n"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b""),
        (b"GET /metrics HTTP/1.1\r\nAccept: " + PROMETHEUS.encode() + b"\r\n\r\n", b"open\n"),
        (b"GET /metrics HTTP/1.1\r\naccept:application/openmetrics-text\r\nAccept: */*\r\n\r\n", b"open\n"),
        (b"GET /metrics HTTP/1.1\r\nAccept: caf\xe9\xff\r\n\r\n", b"text\n"),
    ],
)
def test_metrics_are_given(head: bytes, body: bytes) -> None:
    assert is_whole(head)
    status, lines, found = reply(head)
    assert (status, found) == (200, body)
    kind = "application/openmetrics-text; version=1.0.0" if body == b"open\n" else "text/plain; version=0.0.4"
    assert f"Content-Type: {kind}; charset=utf-8" in lines


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"GET /metrics/../etc/passwd HTTP/1.1\r\n\r\n", 404),
        (b"GET /secret-word HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody", 405),
        (b"SECRETWORD /metrics HTTP/1.1\r\n\r\n", 405),
        (b"PRI * HTTP/2.0\r\n\r\n", 400),
        (b"GET /metrics\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"GET  /metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1 secret-word\r\n\r\n", 400),
        (b"GET /" + b"a" * 4000 + b" HTTP/1.1\r\n\r\n", 400),
    ],
)
def test_all_else_is_refused(head: bytes, status: int) -> None:
    found, _, body = reply(head)
    assert found == status
    assert b"secret" not in body.lower()
    assert len(body) < 100


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("text/html,application/xhtml+xml,*/*;q=0.8", False),
        ("application/openmetrics-text", True),
        ("Application/OpenMetrics-Text; version=1.0.0", True),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=0.2,text/plain;q=0.9", False),
        ("application/openmetrics-text;q=0.9,text/plain;q=0.9", True),
        ("application/openmetrics-text;q=nan", False),
        ("application/openmetrics-text;q=" + "9" * 5000, False),
        (PROMETHEUS, True),
    ],
)
def test_the_form_is_what_the_client_likes_better(accept: str, wanted: bool) -> None:
    assert wants_openmetrics(accept) is wanted


def test_a_head_is_whole_at_its_empty_line() -> None:
    assert not is_whole(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")
    assert is_whole(bytearray(b"GET /metrics HTTP/1.1\r\n\r\n"))
