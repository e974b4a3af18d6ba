"""The daemon's end of learners' connections, as far as clients can tell: keeps what they say, answers as it is told to.

`listening` runs it in threads, since the clients are blocking. Not a test module.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from hfs.mountd.wire.hints import (
    At,
    LayoutFrame,
    LayoutPart,
    LearnerMessage,
    Order,
    Over,
    Waited,
    decode_layout,
    decode_learner,
    layout_digest,
)
from hfs.mountd.wire.protocol import (
    HEADER_BYTES,
    Failure,
    Join,
    Message,
    Result,
    Status,
    decode_request,
    encode,
    frame_bytes,
)


class Heard:
    """One connection: the Join, and the messages after it; orders put together from their parts."""

    def __init__(self, join: Join) -> None:
        self.join = join
        self.messages: list[LearnerMessage] = []
        self.gone = False

    def orders(self, *, following: bool = False) -> list[tuple[int, list[int]]]:
        """(epoch, indices) of each that is complete."""
        found, parts = [], []
        for message in self.messages:
            if isinstance(message, Order) and message.following == following:
                assert message.start == sum(len(part) for part in parts)
                parts.append(np.frombuffer(message.indices, "<i8"))
                if message.last:
                    found.append((message.epoch, np.concatenate(parts).tolist()))
                    parts = []
        return found

    def windows(self) -> list[tuple[int, list[int]]]:
        """(position of the first, indices) of each order of an epoch under way, in order."""
        firsts = [m.first for m in self.messages if isinstance(m, Order) and m.last and not m.following]
        return [(first, indices) for first, (_, indices) in zip(firsts, self.orders(), strict=False)]

    def only_given(self) -> bool:
        """Whether the last order was of what had been given out."""
        return [m.only_given for m in self.messages if isinstance(m, Order) and not m.following][-1]

    def positions(self) -> list[int]:
        return [message.position for message in self.messages if isinstance(message, At)]

    def overs(self) -> list[int]:
        return [message.epoch for message in self.messages if isinstance(message, Over)]

    def waited(self) -> list[Waited]:
        return [message for message in self.messages if isinstance(message, Waited)]


class FakeDaemon:
    """What it hears, and how it answers. Change the answers before the client asks."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.heard: list[Heard] = []
        self.layouts: dict[str, LayoutFrame] = {}
        self.uploads = 0
        self.on_join: Callable[[Join], Message | bytes | None] = self.joined
        """Message: the answer; bytes: sent as they are; None: silence."""
        self.on_order: Callable[[Order], Message | bytes | None] = lambda _order: Result()
        self.changed = threading.Condition()
        self.connections: list[socket.socket] = []
        self.pause = threading.Event()
        """Set: goes on reading. Clear: reads nothing more, as a daemon that is stopped."""
        self.pause.set()

    def joined(self, join: Join) -> Message:
        return Result(detail={"layout": "known" if join.layout in self.layouts else "wanted"})

    def wait(self, condition: Callable[[], object]) -> None:
        """Until what was heard makes `condition` true."""
        with self.changed:
            assert self.changed.wait_for(condition, 20), [repr(heard.messages)[-300:] for heard in self.heard]

    @property
    def only(self) -> Heard:
        (heard,) = self.heard
        return heard

    def die(self) -> None:
        """End all connections, as the kernel does for a daemon that was killed."""
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def serve(self, connection: socket.socket) -> None:
        heard = None
        try:
            request = decode_request(_frame(connection))
            if isinstance(request, Status):
                connection.sendall(encode(Result(detail={"mountpoint": "/m"})))
                return
            assert isinstance(request, Join)
            answer = self.on_join(request)
            heard = Heard(request)
            with self.changed:
                self.heard.append(heard)
                self.changed.notify_all()
            if not _say(connection, answer):
                connection.recv(1)
                return
            wanted = isinstance(answer, Result) and answer.detail.get("layout") == "wanted"
            blob = b""
            while wanted:
                part = decode_learner(_frame(connection))
                assert isinstance(part, LayoutPart)
                blob += part.data
                if part.last:
                    assert layout_digest(blob) == request.layout
                    self.layouts[request.layout] = decode_layout(blob)
                    self.uploads += 1
                    connection.sendall(encode(Result()))
                    break
            while True:
                self.pause.wait()
                message = decode_learner(_frame(connection))
                with self.changed:
                    heard.messages.append(message)
                    self.changed.notify_all()
                if isinstance(message, Order) and message.last:
                    with contextlib.suppress(OSError):  # gone, but what it had said is to be heard
                        _say(connection, self.on_order(message))
        except (EOFError, OSError):
            pass
        finally:
            connection.close()
            with self.changed:
                if heard is not None:
                    heard.gone = True
                self.changed.notify_all()


def _say(connection: socket.socket, answer: Message | bytes | None) -> bool:
    if answer is not None:
        connection.sendall(answer if isinstance(answer, bytes) else encode(answer))
    return answer is not None and not isinstance(answer, Failure)


def _frame(connection: socket.socket) -> bytes:
    return _exactly(connection, frame_bytes(_exactly(connection, HEADER_BYTES)))


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


@contextlib.contextmanager
def listening(path: Path) -> Iterator[FakeDaemon]:
    """A fake daemon at the socket `path` until the block ends."""
    daemon = FakeDaemon(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()
    threads = []

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            daemon.connections.append(connection)
            threads.append(threading.Thread(target=daemon.serve, args=(connection,)))
            threads[-1].start()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield daemon
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        acceptor.join()
        daemon.pause.set()
        daemon.die()
        for thread in threads:
            thread.join()
