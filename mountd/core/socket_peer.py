"""Who is at the other end of a Unix socket, as the kernel noted it at connect or listen.

Standard library only: training jobs import it.
"""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple, Protocol

_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid


class SocketPeer(NamedTuple):
    """A process and its user, as numbers of our own namespaces; pid 0: a process outside of ours."""

    pid: int
    uid: int


class _Connection(Protocol):
    """A socket of Python or of trio."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


def socket_peer(connection: _Connection) -> SocketPeer:
    """The other end of a connected Unix socket. Raises OSError."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _gid = _CREDENTIALS.unpack(credentials)
    return SocketPeer(pid, uid)
