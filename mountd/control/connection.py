"""One client: who it is and what it may ask for; frames in, frames out, bounded in time; and what it is told while a
command runs.

A client is never trusted to be quick, polite or alive: a request must arrive within REQUEST_S, each reply must be taken
within SEND_S, and a client that goes away cancels what it has asked for. Root and the owner of the mount may do
everything. Others, who are let in where the mount is for others too, may ask how the daemon is, where what is cached,
and say in which order they read: nothing of that tells them names or bytes that they could not have from the source.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec
import trio

from hfs.mountd.core.caller import Credentials
from hfs.mountd.core.socket_places import HasPeer, socket_peer, socket_peer_groups
from hfs.mountd.hints import Learners
from hfs.mountd.wire.hints import decode_learner
from hfs.mountd.wire.protocol import (
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    Cluster,
    Directory,
    Failure,
    Join,
    PathFault,
    Progress,
    ProtocolError,
    Reply,
    Request,
    Result,
    Rows,
    Status,
    Touches,
    decode_request,
    encode,
    frame_bytes,
)

log = logging.getLogger(__name__)

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

_FOR_ALL = (Status, Directory, Cluster, Join)


class Requester(NamedTuple):
    """One end of a connection."""

    pid: int
    who: Credentials
    is_owner: bool
    """Root, or the owner of the mount."""
    is_known: bool = True
    """`who` is all of it. False: it may have other groups."""

    @property
    def reader(self) -> Credentials | None:
        """Whose rights at the source count; None: the daemon's own."""
        return None if self.is_owner else self.who

    def why_not(self, request: Request) -> str | None:
        """Why this is not for the one who asks; None if it is."""
        if not self.is_owner and not self.is_known and isinstance(request, Join):
            return "the daemon does not see which groups you are in, so it does not know what you may read"
        if self.is_owner or isinstance(request, _FOR_ALL):
            return None
        return f"only root and the owner of the mount may ask for {type(request).__name__.lower()}"


def requester_of(connection: HasPeer, owners: frozenset[int]) -> Requester:
    """The other end of a connected Unix socket. Raises OSError."""
    pid, uid, gid = socket_peer(connection)
    is_owner = uid in owners
    groups = () if is_owner else tuple(sorted(socket_peer_groups(connection)))
    return Requester(pid, Credentials(uid, gid, groups), is_owner)


def requester_through_mount(
    pid: int, uid: int, gid: int, groups: tuple[int, ...] | None, owners: frozenset[int]
) -> Requester:
    """Whom the kernel has named with a request of the mount. `groups`: the supplementary ones; None: not known."""
    is_owner = uid in owners
    who = Credentials(uid, gid, () if is_owner else tuple(sorted(groups or ())))
    return Requester(pid, who, is_owner, groups is not None)


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

    async def follow(self, learners: Learners, join: Join, requester: Requester) -> None:
        """A learner's frames in, short answers out, for as long as the job runs. A frame that has begun must arrive
        within the time of a request; between frames it may be silent for days. The end of the connection is the end of
        the learner, whatever the reason was; nothing it sends can end anything else."""
        pid = requester.pid
        session, answer = learners.join(join, pid, requester.reader)
        if session is None:
            await self.send(answer)
            return
        is_gone = False
        try:
            await self.send(answer)
            while (said := await self.next_frame(session.refusal)) is not None:
                message = said if isinstance(said, Failure) else decode_learner(said)
                try:
                    reply = message if isinstance(message, Failure) else await session.receive(message)
                except Exception as error:  # a defect, or no memory: the mount goes on
                    log.exception("control: the learner of process %d was let go", pid)
                    reply = Failure(f"the daemon failed: {error!r}; its log says more", 1)
                    await self.send(reply)
                    return
                if reply is not None and not is_gone:
                    try:
                        await self.send(reply)
                    except trio.BrokenResourceError:
                        is_gone = True  # it may have said more before: where the time of its last epoch went
                del said, message  # tens of megabytes, and the next may come in hours
        except ProtocolError as error:
            log.warning("control: the learner of process %d was let go: %s", pid, error)
            await self.send(Failure(str(error), 2))
        finally:
            session.leave()

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
