"""Who is at the other end of a Unix socket, as the kernel noted it at connect or listen.

Standard library only: training jobs import it.
"""

from __future__ import annotations

import array
import socket
import struct
from typing import NamedTuple, Protocol

_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid
_SO_PEERGROUPS = 59  # <asm-generic/socket.h>; the same but for alpha, parisc and sparc. Since Linux 4.13.
_MOST_BYTES = 1024
"""What Python lets an answer be long: 256 groups."""


class SocketPeer(NamedTuple):
    """A process and its user, as numbers of our own namespaces; pid 0: a process outside of ours."""

    pid: int
    uid: int
    gid: int


class HasPeer(Protocol):
    """A socket of Python or of trio."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


def socket_peer(connection: HasPeer) -> SocketPeer:
    """The other end of a connected Unix socket. Raises OSError."""
    return SocketPeer(*_CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)))


def socket_peer_groups(connection: HasPeer) -> tuple[int, ...]:
    """The supplementary groups of the other end of a connected Unix socket. Raises OSError, also if there are more than
    256: without all of them nobody knows what a user may do."""
    return tuple(array.array("I", connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_BYTES)))
