"""`Tunnels`: control connections through the mount itself (mountd/wire/tunnel.py), of clients that see no socket.

Each belongs to a user, a group and a process, as the kernel names them with every request. It is a pair of sockets:
one is served as a connection of the control socket is, the exchanges fill and empty the other. How many there are is
bounded, and what they hold by what a socket holds. The kernel does not tell when a client of a tunnel dies, so its
process is looked at, and one that has not asked for long is let go. An exchange never waits; what fails is the client's
to hear, as an errno. Event loop only.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import trio

from hfs.mountd.core.background import Slices, start_guarded
from hfs.mountd.core.caller import credentials_of, has_ended, process_of
from hfs.mountd.wire.tunnel import CLOSE, END, MORE, OPEN, Answer, Exchange, NoExchange

log = logging.getLogger(__name__)

MOST = 1024
"""Tunnels in all. Each has two descriptors, and sockets hold 400 KiB for it at the most."""
MOST_OF_USER = 320
"""Of one user: all learners that are followed, and as many commands as run at a time."""
MOST_OF_OTHERS = 640
"""Of all users but root and the owner, however many numbers somebody may use: these two find room."""
SILENT_LOOKS = 60
"""A client asks every second, however little there is to say. One that does not for a minute has been stopped, or has
lost its thread; it connects again. Counted in looks: a daemon that was stopped itself has heard nobody."""
_LOOK_S = 1.0
"""How often tunnels are looked at; also for how long a dead learner's epoch is followed."""

Answering = Callable[[trio.SocketStream, int, int, int, tuple[int, ...] | None], Awaitable[None]]
"""Serves one connection until it ends, and closes the stream. Of whom: process (0: outside of our pid namespace), user,
group, supplementary groups (None: not to be seen)."""


@dataclass(slots=True)
class _Tunnel:
    uid: int
    gid: int
    thread: int
    """That opened it; 0: outside of our pid namespace."""
    process: int
    groups: tuple[int, ...] | None
    end: socket.socket
    """The client's: what it says goes in, and what it is told comes out."""
    silent_looks: int = 0

    def is_of(self, thread: int, uid: int, gid: int) -> bool:
        """Whether this thread may speak: that which has opened it, or another of its process in the same groups, since
        what is asked counts as asked by the one who opened it."""
        if (uid, gid) != (self.uid, self.gid):
            return False
        if thread == self.thread:
            return True
        found = process_of(thread) if thread and self.process else None
        who = credentials_of(thread, uid, gid) if found is not None and found[0] == self.process else None
        return who is not None and who.groups == self.groups


class Tunnels:
    """Those of one mount. They are served while `run` does; before, and without it, there are none."""

    def __init__(self, answer: Answering, owners: frozenset[int], has_ended: Callable[[int], bool] = has_ended) -> None:
        """`owners`: root, and the owner of the mount."""
        self._answer = answer
        self._owners = owners
        self._has_ended = has_ended
        self._tunnels: dict[bytes, _Tunnel] = {}
        self._slices = Slices()
        self._nursery: trio.Nursery | None = None

    def __len__(self) -> int:
        return len(self._tunnels)

    async def run(self) -> None:
        """Serve them; what is open when it is cancelled ends."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                try:
                    while True:
                        await trio.sleep(_LOOK_S)
                        await self._slices.carry_out(self._let_go())
                finally:
                    self._nursery = None
        finally:
            for token in list(self._tunnels):
                self._end(token)

    def exchange(self, argument: bytes, thread: int, uid: int, gid: int) -> bytes | int:
        """Answer one exchange of a thread that waits for it: the encoded answer, or an errno.

        EINVAL: it means nothing. EPIPE: there is no such tunnel (any more), or it is somebody else's. EEXIST: one is
        open by this token. EUSERS: there are too many. ENOTTY: none are served. EMFILE: no descriptor.
        """
        try:
            asked = Exchange.decode(argument)
        except NoExchange:
            return errno.EINVAL
        if asked.flags & OPEN:
            refused = self._open(asked.token, thread, uid, gid)
            if refused:
                return refused
        tunnel = self._tunnels.get(asked.token)
        if tunnel is None or not tunnel.is_of(thread, uid, gid):
            return errno.EPIPE
        tunnel.silent_looks = 0
        taken = _put(tunnel.end, asked.data)
        data, flags = (b"", END) if asked.flags & CLOSE else _taken(tunnel.end, asked.room_bytes)
        if flags & END:
            self._end(asked.token)
        return Answer(taken, data, flags).encode()

    def _open(self, token: bytes, thread: int, uid: int, gid: int) -> int:
        """0, or an errno."""
        if self._nursery is None:
            return errno.ENOTTY
        if token in self._tunnels:
            return errno.EEXIST
        counts = Counter(tunnel.uid for tunnel in self._tunnels.values())
        others = sum(count for other, count in counts.items() if other not in self._owners)
        if len(self._tunnels) >= MOST or counts[uid] >= MOST_OF_USER:
            return errno.EUSERS
        if uid not in self._owners and others >= MOST_OF_OTHERS:
            return errno.EUSERS
        try:
            end, served = socket.socketpair()
        except OSError:
            return errno.EMFILE
        end.setblocking(False)
        found = process_of(thread) if thread else None
        process = found[0] if found is not None else 0
        who = credentials_of(thread, uid, gid) if thread else None
        groups = who.groups if who is not None else None
        self._tunnels[token] = _Tunnel(uid, gid, thread, process, groups, end)
        log.debug("control: a tunnel for process %d of user %d", process, uid)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(served))
        start_guarded(self._nursery, "control tunnel", self._answer, stream, process, uid, gid, groups)
        return 0

    def _let_go(self) -> Iterator[None]:
        """Of those whose clients have gone; one after the other."""
        for token, tunnel in list(self._tunnels.items()):
            yield
            if self._tunnels.get(token) is not tunnel:
                continue
            gone = bool(tunnel.process) and self._has_ended(tunnel.process)
            tunnel.silent_looks += 1
            if gone or tunnel.silent_looks > SILENT_LOOKS:
                log.debug("control: the tunnel of process %d is let go", tunnel.process)
                self._end(token)

    def _end(self, token: bytes) -> None:
        self._tunnels.pop(token).end.close()


def _put(end: socket.socket, data: bytes) -> int:
    """How many bytes the socket takes; all where nobody reads them any more."""
    try:
        return end.send(data) if data else 0
    except BlockingIOError:
        return 0
    except OSError:
        return len(data)


def _taken(end: socket.socket, room_bytes: int) -> tuple[bytes, int]:
    """What the client is to be told, of so much room, and the flags of the answer."""
    data = b""
    try:
        while len(data) < room_bytes:
            part = end.recv(room_bytes - len(data))
            if not part:
                return data, END
            data += part
    except BlockingIOError:
        return data, 0
    except OSError:  # closed before all that was said was read
        return data, END
    return data, MORE
