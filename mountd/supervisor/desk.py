"""The keeper's own socket: what state the mount is in, and requests to change what answers on it.

One JSON object on a line, one JSON object back, with descriptors for whoever joins, and the connection is closed. Only
root and the owner of the mount are answered; a client that is slow is dropped, since there is one thread.
`hfs/mounting/keeper.py` is the other side.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any

from hfs.mountd.supervisor.daemons import Malformed, read
from hfs.mountd.supervisor.loop import Loop

_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid
_REQUEST_BYTES = 4 << 20
"""An environment and a configuration; the kernel limits the first to 2 MiB for a new process."""
_CLIENTS = 64
_SEND_S = 2.0

Reply = Callable[[dict[str, Any]], None]


class DeskClient:
    """One request's. `reply` once."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self._connection = connection
        self._pid = pid
        """As the kernel has it; 0: a process of another pid namespace."""

    @property
    def session(self) -> int:
        """The session that its process is in, while it waits for the answer; 0: of another pid namespace, or gone. Not
        what it says itself: in a container numbers are others."""
        try:
            return os.getsid(self._pid) if self._pid else 0
        except OSError:
            return 0

    def reply(self, reply: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Answer, and hang up. `descriptors` are sent with the answer."""
        self._connection.settimeout(_SEND_S)
        data = json.dumps(reply).encode() + b"\n"
        with self._connection, contextlib.suppress(OSError):
            sent = socket.send_fds(self._connection, [data], list(descriptors)) if descriptors else 0
            self._connection.sendall(data[sent:])


Answer = Callable[[dict[str, Any], DeskClient], None]
"""Raises Malformed before it has done anything."""


class Desk:
    """Listens at `path` until closed. `answer(request, client)` answers the client once, at once or later."""

    def __init__(self, path: str, loop: Loop, answer: Answer) -> None:
        """Raises OSError."""
        self._path = path
        self._loop = loop
        self._answer = answer
        self._unread: dict[socket.socket, bytes] = {}
        self._pids: dict[socket.socket, int] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(path)
            # Until listen, every connect is refused: there is no moment in which the mode is wider.
            os.chmod(path, 0o600)
            self._listener.listen(_CLIENTS)
            self._listener.setblocking(False)
        except OSError:
            self._listener.close()
            raise
        loop.watch(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        pid, uid, _ = _CREDENTIALS.unpack(client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if uid not in {0, os.geteuid()} or len(self._unread) >= _CLIENTS:
            client.close()
            return
        client.setblocking(False)
        self._unread[client] = b""
        self._pids[client] = pid
        self._loop.watch(client, lambda: self._read(client))

    def _read(self, client: socket.socket) -> None:
        try:
            part = client.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        data = self._unread[client] + part
        self._unread[client] = data
        if part and b"\n" not in data and len(data) <= _REQUEST_BYTES:
            return
        self._loop.ignore(client)
        del self._unread[client]
        pid = self._pids.pop(client)
        request = read(data)
        if request is None:
            client.close()
            return
        answered = DeskClient(client, pid)
        try:
            self._answer(request, answered)
        except Malformed as error:
            answered.reply({"error": f"the request is not understood: {error}", "code": 1})

    def close(self) -> None:
        """Stop to listen; the socket's name goes."""
        for client in self._unread:
            self._loop.ignore(client)
            client.close()
        self._unread.clear()
        self._loop.ignore(self._listener)
        self._listener.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)
