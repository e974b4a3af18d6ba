"""Asking the daemon of another cache of ours, in the same root, to give room back, over its control socket.

Who asks bounds the time. The way to the socket may lead anywhere, through a mount that does not answer or that of this
daemon itself, so a thread goes it, which is left behind then; while one is, nobody else is asked.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from hfs.mountd.core.socket_peer import socket_peer
from hfs.mountd.wire.protocol import (
    HEADER_BYTES,
    Failure,
    ProtocolError,
    Result,
    Yield,
    decode_reply,
    encode,
    frame_bytes,
)

log = logging.getLogger(__name__)

_ANSWER_BYTES = 1 << 16


class NeighbourDaemons:
    """Other daemons of our user."""

    def __init__(self, run_patient: Callable[..., Awaitable[Any]]) -> None:
        """`run_patient`: as of Workers."""
        self._run_patient = run_patient
        self._connecting = trio.CapacityLimiter(1)

    async def ask_to_yield(self, control: bytes, wanted_bytes: int) -> int | None:
        """How much the daemon at this socket has given back of so much; 0 where it is another user's or says something
        else, None where nobody hears."""
        path = os.fsdecode(control)
        if not self._connecting.available_tokens:
            return 0
        try:
            connection = await self._run_patient(_connected, path, abandon_on_cancel=True, limiter=self._connecting)
        except (OSError, ValueError) as error:
            log.info("the daemon at %s cannot be asked for room: %s", path, error)
            return None
        try:
            async with trio.SocketStream(trio.socket.from_stdlib_socket(connection)) as stream:
                if (uid := socket_peer(stream.socket).uid) != os.geteuid():
                    log.warning("%s is no socket of ours: user %d listens", path, uid)
                    return 0
                await stream.send_all(encode(Yield(wanted_bytes)))
                data = bytearray()
                while len(data) < _ANSWER_BYTES and (part := await stream.receive_some(65536)):
                    data += part
            reply = decode_reply(bytes(data[HEADER_BYTES : HEADER_BYTES + frame_bytes(bytes(data[:HEADER_BYTES]))]))
        except (OSError, trio.BrokenResourceError, ProtocolError) as error:
            log.info("the daemon at %s gives no room: %s", path, error)
            return 0
        if isinstance(reply, Failure):
            log.info("the daemon at %s gives no room: %s", path, reply.message)
        return reply.bytes if isinstance(reply, Result) else 0


def _connected(path: str) -> socket.socket:
    """In a thread."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.setblocking(False)
        connection.connect(path)
    except BaseException:
        connection.close()
        raise
    return connection
