"""One client: frames in, frames out, bounded in time; and what a command tells while it runs.

A client is never trusted to be quick, polite or alive: a request must arrive within REQUEST_S, each reply must be taken
within SEND_S, and a client that goes away cancels what it has asked for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import trio

from hfs.mountd.wire.protocol import (
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    Failure,
    PathFault,
    Progress,
    ProtocolError,
    Reply,
    Request,
    Result,
    Rows,
    Touches,
    decode_request,
    encode,
    frame_bytes,
)

REQUEST_S = 10.0
"""A client writes its request at once; only a stopped or hostile one takes longer."""
SEND_S = 30.0
"""A client may pause (Ctrl-Z of a second thought) but not hold buffers for ever."""
PROGRESS_S = 0.2
"""Five a second: what a progress bar can show."""

Report = Callable[[Progress | Rows | Touches], Awaitable[None]]
"""Given to a command to tell how far it is. Call it as often as there is something new: Progress is thinned to one in
PROGRESS_S (its faults are kept for the next), Rows are sent each. Waits for the client; any task of the command may
call it. It is a checkpoint, and Cancelled is raised there once the client has gone."""


class ClientGone(Exception):
    """The client did not take its reply in time."""


class ControlConnection:
    """One client: frames in, frames out, bounded in time."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._sending = trio.Lock()
        self._intact = True
        self._sent_at = -PROGRESS_S
        self._faults: list[PathFault] = []

    async def receive(self, most_bytes: int = MAX_FRAME_BYTES) -> Request | None:
        """The request; None when the client left without one. Raises ProtocolError, also for a slow one, and for one of
        more than `most_bytes`."""
        with trio.move_on_after(REQUEST_S):
            header = await self._exactly(HEADER_BYTES)
            if not header:
                return None
            size = frame_bytes(header)
            if size > most_bytes:
                raise ProtocolError(f"a request of {size} bytes is too long for this user")
            body = await self._exactly(size)
            if not body:
                return None
            return decode_request(body)
        raise ProtocolError(f"the request did not arrive within {REQUEST_S:g} s")

    async def next_frame(self, refusal: Callable[[int], Failure | None]) -> bytes | Failure | None:
        """The body of a learner's next frame, however long that takes to begin; None when the learner has gone.
        `refusal` is told how long it is before it is taken in: a Failure is what comes of it, and nothing is kept.

        Raises ProtocolError, also for a frame that begins and does not end.
        """
        first = bytes(await self._stream.receive_some(1))
        if not first:
            return None
        with trio.move_on_after(REQUEST_S):
            rest = await self._exactly(HEADER_BYTES - 1)
            if not rest:
                return None
            size = frame_bytes(first + rest)
            refused = refusal(size)
            if refused is None:
                return await self._exactly(size) or None
            return refused if await self._skipped(size) else None
        raise ProtocolError(f"a message did not arrive within {REQUEST_S:g} s")

    async def _exactly(self, size: int) -> bytes:
        """`size` bytes, or none when the client closes before. Grows as bytes arrive: a length alone costs nothing."""
        data = bytearray()
        while len(data) < size:
            part = await self._stream.receive_some(min(size - len(data), 65536))
            if not part:
                return b""
            data += part
        return bytes(data)

    async def _skipped(self, size: int) -> bool:
        """Take `size` bytes and keep none; False when the client closes before."""
        while size:
            part = await self._stream.receive_some(min(size, 65536))
            if not part:
                return False
            size -= len(part)
        return True

    async def send(self, reply: Reply) -> None:
        """Send one frame. Raises ClientGone when the client does not take it, and after a frame that was cut off."""
        try:
            frame = encode(reply)
        except (ProtocolError, TypeError) as error:
            frame = encode(Failure(f"the answer cannot be sent: {error}", 1))
        with trio.move_on_after(SEND_S):
            async with self._sending:
                if not self._intact:
                    raise ClientGone
                self._intact = False
                await self._stream.send_all(frame)
                self._intact = True
            return
        raise ClientGone

    async def finish(self, reply: Reply) -> None:
        """Send the last word, with the faults that no Progress has carried."""
        if isinstance(reply, Result) and self._faults:
            reply = msgspec.structs.replace(reply, faults=[*self._faults, *reply.faults])
        await self.send(reply)

    async def watch(self, scope: trio.CancelScope) -> None:
        """Cancel the request when the client closes, or speaks out of turn."""
        try:
            await self._stream.receive_some(1)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # gone as well
        scope.cancel()

    def reporter(self, scope: trio.CancelScope) -> Report:
        """The `report` of one command; a client that has gone cancels `scope`."""

        async def report(news: Progress | Rows | Touches) -> None:
            if isinstance(news, Progress):
                self._faults.extend(news.faults)
                if trio.current_time() < self._sent_at + PROGRESS_S:
                    await trio.lowlevel.checkpoint()
                    return
                self._sent_at = trio.current_time()
                faults, self._faults = self._faults, []
                news = msgspec.structs.replace(news, faults=faults)
            try:
                await self.send(news)
            except (trio.BrokenResourceError, trio.ClosedResourceError, ClientGone):
                scope.cancel()
                await trio.lowlevel.checkpoint()

        return report
