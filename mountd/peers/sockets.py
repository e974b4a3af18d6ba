"""How the ZeroMQ sockets of a job are made: the job's secret gives one CURVE key pair, of clients and servers alike, so
that who has not got it cannot even be talked to."""

from __future__ import annotations

import hashlib

import zmq
from zmq.utils import z85

Socket = zmq.Socket[bytes]

_MOST_FRAME_BYTES = 1 << 20
_QUEUE = 16
"""Messages in ZeroMQ's queues, each way for each connection: 4 MB in parts."""
_HANDSHAKE_MS, _RECONNECT_MS, _RECONNECT_MOST_MS = 5_000, 100, 1_000
_MOST_SOCKETS = 4096


class Sockets:
    """Those of one node, for one job."""

    def __init__(self, secret: bytes) -> None:
        self.context: zmq.Context[Socket] = zmq.Context()
        self.context.set(zmq.MAX_SOCKETS, _MOST_SOCKETS)
        self._key = z85.encode(hashlib.blake2b(secret, digest_size=32, person=b"hfs peers").digest())
        self._public = zmq.curve_public(self._key)
        self.zap = self.context.socket(zmq.REP)
        self.zap.bind("inproc://zeromq.zap.01")

    def authenticate(self) -> None:
        """ZeroMQ asks at `zap` whether a client's key is one of ours (ZAP, RFC 27). Raises Again."""
        version, request, *_, key = self.zap.recv_multipart(zmq.NOBLOCK)
        code = b"200" if z85.encode(key) == self._public else b"400"
        self.zap.send_multipart([version, request, code, b"", b"", b""])

    def listening(self, endpoint: str) -> Socket:
        """Raises ZMQError."""
        socket = self._made(zmq.ROUTER, (zmq.CURVE_SERVER, 1), (zmq.ZAP_DOMAIN, b"hfs"))
        socket.bind(f"tcp://{endpoint}")
        return socket

    def connected(self, endpoint: str) -> Socket:
        """It connects as soon as somebody listens there, and again."""
        socket = self._made(zmq.DEALER, (zmq.CURVE_SERVERKEY, self._public), (zmq.IMMEDIATE, 1))
        socket.connect(f"tcp://{endpoint}")
        return socket

    def _made(self, kind: int, *options: tuple[int, int | bytes]) -> Socket:
        socket = self.context.socket(kind)
        always: tuple[tuple[int, int | bytes], ...] = (
            *((zmq.SNDHWM, _QUEUE), (zmq.RCVHWM, _QUEUE), (zmq.MAXMSGSIZE, _MOST_FRAME_BYTES), (zmq.IPV6, 1)),
            *((zmq.RECONNECT_IVL, _RECONNECT_MS), (zmq.RECONNECT_IVL_MAX, _RECONNECT_MOST_MS)),
            *((zmq.HANDSHAKE_IVL, _HANDSHAKE_MS), (zmq.CURVE_SECRETKEY, self._key)),
            (zmq.CURVE_PUBLICKEY, self._public),
        )
        for option, value in (*always, *options):
            socket.setsockopt(option, value)
        return socket
