"""Strangers at the port where a daemon listens for its peers.

    attack.py ADDRESS PORT SECRET

Requests: {"how": HOW, "count": N}. HOW:

    garbage   N connections one after the other, each says random bytes and is closed
    open      N connections that say half of a greeting, all open until the next request
    loris     the same, and each says one byte more every tenth of a second for some seconds
    secret    N sockets of ZeroMQ with another secret than SECRET, for some seconds
    release   N hellos of another release, with the right secret
    endless   N frames of one message that never ends, with the right secret
    close     all that is open is closed

The result has "made": connections, or messages that could be sent.
"""

import os
import resource
import socket
import sys
import time
from typing import Any

import zmq
from barrier import serve

from hfs.mountd.peers.sockets import Sockets
from hfs.mountd.peers.wires import HELLO

ADDRESS, PORT, SECRET = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode()
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE"
LASTS_S = 5.0
FRAME_BYTES = 1 << 20

_opened: list[socket.socket] = []


def _connect() -> socket.socket:
    return socket.create_connection((ADDRESS, PORT), timeout=10)


def _garbage(count: int) -> int:
    for _ in range(count):
        with _connect() as made:
            made.sendall(os.urandom(64))
    return count


def _open(count: int) -> int:
    for _ in range(count):
        _opened.append(_connect())
        _opened[-1].sendall(GREETING)
    return len(_opened)


def _loris(count: int) -> int:
    _open(count)
    until_s = time.monotonic() + LASTS_S
    while time.monotonic() < until_s:
        for made in _opened:
            try:
                made.send(b"\0", socket.MSG_DONTWAIT)
            except OSError:
                pass  # it was closed there
        time.sleep(0.1)
    return count


def _sockets(secret: bytes, count: int, *frames: bytes) -> int:
    sockets, sent = Sockets(secret), 0
    lines = [sockets.connected(f"{ADDRESS}:{PORT}") for _ in range(count)]
    until_s = time.monotonic() + LASTS_S
    while time.monotonic() < until_s:
        for line in lines:
            try:
                line.send_multipart(frames, zmq.NOBLOCK)
                sent += 1
            except zmq.Again:
                pass
        time.sleep(0.05)
    sockets.context.destroy(0)
    return sent


def _endless(count: int) -> int:
    sockets, sent = Sockets(SECRET), 0
    line = sockets.connected(f"{ADDRESS}:{PORT}")
    until_s = time.monotonic() + LASTS_S
    while sent < count and time.monotonic() < until_s:
        try:
            line.send(bytes(FRAME_BYTES), zmq.NOBLOCK | zmq.SNDMORE)
            sent += 1
        except zmq.Again:
            time.sleep(0.01)
    sockets.context.destroy(0)
    return sent


def work(how: str, count: int = 0) -> dict[str, Any]:
    made = 0
    if how == "garbage":
        made = _garbage(count)
    elif how == "open":
        made = _open(count)
    elif how == "loris":
        made = _loris(count)
    elif how == "secret":
        made = _sockets(SECRET[::-1] + b"another", count, b"whoever!", HELLO, b"0", b"24370", b"")
    elif how == "release":
        made = _sockets(SECRET, count, b"whoever!", HELLO, b"0.0.1", b"24370", b"")
    elif how == "endless":
        made = _endless(count)
    else:
        for one in _opened:
            one.close()
        _opened.clear()
    return {"made": made}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    serve(work)
