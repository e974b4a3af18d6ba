"""Asking the daemon of another cache of the same root to give room back, over its control socket.

Bounded in time: one that does not answer is one that gives nothing. Where several users share a root, each says by
himself where his daemon listens, and might name a socket of anybody's: who listens is looked at before a word is said.
"""

from __future__ import annotations

import logging
import os

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

_ASK_S = 20.0
"""It may have to evict: a gigabyte of small files takes seconds."""
_ANSWER_BYTES = 1 << 16


async def ask_to_yield(control: bytes, owner: int, wanted_bytes: int) -> int | None:
    """How much the daemon of user `owner` at this socket has given back of so much; 0 where it does not answer in time,
    or is another user's, None where nobody hears."""
    with trio.move_on_after(_ASK_S):
        try:
            stream = await trio.open_unix_socket(os.fsdecode(control))
        except (OSError, ValueError) as error:
            log.info("the daemon at %s cannot be asked for room: %s", os.fsdecode(control), error)
            return None
        try:
            async with stream:
                if (uid := socket_peer(stream.socket).uid) != owner:
                    log.warning("%s is no socket of user %d: user %d listens", os.fsdecode(control), owner, uid)
                    return 0
                await stream.send_all(encode(Yield(wanted_bytes)))
                data = bytearray()
                while len(data) < _ANSWER_BYTES and (part := await stream.receive_some(65536)):
                    data += part
            reply = decode_reply(bytes(data[HEADER_BYTES : HEADER_BYTES + frame_bytes(bytes(data[:HEADER_BYTES]))]))
        except (OSError, trio.BrokenResourceError, ProtocolError) as error:
            log.info("the daemon at %s gives no room: %s", os.fsdecode(control), error)
            return 0
        if isinstance(reply, Failure):
            log.info("the daemon at %s gives no room: %s", os.fsdecode(control), reply.message)
        return reply.bytes if isinstance(reply, Result) else 0
    return 0
