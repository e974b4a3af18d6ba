"""The control socket: who may talk to the daemon, how many, for how long; each request handed to `CommandHandler`.

`mountd/daemon/daemon.py` enters `serve`; the socket file goes when it leaves. What a request does is not known here:
`mountd/control/commands.py` implements `CommandHandler`.

A client is never trusted to be quick, polite or alive: a request must arrive within REQUEST_S, each reply must be taken
within SEND_S, a client that goes away cancels its request, and the daemon's other work never waits for any of it. Only
root and the owner of the mount are answered. All on the event loop's thread; opens no path but the socket's own.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import stat
import struct
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Protocol

import trio

from mountd.base.errors import ConfigError, HfsError, MountError
from mountd.control.learners import Joins, serve_learner
from mountd.core import socket_places
from mountd.core.background import guarded, start_for_life
from mountd.core.config import Config
from mountd.core.open_files import OpenFiles, is_refusal
from mountd.wire.protocol import (
    HEADER_BYTES,
    Check,
    Cluster,
    Directory,
    Evict,
    Failure,
    Join,
    List,
    PathFault,
    Progress,
    ProtocolError,
    Record,
    Reply,
    Request,
    Result,
    Rows,
    Status,
    Touches,
    Warm,
    decode_request,
    encode,
    frame_bytes,
)

__all__ = ["CommandHandler", "Report", "serve", "socket_path"]

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 64
"""A status a second from every rank of a large node, and room for commands; beyond it is a client out of control."""
REQUEST_S = 10.0
"""A client writes its request at once; only a stopped or hostile one takes longer."""
SEND_S = 30.0
"""A client may pause (Ctrl-Z of a second thought) but not hold buffers for ever."""
PROGRESS_S = 0.2
"""Five a second: what a progress bar can show."""
_ACCEPT_AGAIN_S = 0.05
"""After a connection for which there was no descriptor: others close theirs meanwhile."""

_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid

Report = Callable[[Progress | Rows | Touches], Awaitable[None]]
"""Given to a command to tell how far it is. Call it as often as there is something new: Progress is thinned to one in
PROGRESS_S (its faults are kept for the next), Rows are sent each. Waits for the client; any task of the command may
call it. It is a checkpoint, and Cancelled is raised there once the client has gone."""


class CommandHandler(Protocol):
    """What the daemon can be asked to do. Paths are relative to the mount's root, b"" is the root itself.

    A command raises HfsError when it cannot do anything at all; single paths that fail are counted in `failed` and
    named in `faults`. A fault given to `report` is not given again in the Result. Each is cancelled when its client
    goes.
    """

    async def status(self) -> dict[str, object]:
        """The object of `hfs status --json`. Never waits for the source or a disk."""

    async def warm(self, paths: Sequence[bytes], jobs: int, report: Report) -> Result:
        """Stage files and trees; returns when they are committed. jobs 0: as many as the daemon likes."""

    async def evict(self, paths: Sequence[bytes], everything: bool, report: Report) -> Result:
        """Drop what is staged; open files are `skipped`."""

    async def check(self, paths: Sequence[bytes], against_source: bool, report: Report) -> Result:
        """Verify what is staged; damaged files are `failed` (and dropped)."""

    async def list(self, paths: Sequence[bytes], report: Report) -> Result:
        """Report Rows of what is staged; the sums are the Result."""

    async def record(self, report: Report) -> Result:
        """Report Touches until the client goes."""

    def directory(self) -> dict[str, object]:
        """The nodes that share their caches, as `protocol.Directory` says."""

    async def cluster(self) -> dict[str, object]:
        """All nodes of the job, as `protocol.Cluster` says. Takes seconds where one does not answer."""

    @property
    def learners(self) -> Joins:
        """Who takes learners in."""


@contextlib.asynccontextmanager
async def serve(
    path: str, commands: CommandHandler, nursery: trio.Nursery, open_files: OpenFiles
) -> AsyncIterator[None]:
    """Answer in `nursery` on a socket at `path` until the block ends; it goes with the block.

    A socket file that nobody answers is replaced; raises MountError for one that somebody does, for anything else at
    the path, and when none can be made.
    """
    listener = _listen(path)
    mark = _identity(path)
    gate = _Gate(commands, frozenset({0, os.geteuid()}))
    scope = trio.CancelScope()
    listeners = [_Listener(trio.SocketListener(trio.socket.from_stdlib_socket(listener)), open_files)]

    async def listen() -> None:
        with scope:
            await trio.serve_listeners(gate.answer, listeners)

    start_for_life(nursery, "control socket", listen)
    try:
        yield
    finally:
        scope.cancel()
        listener.close()
        if mark is not None and _identity(path) == mark:  # not one that was put in its place
            os.unlink(path)


class _Listener(trio.abc.Listener[trio.SocketStream]):
    """As trio's, and has descriptors closed that are only kept where there is none for a connection."""

    def __init__(self, listener: trio.SocketListener, open_files: OpenFiles) -> None:
        self._listener = listener
        self._open_files = open_files

    async def accept(self) -> trio.SocketStream:
        """The next connection."""
        while True:
            try:
                return await self._listener.accept()
            except OSError as error:
                if not is_refusal(error):
                    raise
            self._open_files.refuse()
            await trio.sleep(_ACCEPT_AGAIN_S)

    async def aclose(self) -> None:
        """Close the socket."""
        await self._listener.aclose()


