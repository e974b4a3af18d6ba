"""As much of HTTP as a collector of metrics speaks: one GET of /metrics a connection, HTTP/1.0 or 1.1.

What a client sends is bytes of a stranger: it is bounded, never logged and never echoed. Pure: the head of a request
in, the whole reply out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from hfs.mountd.monitoring.exposition import OPENMETRICS, TEXT

HEAD_BYTES = 8192
"""Of a request: what web servers allow. A collector sends some 500."""

_PLAIN = "text/plain; charset=utf-8"
_REQUEST = re.compile(rb"([A-Z]{1,16}) (\S{1,2000}) HTTP/1\.[0-9]")
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
}


def is_whole(head: bytes | bytearray) -> bool:
    """Whether the head of the request is there to its end."""
    return b"\r\n\r\n" in head or b"\n\n" in head


def reply_to(head: bytes, metrics: Callable[[bool], bytes]) -> tuple[int, bytes]:
    """(status, the reply) to the head of a request. `metrics(openmetrics)`: the body, in one form or the other."""
    first, *fields = re.split(rb"\r?\n", re.split(rb"\r?\n\r?\n", head, maxsplit=1)[0])
    request = _REQUEST.fullmatch(first)
    if request is None:
        return 400, refusal(400, "this is no request of HTTP/1.1")
    method, target = request[1], request[2]
    if method not in {b"GET", b"HEAD"}:
        return 405, refusal(405, "metrics can be read with GET, and nothing else", "Allow: GET, HEAD\r\n")
    if _path(target) != b"/metrics":
        return 404, refusal(404, "metrics are at /metrics")
    openmetrics = wants_openmetrics(_accepts(fields))
    body = metrics(openmetrics)
    kind = OPENMETRICS if openmetrics else TEXT
    return 200, _head(200, kind, len(body)) + (body if method == b"GET" else b"")


def refusal(status: int, why: str, fields: str = "") -> bytes:
    """A reply that is none."""
    body = f"{why}\n".encode()
    return _head(status, _PLAIN, len(body), fields) + body


@lru_cache(maxsize=8)  # a collector always says the same
def wants_openmetrics(accept: str) -> bool:
    """Whether the field Accept prefers OpenMetrics to Prometheus's own text."""
    liked = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for part in accept.split(","):
        name, *parameters = (word.strip().lower() for word in part.split(";"))
        if name in liked:
            liked[name] = max(liked[name], _quality(parameters))
    return liked["application/openmetrics-text"] > 0 and liked["application/openmetrics-text"] >= liked["text/plain"]


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            return float(parameter[2:]) if re.fullmatch(r"[01](\.[0-9]{0,3})?", parameter[2:]) else 0.0
    return 1.0


def _path(target: bytes) -> bytes:
    """Without the server's name, which proxies send too, and without what follows a question mark."""
    return re.sub(rb"^http://[^/?]*", b"", target).partition(b"?")[0]


def _accepts(fields: list[bytes]) -> str:
    found = [value for name, _, value in (field.partition(b":") for field in fields) if name.lower() == b"accept"]
    return b",".join(found).decode("latin-1")


def _head(status: int, kind: str, length: int, fields: str = "") -> bytes:
    return (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n"
        f"{fields}Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    ).encode()
