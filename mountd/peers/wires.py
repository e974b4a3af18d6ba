"""Wires: the ZeroMQ sockets of a node; every connection is authenticated and encrypted, in a thread of ZeroMQ's own.

One socket is listened at, and one line leads to each address that this node speaks to: what is said to a node goes over
our line to it, what it says comes over its own. Bytes that are given stay here until the other node takes them, or if
they are one part go at once; they come straight into the buffer they are wanted in. Everything that waits is bounded:
what is not taken is a reference to bytes that are there, and what comes is not read while the event loop is behind.

    frames   sender's id, head, and what the head says: a hello, a message, a part of bytes that were asked for

Event loop only.
"""

from __future__ import annotations

import contextlib
import secrets
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio
import zmq

from hfs.mountd.core.background import start_for_life, start_guarded
from hfs.mountd.core.errors import MountError
from hfs.mountd.peers.sockets import Socket, Sockets

HELLO, REFUSAL, BEAT, LEAVE, MESSAGE = b"h", b"r", b"b", b"l", b"m"
_TAKE, _PART = b"t", b"p"
_TAG, _PLACE = struct.Struct("!Q"), struct.Struct("!QQ")
"""A tag; and an offset."""

_PART_BYTES = 256 << 10
_WAITING = 4096
"""Messages that wait for one node, as many as it can be asked at a time and more; beyond that they are lost."""
_AT_ONCE = 8
"""Messages and parts before others have their turn: half a millisecond."""
_LINGER_MS = 500
"""For what is said last."""


@dataclass(slots=True)
class _Gift:
    tag: int
    data: memoryview
    done: Callable[[], None]
    given: int = 0


@dataclass(slots=True)
class _Take:
    into: memoryview
    done: Callable[[bool], None]
    taken: int = 0


@dataclass
class _Line:
    """To one address."""

    socket: Socket
    own_id: bytes
    words: deque[Sequence[bytes]] = field(default_factory=deque)
    gifts: deque[_Gift] = field(default_factory=deque)
    is_pumped: bool = False
    life: trio.CancelScope = field(default_factory=trio.CancelScope)

    def pump(self) -> bool:
        """Send some of what waits. Whether any of it still does. Raises Again where the other side takes no more."""
        for _ in range(_AT_ONCE):
            if self.words:
                self.socket.send_multipart([self.own_id, *self.words[0]], zmq.NOBLOCK)
                self.words.popleft()
            elif self.gifts:
                gift = self.gifts[0]
                part = gift.data[gift.given : gift.given + _PART_BYTES]
                head = _PART + _PLACE.pack(gift.tag, gift.given)
                self.socket.send_multipart([self.own_id, head, part], zmq.NOBLOCK)
                gift.given += len(part)
                if gift.given >= len(gift.data):
                    self.gifts.popleft().done()
        return bool(self.words or self.gifts)

    async def run(self) -> None:
        """Send all that waits, as fast as it is taken."""
        with trio.CancelScope() as self.life:
            while (self.words or self.gifts) and not self.socket.closed:
                try:
                    self.pump()
                    await trio.lowlevel.checkpoint()
                except zmq.Again:
                    await _wait(self.socket, zmq.POLLOUT)
        self.is_pumped = False


