"""The kernel's side of the data plane: a socket pair instead of a mount. Requests are `<linux/fuse.h>`'s."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hfs.mountd.kernel import DataPlane, fastpath

_LOOKUP, _FORGET, _GETATTR, _BATCH_FORGET, _OPEN, _READ, _RELEASE = 1, 2, 3, 42, 14, 15, 18
_GETXATTR = 22
_RESENT = 1 << 63
_MARKED = 1 << 40
_ATTRIBUTES = struct.Struct("=QQQQQQIIIIIIIIII")  # struct fuse_attr


@dataclass
class Kernel:
    """One side of the connection. A request that is not answered at once has gone to Python."""

    end: socket.socket
    unique: int = 0
    error: int = 0
    """Of the last reply."""
    uid: int = field(default_factory=os.geteuid)

    def ask(self, opcode: int, node: int, body: bytes, *, resent: bool = False) -> bytes | None:
        """The body of the reply; None: it is Python's."""
        self.unique += 2
        unique = self.unique | (_RESENT if resent else 0)
        self._request(opcode, unique, node, body)
        marker = self._mark()
        reply = self.end.recv(1 << 20)
        length, error, replied = struct.unpack_from("=IiQ", reply)
        assert length == len(reply)
        self.error = -error
        if replied == marker:
            return None
        assert replied == unique
        assert struct.unpack_from("=Q", self.end.recv(4096), 8) == (marker,)
        return reply[16:]

    def _request(self, opcode: int, unique: int, node: int, body: bytes) -> None:
        header = struct.pack("=IIQQIIIHH", 40 + len(body), opcode, unique, node, self.uid, 0, 7, 0, 0)
        self.end.send(header + body)

    def late_xattr(self, node: int, name: bytes) -> int | bytes:
        """As `xattr`, of one that is answered by another thread, in a moment."""
        self.unique += 2
        self._request(_GETXATTR, self.unique, node, struct.pack("=II", 100, 0) + name + b"\0")
        reply = self.end.recv(1 << 20)
        _, error, replied = struct.unpack_from("=IiQ", reply)
        assert replied == self.unique
        return -error if error else reply[16:]

    def xattr(self, node: int, name: bytes, room: int = 100) -> int | bytes | None:
        """The value, or an errno; None: it is Python's."""
        body = self.ask(_GETXATTR, node, struct.pack("=II", room, 0) + name + b"\0")
        return body if body is None or not self.error else self.error

    def look_up(self, directory: int, name: bytes) -> tuple[int, int, int] | None:
        """Node id, inode and size."""
        body = self.ask(_LOOKUP, directory, name + b"\0")
        if body is None:
            return None
        attributes = _ATTRIBUTES.unpack_from(body, 40)
        return struct.unpack_from("=Q", body)[0], attributes[0], attributes[1]

    def attributes(self, node: int) -> tuple[int, int] | None:
        """Inode and size."""
        body = self.ask(_GETATTR, node, struct.pack("=IIQ", 0, 0, 0))
        return _ATTRIBUTES.unpack_from(body, 16)[:2] if body is not None else None

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
        marker = self._mark()
        assert struct.unpack_from("=Q", self.end.recv(4096), 8) == (marker,)

    def _mark(self) -> int:
        """A close of a node that is always in the table: one thread answers in order, so what comes before it is all
        that comes."""
        self.unique += 2
        body = struct.pack("=QIIQ", 1, 0, 0, 0)
        self.end.send(struct.pack("=IIQQIIIHH", 64, _RELEASE, self.unique, _MARKED, 0, 0, 7, 0, 0) + body)
        return self.unique

    def open(self, node: int, flags: int = os.O_RDONLY, **how: bool) -> tuple[int, int, int] | None:
        body = self.ask(_OPEN, node, struct.pack("=II", flags, 0), **how)
        return None if body is None else struct.unpack("=QIi", body)

    def read(self, node: int, offset: int, size: int, handle: int = 1) -> bytes | None:
        return self.ask(_READ, node, struct.pack("=QQIIQII", handle, offset, size, 0, 0, 0, 0))

    def release(self, node: int, handle: int) -> bool:
        return self.ask(_RELEASE, node, struct.pack("=QIIQ", handle, 0, 0, 0)) is not None


@contextlib.contextmanager
def serving() -> Iterator[tuple[DataPlane, Kernel]]:
    """A data plane of one thread that answers this kernel."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fastpath.want(lambda _token: None, None, yield_fd=-1, stack_depth=0)
    plane = DataPlane()
    with ours, theirs:
        theirs.setblocking(False)
        ours.settimeout(10)
        assert plane.attach(-1) == {}
        plane.start(theirs.fileno(), 1)
        slot = plane.put_opens(_MARKED, 1, size=10, valid_s=1000, backing=None)
        assert slot is not None
        yield plane, Kernel(ours)
        plane.stop()
        plane.take_opens(_MARKED)
        with contextlib.suppress(ValueError):  # the test has attached other memory
            plane.free_slot(slot)


def reads_nowait(path: Path) -> bool:
    """Whether a file that was just written can be read without waiting: not so on all file systems."""
    with path.open("rb") as file:
        try:
            return os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT) == 1
        except OSError:
            return False
