"""`TunnelStream`: the daemon's end of one tunnel, a stream of bytes in memory whose other end is asked piece by piece.

The connection that serves a client awaits on it as on a socket. The exchanges of the client put bytes in and take
bytes out, and never wait: what there is no room for is not taken. Event loop only.
"""

from __future__ import annotations

import trio

_INCOMING_BYTES = 256 * 1024
"""From the client, and not read yet: sixteen exchanges, as many as come in one turn of the event loop."""
_OUTGOING_BYTES = 64 * 1024
"""For the client, and not fetched yet; as little as a socket buffers."""


class TunnelStream(trio.abc.Stream):
    """As trio's streams. One task sends and one receives at a time."""

    def __init__(self) -> None:
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self._client_left = False
        self._closed = False
        self._changed = trio.Event()

    # -- for the connection -------------------------------------------------------------------------------------------

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """What the client has said, at least one byte; b"" once it has left and all was received."""
        await trio.lowlevel.checkpoint()
        while True:
            if self._closed:
                raise trio.ClosedResourceError
            if self._incoming:
                part = bytes(self._incoming[:max_bytes])
                del self._incoming[: len(part)]
                return part
            if self._client_left:
                return b""
            await self._changed.wait()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Have the client fetch all of it; returns when the last of it has found room. Raises BrokenResourceError when
        the client has left."""
        await trio.lowlevel.checkpoint()
        rest = memoryview(data)
        while rest:
            await self.wait_send_all_might_not_block()
            if self._client_left:
                raise trio.BrokenResourceError("the client has left")
            room = _OUTGOING_BYTES - len(self._outgoing)
            self._outgoing += rest[:room]
            rest = rest[room:]

    async def wait_send_all_might_not_block(self) -> None:
        """Until there is room, or nobody who fetches."""
        while not self._closed and not self._client_left and len(self._outgoing) >= _OUTGOING_BYTES:
            await self._changed.wait()
        if self._closed:
            raise trio.ClosedResourceError

    async def aclose(self) -> None:
        """Nothing more is read or said; what was said can still be fetched."""
        self._closed = True
        self._incoming.clear()
        self._wake()
        await trio.lowlevel.checkpoint()

    # -- for the exchanges --------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Everything was said, and fetched."""
        return self._closed and not self._outgoing

    @property
    def has_more(self) -> bool:
        """There are bytes for the client."""
        return bool(self._outgoing)

    def put_nowait(self, data: bytes) -> int:
        """How many of the client's bytes were taken, from the first on. All, once nobody reads them."""
        if self._closed:
            return len(data)
        taken = data[: _INCOMING_BYTES - len(self._incoming)]
        self._incoming += taken
        self._wake()
        return len(taken)

    def take_nowait(self, room_bytes: int) -> bytes:
        """Bytes for the client."""
        part = bytes(self._outgoing[:room_bytes])
        del self._outgoing[: len(part)]
        if part:
            self._wake()
        return part

    def leave(self) -> None:
        """The client will not ask any more."""
        self._client_left = True
        self._outgoing.clear()
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
