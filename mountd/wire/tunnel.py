"""The control connection through the mount itself: one ioctl on an open directory of it, for both of its ends.

    client                                        daemon
      flags OPEN, a random token           ---->
      token, bytes for the daemon          ---->
                                           <----  how many of them it took; bytes for the client
      flags CLOSE                          ---->

The bytes are those of the control socket (mountd/wire/protocol.py). Each exchange is answered at once: a client that
waits asks again, which also says that it lives. A tunnel belongs to the user and groups that opened it, and to the
process; whoever else names its token is told what is told of a token that never was.

Why an ioctl: a mount is all that a container must share with its daemon. Sockets in /run and /tmp are not seen there,
abstract ones belong to a network namespace, and a mount that is read-only takes no writes; an extended attribute can be
asked for, but says 255 bytes at a time. The kernel passes an ioctl on whatever the mount's flags are, 16 KB each way,
and with it who asks, in the daemon's own numbers. Not on a file handle: a daemon that is replaced, or a mount whose
opens are stateless, knows none, so a token stands for the tunnel.

Standard library only; touches no mount itself.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

EXCHANGE_BYTES = 16376
"""Of the ioctl's argument, either way: its size has 14 bits in the number of the command."""

EXCHANGE = 3 << 30 | EXCHANGE_BYTES << 16 | 0xF5 << 8 | 1
"""_IOWR(0xF5, 1, char[EXCHANGE_BYTES]); TUNNEL_EXCHANGE in mountd/native/plane/plane.h."""

TOKEN_BYTES = 16
"""Nobody guesses 128 bits; and it would need the same user."""

OPEN, CLOSE = 1, 2
"""Flags of a request. OPEN: the token is new. CLOSE: what was said so far is all, and no answer is waited for."""

MORE, END = 1, 2
"""Flags of an answer. MORE: there are further bytes. END: there will be none, and the tunnel is gone."""

_REQUEST = struct.Struct(f"={TOKEN_BYTES}sIII")  # token, flags, bytes for the daemon, room for bytes from it
_ANSWER = struct.Struct("=III")  # how many bytes were taken, flags, bytes for the client

BODY_BYTES = EXCHANGE_BYTES - _REQUEST.size
"""The most that goes either way in one exchange."""


class NoExchange(ValueError):
    """Bytes that are no request, or no answer."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a client asks."""

    token: bytes
    data: bytes = b""
    flags: int = 0
    room_bytes: int = BODY_BYTES
    """How many bytes it takes back, 0 to BODY_BYTES."""

    def encode(self) -> bytes:
        """The argument of the ioctl, of EXCHANGE_BYTES."""
        head = _REQUEST.pack(self.token, self.flags, len(self.data), self.room_bytes)
        return (head + self.data).ljust(EXCHANGE_BYTES, b"\0")

    @classmethod
    def decode(cls, argument: bytes) -> Exchange:
        """Raises NoExchange."""
        if len(argument) != EXCHANGE_BYTES:
            raise NoExchange(f"{len(argument)} bytes")
        token, flags, size, room_bytes = _REQUEST.unpack_from(argument)
        if size > BODY_BYTES or room_bytes > BODY_BYTES or flags & ~(OPEN | CLOSE):
            raise NoExchange(f"{size} bytes, room for {room_bytes}, flags {flags:x}")
        return cls(token, argument[_REQUEST.size : _REQUEST.size + size], flags, room_bytes)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a daemon answers."""

    taken_bytes: int
    """Of the client's; the rest is to be said again."""
    data: bytes = b""
    flags: int = 0

    def encode(self) -> bytes:
        """At most EXCHANGE_BYTES."""
        return _ANSWER.pack(self.taken_bytes, self.flags, len(self.data)) + self.data

    @classmethod
    def decode(cls, argument: bytes) -> Answer:
        """Raises NoExchange. Bytes behind it mean nothing."""
        if len(argument) < _ANSWER.size:
            raise NoExchange(f"{len(argument)} bytes")
        taken_bytes, flags, size = _ANSWER.unpack_from(argument)
        if size > len(argument) - _ANSWER.size:
            raise NoExchange(f"{size} bytes of {len(argument)}")
        return cls(taken_bytes, argument[_ANSWER.size : _ANSWER.size + size], flags)
