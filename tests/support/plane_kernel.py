"""The kernel's side of the data plane: a socket pair instead of a mount. Requests are `<linux/fuse.h>`'s."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hfs.mountd.core.attributes import Attributes
from hfs.mountd.kernel import DataPlane, SmallFetches, fastpath
from hfs.mountd.kernel.plane import News
from hfs.mountd.kernel.small_fetches import Fetched
from hfs.mountd.native.extension import EXTENSION

_LOOKUP, _FORGET, _GETATTR, _BATCH_FORGET, _OPEN, _READ, _RELEASE = 1, 2, 3, 42, 14, 15, 18
_GETXATTR = 22
_NOTIFY_STORE = 4
_RESENT = 1 << 63
_MARKED = 1 << 40
_ATTRIBUTES = struct.Struct("=QQQQQQIIIIIIIIII")  # struct fuse_attr


@dataclass
class Kernel:
    """One side of the connection. A request that is not answered at once has gone to Python."""

    end: socket.socket
    device: int = -1
    """The other side's descriptor."""
    unique: int = 0
    error: int = 0
    """Of the last reply."""
    uid: int = field(default_factory=os.geteuid)
    pid: int = 7
    """Of the thread that asks."""
    settle: Callable[[], None] | None = None
    """Returns when whoever answers besides the thread that reads requests has done all that was begun before."""
    pushed: list[tuple[int, int, bytes]] = field(default_factory=list)
    """Node, offset and bytes of what was put into the page cache."""
    _replies: dict[int, tuple[int, bytes]] = field(default_factory=dict)

    def ask(self, opcode: int, node: int, body: bytes, *, resent: bool = False, surely: bool = False) -> bytes | None:
        """The body of the reply; None: it is Python's. `surely`: it is answered, by whatever thread."""
        self.unique += 2
        unique = self.unique | (_RESENT if resent else 0)
        self._request(opcode, unique, node, body)
        self._wait()
        if self.settle is not None:
            self.settle()
            self._wait()
        found = self._reply(unique) if surely else self._replies.pop(unique, None)
        assert not self._replies, "nobody has asked for that"
        self.error, reply = found or (0, None)
        return reply

    def _reply(self, unique: int) -> tuple[int, bytes]:
        """To this request: an errno, and the body. Others that come before it are kept."""
        while unique not in self._replies:
            message = self.end.recv(1 << 20)
            length, error, replied = struct.unpack_from("=IiQ", message)
            assert length == len(message)
            if replied:
                assert replied not in self._replies, "answered twice"
                self._replies[replied] = -error, message[16:]
                continue
            assert error == _NOTIFY_STORE
            node, offset, size = struct.unpack_from("=QQI", message, 16)
            assert size == len(message) - 40
            self.pushed.append((node, offset, message[40:]))
        return self._replies.pop(unique)

    def _request(self, opcode: int, unique: int, node: int, body: bytes) -> None:
        header = struct.pack("=IIQQIIIHH", 40 + len(body), opcode, unique, node, self.uid, 0, self.pid, 0, 0)
        self.end.send(header + body)

    def late_xattr(self, node: int, name: bytes) -> int | bytes:
        """As `xattr`, of one that is answered by another thread, in a moment."""
        self.unique += 2
        self._request(_GETXATTR, self.unique, node, struct.pack("=II", 100, 0) + name + b"\0")
        error, value = self._reply(self.unique)
        return error or value

    def xattr(self, node: int, name: bytes, room: int = 100) -> int | bytes | None:
        """The value, or an errno; None: it is Python's."""
        body = self.ask(_GETXATTR, node, struct.pack("=II", room, 0) + name + b"\0")
        return body if body is None or not self.error else self.error

    def entry(self, directory: int, name: bytes) -> tuple[int, Attributes] | None:
        """Node id and attributes."""
        body = self.ask(_LOOKUP, directory, name + b"\0")
        return None if body is None else (struct.unpack_from("=Q", body)[0], _attributes(body, 40))

    def look_up(self, directory: int, name: bytes) -> tuple[int, int, int] | None:
        """Node id, inode and size."""
        found = self.entry(directory, name)
        return None if found is None else (found[0], found[1].inode, found[1].size)

    def stat(self, node: int) -> Attributes | None:
        body = self.ask(_GETATTR, node, struct.pack("=IIQ", 0, 0, 0))
        return None if body is None else _attributes(body, 16)

    def attributes(self, node: int) -> tuple[int, int] | None:
        """Inode and size."""
        found = self.stat(node)
        return None if found is None else (found.inode, found.size)

    def forget(self, node: int, count: int) -> None:
        """Has no reply."""
        self._send(_FORGET, node, struct.pack("=Q", count))
        self._wait()

    def forget_all(self, each: list[tuple[int, int]]) -> None:
        """Has none either."""
        body = struct.pack("=II", len(each), 0) + b"".join(struct.pack("=QQ", *one) for one in each)
        self._send(_BATCH_FORGET, 0, body)
        self._wait()

    def _send(self, opcode: int, node: int, body: bytes) -> None:
        self.end.send(struct.pack("=IIQQIIIHH", 40 + len(body), opcode, 0, node, 0, 0, 7, 0, 0) + body)

    def _wait(self) -> None:
        """For a close of a node that is always in the table: one thread answers in order, so what comes before it is
        all that comes from that thread."""
        self.unique += 2
        body = struct.pack("=QIIQ", 1, 0, 0, 0)
        self.end.send(struct.pack("=IIQQIIIHH", 64, _RELEASE, self.unique, _MARKED, 0, 0, 7, 0, 0) + body)
        self._reply(self.unique)

    def open(self, node: int, flags: int = os.O_RDONLY, **how: bool) -> tuple[int, int, int] | None:
        body = self.ask(_OPEN, node, struct.pack("=II", flags, 0), **how)
        return None if body is None else struct.unpack("=QIi", body)

    def read(self, node: int, offset: int, size: int, handle: int = 1) -> bytes | None:
        return self.ask(_READ, node, struct.pack("=QQIIQII", handle, offset, size, 0, 0, 0, 0))

    def release(self, node: int, handle: int) -> bool:
        return self.ask(_RELEASE, node, struct.pack("=QIIQ", handle, 0, 0, 0)) is not None


