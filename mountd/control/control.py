"""The control socket: who may talk to the daemon, how many, for how long; each request handed to `Commands`.

What a request does is not known here (`commands`), nor how a client is kept from being slow, nor who may ask what
(`connection`). Where the mount is for its owner alone, others are not answered; the daemon's other work never
waits for any of them. Event loop only.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import trio

from hfs.mountd.cache import Cache
from hfs.mountd.control.cache_commands import CacheCommands, RefreshWork
from hfs.mountd.control.connection import (
    ClientGone,
    ControlConnection,
    Report,
    Requester,
    requester_of,
    requester_through_mount,
)
from hfs.mountd.control.tunnels import Tunnels
from hfs.mountd.core import socket_places
from hfs.mountd.core.background import guarded, start_for_life
from hfs.mountd.core.caller import Credentials
from hfs.mountd.core.config import Config
from hfs.mountd.core.errors import ConfigError, HfsError, MountError, sole
from hfs.mountd.core.limits import OpenFiles, is_refusal
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.files import Recorder
from hfs.mountd.hints import Learners
from hfs.mountd.peers import ClusterView
from hfs.mountd.wire.protocol import (
    MAX_FRAME_BYTES,
    Check,
    Cluster,
    Directory,
    Estimate,
    Evict,
    Failure,
    Join,
    List,
    ProtocolError,
    Record,
    Refresh,
    Reply,
    Request,
    Result,
    Status,
    Touches,
    Unpin,
    Warm,
)

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 64
"""Of one user, root and the owner too: a status a second from every rank of a large node, and room for commands; beyond
it is a client out of control."""
_OTHERS_CONNECTIONS = 16 * MAX_CONNECTIONS
"""Of all users but root and the owner together: no user has more than a sixteenth of it."""
_OTHERS_BYTES = 1 << 16
"""Of a request of theirs, none of which names files."""


_ACCEPT_AGAIN_S = 0.05
"""After a connection for which there was no descriptor: others close theirs meanwhile."""


def socket_path(config: Config) -> str:
    """The path of the socket: config.control, else a new name in a directory that nobody else can write to. Raises
    MountError."""
    if config.control is not None:
        return os.path.abspath(config.control)
    path = socket_places.new_path(config.mountpoint, socket_places.DAEMON, for_others=config.allow_other)
    if path is not None:
        return path
    nowhere = "no place for the control socket: no directory of our own can be made in /tmp"
    raise MountError(f"{nowhere}; set XDG_RUNTIME_DIR to a directory of your own, or give --control PATH")


@contextlib.contextmanager
def control_socket(path: str, backlog: int, *, others: bool = False) -> Iterator[socket.socket]:
    """A socket that listens at `path`, for its owner alone or for others too; its file goes with the block.

    A socket file that nobody answers is replaced; anything else at `path` is a fault.

    Raises MountError.
    """
    mode = 0o666 if others else 0o600
    listener = socket_places.listen(path, "control socket", "give another with --control PATH", mode, backlog)
    mark = _identity(path)
    try:
        yield listener
    finally:
        listener.close()
        if mark is not None and _identity(path) == mark:  # not one that was put in its place
            os.unlink(path)


class ControlListener(trio.abc.Listener[trio.SocketStream]):
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


def _identity(path: str) -> tuple[int, int, int] | None:
    # ctime as well: ext4 gives the number of a removed inode to the next file.
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns


class StatusCommand(Protocol):
    """`hfs status`, which is told from above all rooms."""

    async def gather(self, reader: Credentials | None, *, page_cache: bool) -> dict[str, object]:
        """The object of `hfs status --json`, or what of it `reader` may see. Never waits for the source or a disk.
        `page_cache`: as in `protocol.Status`."""


class ClusterStatus:
    """This node among those of the job, for `hfs status --cluster` and for samplers."""

    def __init__(self, view: ClusterView, cache: Cache, metrics: Metrics) -> None:
        self._view = view
        self._cache = cache
        self._metrics = metrics

    def own_figures(self) -> dict[str, int]:
        """What this node says of itself: bytes, unless the name says otherwise."""
        metrics, staged = self._metrics, self._cache.statistics()
        return {
            "staged": staged.bytes,
            "capacity": staged.capacity_bytes,
            "from_source": metrics["source_read_bytes"],
            "from_peers": metrics["peer_read_bytes"],
            "from_own_cache": metrics["bytes_staged"],
            "to_peers": metrics["peer_served_bytes"],
            "peer_misses": metrics["peer_misses"],
            "peer_faults": metrics["peer_faults"],
            "peer_dropped": metrics["staging_dropped"],
        }

    def directory(self) -> dict[str, object]:
        """What `protocol.Directory` says."""
        return self._view.directory()

    async def all_nodes(self) -> dict[str, object]:
        """What `protocol.Cluster` says. Takes seconds where a node does not answer."""
        return {"nodes": await self._view.figures(self.own_figures())}


async def record_reads(recorder: Recorder, recall_all: Callable[[], Awaitable[None]], report: Report) -> Result:
    """What `hfs-hint record` asks for: one client is told what is read, until it goes. `recall_all`: what is read and
    opened without us comes to us again."""
    recording = recorder.start()
    try:
        await recall_all()
        await report(Touches([]))  # it has begun
        while True:
            touches, lost = await recording.take()
            await report(Touches(touches, lost))
    finally:
        recorder.stop(recording)


@dataclass(frozen=True, slots=True)
class Commands:
    """Who does what the daemon can be asked for. Each command is cancelled when its client goes."""

    status: StatusCommand
    cache: CacheCommands
    cluster: ClusterStatus
    record: Callable[[Report], Awaitable[Result]]
    refreshing: RefreshWork
    learners: Learners
    why_no_others: Callable[[], str | None] = lambda: None
    """Why hints of other users are not followed here; None: they are."""
    expect_overlay: Callable[[], object] = lambda: None
    """Somebody is about to make one."""


@contextlib.asynccontextmanager
async def serve(
    path: str, commands: Commands, nursery: trio.Nursery, open_files: OpenFiles, *, others: bool = False
) -> AsyncIterator[Tunnels]:
    """Answer in `nursery` on a socket at `path`, and what comes through the mount, until the block ends; the socket
    goes with the block.

    `others`: users besides root and the owner may ask too. Raises MountError if the socket cannot be put there.
    """
    owners = frozenset({0, os.geteuid()})
    gate = _Gate(commands, owners, others=others)
    tunnels = Tunnels(gate.answer_tunnel, owners)
    scope, scope_of_tunnels = trio.CancelScope(), trio.CancelScope()

    with control_socket(path, MAX_CONNECTIONS, others=others) as listening:
        listener = ControlListener(trio.SocketListener(trio.socket.from_stdlib_socket(listening)), open_files)

        async def listen() -> None:
            with scope:
                await trio.serve_listeners(gate.answer, [listener])

        async def serve_tunnels() -> None:
            with scope_of_tunnels:
                await tunnels.run()

        start_for_life(nursery, "control socket", listen)
        start_for_life(nursery, "control tunnels", serve_tunnels)
        try:
            yield tunnels
        finally:
            scope.cancel()
            scope_of_tunnels.cancel()


class _Gate:
    """Lets connections in: few enough, from the right users, one request each."""

    def __init__(self, commands: Commands, owners: frozenset[int], *, others: bool) -> None:
        self._commands = commands
        self._owners = owners
        self._others = others
        self._open: Counter[int] = Counter()
        """By user: those that are open and have not joined; the number of the others is bounded by `Joins`."""

    async def answer(self, stream: trio.SocketStream) -> None:
        """Serve one connection. Never raises but Cancelled: one client must not end the others."""
        await guarded("control connection", self._answer, stream, lambda: requester_of(stream.socket, self._owners))

    async def answer_tunnel(
        self, stream: trio.abc.Stream, pid: int, uid: int, gid: int, groups: tuple[int, ...] | None
    ) -> None:
        """Serve one connection through the mount, whose other end the kernel has named. No groups: not known."""
        requester = requester_through_mount(pid, uid, gid, groups, self._owners)
        await guarded("control connection", self._answer, stream, lambda: requester)

    async def _answer(self, stream: trio.abc.Stream, requester_of_it: Callable[[], Requester]) -> None:
        try:
            async with stream:
                requester = requester_of_it()
                with self._counted(requester.who.uid, 1) as of_user:
                    await self._serve_one(ControlConnection(stream), requester, of_user)
        except (trio.BrokenResourceError, trio.ClosedResourceError, ClientGone, OSError):
            log.debug("control: a client went away")

    @contextlib.contextmanager
    def _counted(self, uid: int, more: int) -> Iterator[int]:
        """So many more of a user are open while the block runs; how many there are then."""
        self._open[uid] += more
        try:
            yield self._open[uid]
        finally:
            self._open[uid] -= more
            if not self._open[uid]:
                del self._open[uid]

    async def _serve_one(self, connection: ControlConnection, requester: Requester, of_user: int) -> None:
        uid = requester.who.uid
        others = sum(count for user, count in self._open.items() if user not in self._owners)
        if not self._others and not requester.is_owner:
            log.warning("control: process %d of user %d was refused", requester.pid, uid)
            await connection.send(Failure("only root and the owner of the mount may ask its daemon", 1))
        elif of_user > 2 * MAX_CONNECTIONS or (not requester.is_owner and others > 2 * _OTHERS_CONNECTIONS):
            return  # not even an answer: that, too, takes time
        elif of_user > MAX_CONNECTIONS:
            await connection.send(Failure(f"{MAX_CONNECTIONS} commands of user {uid} are running; try again", 1))
        elif not requester.is_owner and others > _OTHERS_CONNECTIONS:
            await connection.send(Failure("other users run too many commands; try again", 1))
        else:
            await self._serve(connection, requester)

    async def _serve(self, connection: ControlConnection, requester: Requester) -> None:
        reply: Reply
        try:
            request = await connection.receive(MAX_FRAME_BYTES if requester.is_owner else _OTHERS_BYTES)
        except ProtocolError as error:
            await connection.send(Failure(str(error), 2))
            return
        if request is None:
            return
        why_not = requester.why_not(request)
        if why_not is not None:
            await connection.send(Failure(why_not, 1))
            return
        if isinstance(request, Join):
            await self._follow(connection, request, requester)
            return
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connection.watch, scope)
                reply = await self._run(request, requester, connection.reporter(scope))
                nursery.cancel_scope.cancel()
        if scope.cancelled_caught:
            log.info("control: %s was stopped by its client", type(request).__name__.lower())
            return
        await connection.finish(reply)

    async def _follow(self, connection: ControlConnection, join: Join, requester: Requester) -> None:
        """Serve a learner, who is none of those that ask and go."""
        why_not = None if requester.is_owner else self._commands.why_no_others()
        if why_not is not None:
            await connection.send(Failure(f"hints of other users are not followed here: {why_not}", 1))
            return
        with self._counted(requester.who.uid, -1):
            await connection.follow(self._commands.learners, join, requester)

    async def _run(self, request: Request, requester: Requester, report: Report) -> Reply:
        commands = self._commands
        try:
            match request:
                case Status():
                    if request.makes_overlay:
                        commands.expect_overlay()
                    return Result(detail=await commands.status.gather(requester.reader, page_cache=request.page_cache))
                case Warm():
                    return await commands.cache.warm(request.paths, request.jobs, request.pin, report)
                case Estimate():
                    return await commands.cache.estimate(request.paths, report)
                case Evict():
                    return await commands.cache.evict(request.paths, request.all, request.older_than_s, report)
                case Unpin():
                    return await commands.cache.unpin(request.paths)
                case Refresh():
                    return await commands.refreshing.refresh(request.paths)
                case Check():
                    return await commands.cache.check(request.paths, request.against_source, report)
                case List():
                    return await commands.cache.list(request.paths, report)
                case Record():
                    return await commands.record(report)
                case Cluster():
                    return Result(detail=await commands.cluster.all_nodes())
                case Directory():
                    return Result(detail=commands.cluster.directory())
                case Join():
                    raise ProtocolError("a learner joins on a connection of its own")
        except Exception as raised:
            error = sole(raised)
            if isinstance(error, ConfigError):
                return Failure(str(error), 2)
            if isinstance(error, HfsError | OSError):
                return Failure(str(error), 1)
            log.exception("control: %s failed", type(request).__name__.lower())
            return Failure(f"the daemon failed: {error!r}; its log says more", 1)