@contextlib.contextmanager
def socket_path(config: Config) -> Iterator[str]:
    """The path of the socket, in a directory that nobody else can write to: config.control, else a new name in the
    user's runtime directory, else in a directory of its own, which goes with the block."""
    if config.control is not None:
        yield os.path.abspath(config.control)
        return
    path = socket_places.new_path(config.mountpoint, socket_places.DAEMON)
    if path is not None:
        yield path
        return
    # A container or a user namespace where no directory is ours.
    with tempfile.TemporaryDirectory(prefix="hfs-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        yield f"{directory}/{socket_places.prefix_of(config.mountpoint)}{socket_places.DAEMON}"


def _listen(path: str) -> socket.socket:
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        # Until listen, every connect is refused: there is no moment in which the mode is wider.
        os.chmod(path, 0o600)
        listener.listen(MAX_CONNECTIONS)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise MountError(
            f"control socket {path}: {error.strerror or error}; give another with --control PATH"
        ) from None
    return listener


def _remove_stale(path: str) -> None:
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise MountError(f"control socket {path}: there is something else; give another with --control PATH")
    except FileNotFoundError:
        return
    except OSError as error:
        raise MountError(f"control socket {path}: {error.strerror}; give another with --control PATH") from None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        result = probe.connect_ex(path)
        if result in {errno.ECONNREFUSED, errno.ENOENT}:
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass  # its owner was faster
            except OSError as error:
                raise MountError(f"control socket {path} is stale and cannot be removed: {error.strerror}") from None
            return
        pid = _peer(probe)[0] if result == 0 else 0
    owner = f"process {pid}" if pid else "another process"
    raise MountError(f"control socket {path} is in use by {owner}; give another with --control PATH")


def _identity(path: str) -> tuple[int, int, int] | None:
    # ctime as well: ext4 gives the number of a removed inode to the next file.
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns


def _peer(connection: socket.socket | trio.socket.SocketType) -> tuple[int, int]:
    """(pid, uid) of the other end, as the kernel noted them at connect or listen."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _gid = _CREDENTIALS.unpack(data)
    return pid, uid


class _Gate:
    """Lets connections in: few enough, from the right users, one request each."""

    def __init__(self, commands: CommandHandler, allowed_uids: frozenset[int]) -> None:
        self._commands = commands
        self._allowed_uids = allowed_uids
        self._open = 0
        self._learners = 0
        """Of the open ones: those that have joined, whose number `Joins` bounds."""

    async def answer(self, stream: trio.SocketStream) -> None:
        """Serve one connection. Never raises but Cancelled: one client must not end the others."""
        await guarded("control connection", self._answer, stream)

    async def _answer(self, stream: trio.SocketStream) -> None:
        self._open += 1
        try:
            async with stream:
                pid, uid = _peer(stream.socket)
                connection = _Connection(stream)
                if uid not in self._allowed_uids:
                    log.warning("control: process %d of user %d was refused", pid, uid)
                    await connection.send(Failure("only root and the owner of the mount may ask its daemon", 1))
                elif self._open - self._learners > 2 * MAX_CONNECTIONS:
                    return  # not even an answer: that, too, takes time
                elif self._open - self._learners > MAX_CONNECTIONS:
                    await connection.send(Failure(f"{MAX_CONNECTIONS} commands are running; try again", 1))
                else:
                    await self._serve(connection, pid)
        except (trio.BrokenResourceError, trio.ClosedResourceError, _Gone, OSError):
            log.debug("control: a client went away")
        finally:
            self._open -= 1

    async def _serve(self, connection: _Connection, pid: int) -> None:
        reply: Reply
        try:
            request = await connection.receive()
        except ProtocolError as error:
            await connection.send(Failure(str(error), 2))
            return
        if request is None:
            return
        if isinstance(request, Join):
            self._learners += 1
            try:
                await serve_learner(
                    self._commands.learners, request, pid, next_frame=connection.next_frame, send=connection.send
                )
            finally:
                self._learners -= 1
            return
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connection.watch, scope)
                reply = await self._run(request, connection.reporter(scope))
                nursery.cancel_scope.cancel()
        if scope.cancelled_caught:
            log.info("control: %s was stopped by its client", type(request).__name__.lower())
            return
        await connection.finish(reply)

    async def _run(self, request: Request, report: Report) -> Reply:
        commands = self._commands
        try:
            match request:
                case Status():
                    return Result(detail=await commands.status())
                case Warm():
                    return await commands.warm(request.paths, request.jobs, report)
                case Evict():
                    return await commands.evict(request.paths, request.all, report)
                case Check():
                    return await commands.check(request.paths, request.against_source, report)
                case List():
                    return await commands.list(request.paths, report)
                case Record():
                    return await commands.record(report)
                case Cluster():
                    return Result(detail=await commands.cluster())
                case Directory():
                    return Result(detail=commands.directory())
                case Join():
                    raise ProtocolError("a learner joins on a connection of its own")
        except Exception as raised:
            error = _sole(raised)
            if isinstance(error, ConfigError):
                return Failure(str(error), 2)
            if isinstance(error, HfsError | OSError):
                return Failure(str(error), 1)
            log.exception("control: %s failed", type(request).__name__.lower())
            return Failure(f"the daemon failed: {error!r}; its log says more", 1)


def _sole(error: BaseException) -> BaseException:
    """What a nursery wrapped, where it wrapped only one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


class _Gone(Exception):
    """The client did not take its reply in time."""


class _Connection:
    """One client: frames in, frames out, bounded in time."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._sending = trio.Lock()
        self._intact = True
        self._sent_at = -PROGRESS_S
        self._faults: list[PathFault] = []

    async def receive(self) -> Request | None:
        """The request; None when the client left without one. Raises ProtocolError, also for a slow one."""
        with trio.move_on_after(REQUEST_S):
            header = await self._exactly(HEADER_BYTES)
            if not header:
                return None
            body = await self._exactly(frame_bytes(header))
            if not body:
                return None
            return decode_request(body)
        raise ProtocolError(f"the request did not arrive within {REQUEST_S:g} s")

    async def next_frame(self) -> bytes | None:
        """The body of a learner's next frame, however long that takes to begin; None when the learner has gone.

        Raises ProtocolError, also for a frame that begins and does not end.
        """
        first = bytes(await self._stream.receive_some(1))
        if not first:
            return None
        with trio.move_on_after(REQUEST_S):
            rest = await self._exactly(HEADER_BYTES - 1)
            body = await self._exactly(frame_bytes(first + rest)) if rest else b""
            return body or None
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

    async def send(self, reply: Reply) -> None:
        """Send one frame. Raises _Gone when the client does not take it, and after a frame that was cut off."""
        try:
            frame = encode(reply)
        except (ProtocolError, TypeError) as error:
            frame = encode(Failure(f"the answer cannot be sent: {error}", 1))
        with trio.move_on_after(SEND_S):
            async with self._sending:
                if not self._intact:
                    raise _Gone
                self._intact = False
                await self._stream.send_all(frame)
                self._intact = True
            return
        raise _Gone

    async def finish(self, reply: Reply) -> None:
        """Send the last word, with the faults that no Progress has carried."""
        if isinstance(reply, Result) and self._faults:
            reply = Result(
                files=reply.files,
                bytes=reply.bytes,
                failed=reply.failed,
                skipped=reply.skipped,
                faults=[*self._faults, *reply.faults],
                detail=reply.detail,
            )
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
                news = Progress(
                    files=news.files,
                    bytes=news.bytes,
                    failed=news.failed,
                    skipped=news.skipped,
                    files_total=news.files_total,
                    bytes_total=news.bytes_total,
                    walking=news.walking,
                    faults=faults,
                )
            try:
                await self.send(news)
            except (trio.BrokenResourceError, trio.ClosedResourceError, _Gone):
                scope.cancel()
                await trio.lowlevel.checkpoint()

        return report