class SettledEngine(SmallFetches):
    """With one thread: what a request has begun is done when its answer is known."""

    _ELSEWHERE = (2, b"none")
    """A name that is nowhere."""

    def __init__(self, kernel: Kernel, empty: Path, *, largest_bytes: int) -> None:
        super().__init__()
        self._largest_bytes = largest_bytes
        self.heard: list[Fetched] = []
        self.start(kernel.device, 1, ahead_threads=1, ahead_bytes=64 << 20)
        assert self.runs
        self.delegate_folder(self._ELSEWHERE[0], empty, 1)
        kernel.settle = self.settle

    def delegate_folder(
        self,
        directory: int,
        path: Path,
        generation: int,
        *,
        valid_s: float = 1000,
        settled: bool = True,
        careful: bool = False,
    ) -> None:
        """`settled`: no file in it is too young."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        assert self.delegate(
            directory,
            fd,
            os.stat(path).st_dev,
            generation=generation,
            largest_bytes=self._largest_bytes,
            settled_ns=(1 << 62, 1 << 62) if settled else (0, 0),
            until_ns=1 << 62,
            valid_s=valid_s,
            careful=careful,
            prefix=b"%d/" % directory,
        )
        os.close(fd)

    def settle(self) -> None:
        """When it has looked for what it is asked for last, it has done all that was begun before."""
        self.ahead([self._ELSEWHERE])
        fd = EXTENSION.plane_news_fd(News.FETCHED)
        while True:
            for one in self.take_fetched():
                if (one.directory_id, one.name) == self._ELSEWHERE:
                    return
                self.heard.append(one)
            assert select.select([fd], [], [], 10)[0], "the engine stands still"
            EXTENSION.plane_news_read(News.FETCHED)


def _attributes(body: bytes, at: int) -> Attributes:
    inode, size, blocks, *times, mode, nlink, uid, gid, rdev, block_bytes, _ = _ATTRIBUTES.unpack_from(body, at)
    times_ns = (second * 10**9 + part for second, part in zip(times[:3], times[3:], strict=True))
    return Attributes(mode, inode, nlink, uid, gid, rdev, size, blocks, block_bytes, *times_ns)


@contextlib.contextmanager
def serving(counts_fd: int = -1) -> Iterator[tuple[DataPlane, Kernel]]:
    """A data plane of one thread that answers this kernel. `counts_fd`: see `DataPlane.attach`."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fastpath.want(lambda _token: None, None, yield_fd=-1, stack_depth=0)
    plane = DataPlane()
    with ours, theirs:
        theirs.setblocking(False)
        ours.settimeout(10)
        assert plane.attach(counts_fd) == ({}, {})
        while plane.take_events()[0] or plane.take_served():  # of earlier tests of this process
            pass
        plane.start(theirs.fileno(), 1)
        slot = plane.put_opens(_MARKED, 1, size=10, valid_s=1000, backing=None)
        assert slot is not None
        try:
            yield plane, Kernel(ours, theirs.fileno())
        finally:
            plane.stop()
            plane.take_opens(_MARKED)
            with contextlib.suppress(ValueError):  # the test has attached other memory
                plane.free_counter(slot)


def reads_nowait(path: Path) -> bool:
    """Whether a file that was just written can be read without waiting: not so on all file systems."""
    with path.open("rb") as file:
        try:
            return os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT) == 1
        except OSError:
            return False
