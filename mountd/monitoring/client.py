"""One client of the metrics: its request is read and its reply written as far as the kernel takes them at that moment.

A collector's request has come when it is let in, and the reply is taken at once: then all is done without waiting, and
without a task. Whoever is slower waits in a task of the server (`server`). Never blocks, never logs what was sent.
"""

from __future__ import annotations

import enum
import socket
from collections.abc import Callable

from hfs.mountd.monitoring.http import HEAD_BYTES, is_whole, refusal, reply_to

_LATE_BYTES = 1 << 18
"""What is still taken of a request that was refused: who is cut off while it sends does not read the reply."""


class ClientWaits(enum.Enum):
    """What for, until there is more to do."""

    TO_READ = enum.auto()
    TO_WRITE = enum.auto()


class MetricsClient:
    """`move_on_nowait` until there is nothing to wait for, then `close`."""

    def __init__(self, connection: socket.socket, metrics: Callable[[bool], bytes]) -> None:
        """`connection`: one that does not block."""
        self.connection = connection
        self.answered = False
        """It has been given the metrics."""
        self._metrics = metrics
        self._head = bytearray()
        self._status = 0
        self._rest = memoryview(b"")
        """Of the reply."""
        self._late_bytes = -1
        """Taken of a request that was refused; -1: its reply is not sent yet."""

    def move_on_nowait(self) -> ClientWaits | None:
        """Read and write what can be. What to wait for then; None: it is over. Raises OSError if the client has gone,
        and what asking for the metrics raises."""
        try:
            if not self._status and not self._read():
                return None
        except BlockingIOError:
            return ClientWaits.TO_READ
        try:
            while self._rest:
                self._rest = self._rest[self.connection.send(self._rest) :]
        except BlockingIOError:
            return ClientWaits.TO_WRITE
        if self._status == 200:
            self.answered = True
            return None
        return self._take_late()

    def close(self) -> None:
        """Let go of the connection."""
        self.connection.close()

    def _read(self) -> bool:
        """The request. False if it has ended before. Raises BlockingIOError."""
        while not self._status:
            part = self.connection.recv(HEAD_BYTES)
            if not part:
                return False
            self._head += part
            if is_whole(self._head):
                self._status, reply = reply_to(bytes(self._head), self._metrics)
                self._rest = memoryview(reply)
            elif len(self._head) >= HEAD_BYTES:
                self._status = 431
                self._rest = memoryview(refusal(431, f"a request has at most {HEAD_BYTES} bytes"))
        return True

    def _take_late(self) -> ClientWaits | None:
        if self._late_bytes < 0:
            self._late_bytes = 0
            self.connection.shutdown(socket.SHUT_WR)
        try:
            while self._late_bytes < _LATE_BYTES and (part := self.connection.recv(65536)):
                self._late_bytes += len(part)
        except BlockingIOError:
            return ClientWaits.TO_READ
        return None
