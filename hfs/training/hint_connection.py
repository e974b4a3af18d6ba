"""A learner's connection to the daemon: joining, its layout, orders, progress (mountd/wire/hints.py).

Runs inside training jobs. To join and to send an order waits, but never longer than is said below, and a layout is sent
in steps; nothing else here waits: progress that does not fit into the socket at once is dropped, never half of a frame.
What the daemon answers to an order is read when progress is sent, so a slow plan delays no batch.

Belongs to the process that joined: in a forked child it is closed. Any thread may call; the ways without waiting never
wait for a lock either, since the garbage collector may call them anywhere.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from hfs.client.control_socket import Address, ControlSocket, DaemonSilent, Refused
from hfs.mountd.core.errors import HfsError, printable
from hfs.mountd.wire.hints import MAX_ORDER_SAMPLES, PART_BYTES, At, LayoutPart, Order, Over, Waited
from hfs.mountd.wire.protocol import Failure, Join, Message, Reply, Result, encode

JOIN_S = 2.0
"""To connect and be answered: the daemon does it from memory. A job does not start later than this for a hint."""
LAYOUT_S = 60.0
"""To have a layout accepted that was sent: nobody waits for it."""
ORDER_S = 2.0
"""To hand over a part of a layout or of an order, not to have it planned."""
_LOOK_S = 0.005
_QUEUED = 256
"""Messages that may wait for room in the socket; more of them is a daemon that has stopped."""

_Made = TypeVar("_Made")
Steps: TypeAlias = Generator[bool | None, None, _Made]
"""Work of some milliseconds at a time; True: there is nothing to do for now but wait."""

_all: weakref.WeakSet[HintConnection] = weakref.WeakSet()


class HintConnection:
    """One connection that has joined. Made by `HintConnection.join`."""

    def __init__(self, connection: ControlSocket) -> None:
        self.trouble: str | None = None
        """What went wrong last, in one line; None: nothing. With `closed` false, an order that is not followed."""
        self.closed = False
        self._connection = connection
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._outgoing: deque[bytes] = deque()
        self._unanswered = 0
        # Not __del__: in a reference cycle the socket could be finalized before us.
        self._leave = weakref.finalize(self, _leave, connection.socket, self._pid)
        _all.add(self)

    @classmethod
    def join(cls, address: Address, join: Join, blob: bytes) -> HintConnection:
        """Join, and send the encoded layout if the daemon does not have it. Raises DaemonSilent and Refused.

        For commands; a job has no time for it.
        """
        pieces = [blob[start : start + PART_BYTES] for start in range(0, len(blob), PART_BYTES)]
        steps = cls.joining(address, join, lambda: _made(pieces))
        while True:
            try:
                if next(steps):
                    time.sleep(_LOOK_S)
            except StopIteration as end:
                learner: HintConnection = end.value
                return learner

    @classmethod
    def joining(cls, address: Address, join: Join, layout: Callable[[], Steps[list[bytes]]]) -> Steps[HintConnection]:
        """Connect to the daemon at `address`, join, and send the pieces of the encoded layout if the daemon does not
        have it: in steps, which give whether there is nothing to do but wait.

        Only the connection, and the answer to a short layout, are waited for: JOIN_S at most. Raises DaemonSilent and
        Refused.
        """
        deadline = time.monotonic() + JOIN_S
        connection = ControlSocket(address, JOIN_S)
        try:
            learner = cls(connection)
            connection.send(encode(join), deadline)
            if learner._answer(deadline).detail.get("layout") == "wanted":
                pieces = yield from layout()
                yield from learner._send_layout(pieces)
        except BaseException:
            connection.socket.close()
            raise
        return learner

    def _send_layout(self, pieces: list[bytes]) -> Steps[None]:
        is_short = len(pieces) == 1
        pieces.reverse()
        while pieces:
            piece = pieces.pop()
            self._connection.send(encode(LayoutPart(piece, not pieces)), time.monotonic() + ORDER_S)
            yield False
        deadline = time.monotonic() + LAYOUT_S
        if is_short:
            self._connection.wait_incoming(JOIN_S)
        while (reply := self._connection.receive_nowait()) is None:
            if time.monotonic() > deadline:
                raise DaemonSilent(f"{self._connection.where} does not answer")
            yield True
        _result(reply, self._connection.where)

    def send_order(
        self,
        epoch: int,
        indices: npt.NDArray[np.int64],
        *,
        first: int = 0,
        only_given: bool = False,
        following: bool = False,
    ) -> None:
        """Say what will be read; of more than MAX_ORDER_SAMPLES the first. Does not wait for the answer.

        Raises DaemonSilent and Refused: the connection is then closed.
        """
        indices = np.ascontiguousarray(indices[:MAX_ORDER_SAMPLES], dtype="<i8")
        step = PART_BYTES // 8
        try:
            with self._lock:
                deadline = time.monotonic() + ORDER_S
                while self._outgoing:
                    self._connection.send(self._outgoing.popleft(), deadline)
                for start in range(0, max(1, len(indices)), step):
                    part = indices[start : start + step]
                    last = start + step >= len(indices)
                    message = Order(epoch, part.tobytes(), start, last, following, first, only_given)
                    self._connection.send(encode(message), time.monotonic() + ORDER_S)
                self._unanswered += 1
        except HfsError as error:
            self._end(str(error))
            raise

    def wait_answered(self, limit_s: float) -> None:
        """Wait until all orders have been answered. Raises DaemonSilent, and Refused for an order that is not followed.

        For commands; a job has no time for it.
        """
        deadline = time.monotonic() + limit_s
        with self._lock:
            while self._unanswered:
                self._unanswered -= 1
                self._answer(deadline)

    def at_nowait(self, position: int) -> None:
        """Progress within the epoch. Passed over when earlier messages still wait."""
        self._say_nowait(None if self._outgoing else At(position))

    def waited_nowait(self, waited: Waited) -> None:
        """Where the time of an epoch went. Passed over when earlier messages still wait."""
        self._say_nowait(None if self._outgoing else waited)

    def over_nowait(self, epoch: int) -> None:
        """The epoch has ended. A daemon so far behind that it cannot be told is left: that tells it too."""
        self._say_nowait(Over(epoch))
        if self._outgoing:
            self.close()

    def usable(self) -> bool:
        """Whether the connection is this process's and, as far as is known, alive. Takes in what the daemon said."""
        if not self.closed:
            self._flush_nowait()
        return not self.closed

    def close(self) -> None:
        """Leave."""
        self.closed = True
        self._leave()

    def _end(self, trouble: str) -> None:
        self.trouble = trouble
        self.close()

    def _say_nowait(self, message: Message | None) -> None:
        if not self.closed:
            if message is not None:
                self._outgoing.append(encode(message))
            self._flush_nowait()

    def _flush_nowait(self) -> None:
        if self._pid != os.getpid():
            self.close()
            return
        if not self._lock.acquire(blocking=False):
            return  # another thread, or this one below a garbage collection; the queue goes out with the next message
        try:
            self._put_nowait()
            self._take_nowait()
        finally:
            self._lock.release()

    def _put_nowait(self) -> None:
        """Write what waits, as much as the socket takes."""
        try:
            while self._outgoing:
                rest = self._connection.send_nowait(self._outgoing[0])
                if rest:
                    self._outgoing[0] = rest
                    break
                self._outgoing.popleft()
        except OSError:
            return  # the end of the connection; reading may tell why
        if len(self._outgoing) > _QUEUED:
            self._end(f"{self._connection.where} has stopped listening")

    def _take_nowait(self) -> None:
        """Read what the daemon has answered."""
        if self.closed:
            return
        try:
            while (reply := self._connection.receive_nowait()) is not None:
                self._unanswered = max(0, self._unanswered - 1)
                if isinstance(reply, Failure):
                    self.trouble = reply.message
        except DaemonSilent as error:
            self._end(self.trouble or str(error))

    def _answer(self, deadline: float) -> Result:
        """The next reply, until `deadline`. Raises DaemonSilent and Refused."""
        return _result(self._connection.receive(deadline), self._connection.where)


def _result(reply: Reply, where: str) -> Result:
    if isinstance(reply, Failure):
        raise Refused(printable(reply.message), reply.code)
    if not isinstance(reply, Result):
        raise DaemonSilent(f"{where} answers something else than was asked")
    return reply


def _made(pieces: list[bytes]) -> Steps[list[bytes]]:
    yield from ()
    return pieces


def _leave(connection: socket.socket, pid: int) -> None:
    if pid == os.getpid():
        with contextlib.suppress(OSError):
            # A child that was forked past Python may hold the connection too; this ends it for both.
            connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def _after_fork_in_child() -> None:
    """The child has no connection: else the daemon would not see the end of ours while a child lives."""
    for learner in list(_all):
        learner.close()


os.register_at_fork(after_in_child=_after_fork_in_child)