class Wires:
    """`members`: the ids of those that may say more than HELLO and REFUSAL."""

    def __init__(
        self,
        secret: bytes,
        listen: str,
        came: Callable[[bytes, bytes, Sequence[bytes], str], None],
        nursery: trio.Nursery,
    ) -> None:
        """`came(sender, head, words, address)`. Raises MountError where `listen` is taken."""
        self.id, self.members = secrets.token_bytes(8), frozenset[bytes]()
        self._came, self._nursery = came, nursery
        self._lines: dict[str, _Line] = {}
        self._gifts: dict[tuple[bytes, int], tuple[str, _Gift]] = {}
        self._takes: dict[tuple[bytes, int], _Take] = {}
        self._sockets = Sockets(secret)
        try:
            self._router = self._sockets.listening(listen)
        except zmq.ZMQError as error:
            self._sockets.context.destroy(0)
            raise MountError(f"peers: cannot listen at {listen}: {error.strerror}; see -o peer-listen") from None
        start_for_life(nursery, "keys of peers", _receive, self._sockets.zap, self._sockets.authenticate)
        start_for_life(nursery, "messages of peers", _receive, self._router, self._receive)

    def post(self, endpoint: str, *words: bytes, now_or_never: bool = False) -> None:
        """Say it to who listens at `endpoint`, to which a line is made. `now_or_never`: it waits for nothing else."""
        with contextlib.suppress(zmq.ZMQError):  # no more sockets, or an address that cannot be one
            line = self._line(endpoint)
            if len(line.words) < (1 if now_or_never else _WAITING):
                line.words.append(words)
                self._pump(line)

    def give(self, to: bytes, endpoint: str, tag: int, data: memoryview, done: Callable[[], None]) -> None:
        """Hold bytes for a member until it has taken them; `done` then. One part goes at once, behind what was said."""
        gift = _Gift(tag, data, done)
        if len(data) > _PART_BYTES:
            self._gifts[to, tag] = endpoint, gift
        else:
            self._send(endpoint, gift)

    def take(self, giver: bytes, endpoint: str, tag: int, into: memoryview, done: Callable[[bool], None]) -> None:
        """Have what a member holds under `tag` written into `into`; `done`: whether it is whole."""
        self._takes[giver, tag] = _Take(into, done)
        if len(into) > _PART_BYTES:
            self.post(endpoint, _TAKE + _TAG.pack(tag))

    def drop(self, endpoint: str, member: bytes = b"") -> None:
        """Nobody is spoken to there any more, and nothing that `member` sends comes into a buffer."""
        line = self._lines.pop(endpoint, None)
        if line is not None:
            line.life.cancel()
            line.socket.close(0)
            for gift in line.gifts:
                gift.done()
        for key in [key for key in self._takes if key[0] == member]:
            self._takes.pop(key).done(False)
        for key in [key for key in self._gifts if key[0] == member]:
            self._gifts.pop(key)[1].done()

    def close(self) -> None:
        """Nothing is sent any more but what was said last. Blocks for half a second at most."""
        self._sockets.context.destroy(_LINGER_MS)

    def _line(self, endpoint: str) -> _Line:
        line = self._lines.get(endpoint)
        if line is None:
            line = self._lines[endpoint] = _Line(self._sockets.connected(endpoint), self.id)
        return line

    def _send(self, endpoint: str, gift: _Gift) -> None:
        line = self._line(endpoint)
        line.gifts.append(gift)
        self._pump(line)

    def _pump(self, line: _Line) -> None:
        """Send what can be sent now; a task sends the rest."""
        if line.is_pumped:
            return
        with contextlib.suppress(zmq.Again):
            if not line.pump():
                return
        line.is_pumped = True
        start_guarded(self._nursery, "line to a peer", line.run)

    def _receive(self) -> None:
        """One message. Raises Again."""
        _, *frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
        if len(frames) < 2:
            return
        sender, head = frames[0].bytes, frames[1].bytes
        if head not in (HELLO, REFUSAL) and sender not in self.members:
            return
        if head[:1] == _PART and len(head) == 1 + _PLACE.size and len(frames) == 3:
            self._take_part(sender, head[1:], frames[2].buffer)
        elif head[:1] == _TAKE and len(head) == 1 + _TAG.size:
            endpoint, gift = self._gifts.pop((sender, *_TAG.unpack(head[1:])), ("", None))
            if gift is not None:
                self._send(endpoint, gift)
        else:
            self._came(sender, head, [frame.bytes for frame in frames[2:]], str(frames[1].get("Peer-Address")))

    def _take_part(self, sender: bytes, place: bytes, data: memoryview) -> None:
        tag, start = _PLACE.unpack(place)
        take = self._takes.get((sender, tag))
        if take is None:
            return
        end = start + len(data)
        whole = start == take.taken and end <= len(take.into)
        if whole:
            take.into[start:end] = data
            take.taken = end
        if not whole or end == len(take.into):
            del self._takes[sender, tag]
            take.done(whole)


async def _receive(socket: Socket, one: Callable[[], None]) -> None:
    """Until it is cancelled. `one` raises Again where there is nothing."""
    while True:
        try:
            for _ in range(_AT_ONCE):
                one()
            await trio.lowlevel.checkpoint()
        except zmq.Again:
            await _wait(socket, zmq.POLLIN)


async def _wait(socket: Socket, event: int) -> None:
    """Until it can, or is closed. The descriptor tells of changes only, after which the socket is to be asked."""
    await trio.lowlevel.checkpoint()
    while not socket.closed and not int(socket.getsockopt(zmq.EVENTS)) & event:
        await trio.lowlevel.wait_readable(int(socket.getsockopt(zmq.FD)))
