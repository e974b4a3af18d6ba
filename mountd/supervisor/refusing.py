"""Answers to the kernel when there is no daemon any more: an I/O error to everything that wants an answer.

A mount that nobody answers would hold its readers for ever, not to be killed; one that is taken away shows an empty
directory. An I/O error is what a disk says that is broken.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Callable

from hfs.mountd.supervisor.connection import Connection
from hfs.mountd.supervisor.loop import Loop

_IN_HEADER = struct.Struct("=IIQ")  # the start of struct fuse_in_header: len, opcode, unique
_OUT_HEADER = struct.Struct("=IiQ")  # struct fuse_out_header
_INIT_OUT = struct.Struct("=IIIIHHIIHHI28x")
"""struct fuse_init_out: major, minor, max_readahead, flags, max_background, congestion_threshold, max_write, time_gran,
max_pages, map_alignment, flags2."""
_INIT_IN = struct.Struct("=III")  # the start of struct fuse_init_in: major, minor, max_readahead
_IN_HEADER_BYTES = 40
_FORGET, _INTERRUPT, _BATCH_FORGET, _DESTROY = 2, 36, 42, 38
_NEEDS_NO_ANSWER = {_FORGET, _INTERRUPT, _BATCH_FORGET}
_REQUEST_BYTES = (1 << 20) + (1 << 16)
"""The kernel wants room for the largest write that was agreed on, which is 1 MiB at most, though none ever comes."""
_AT_ONCE = 1000
"""Requests answered before the caller has its turn again."""


class Refusing:
    """Of one mount's requests. Off until it begins."""

    def __init__(self, loop: Loop) -> None:
        self.why = ""
        """In a sentence for people; empty: nothing is refused."""
        self._loop = loop
        self._connection_fd = -1

    def begin(self, connection: Connection, why: str, gone: Callable[[], None]) -> None:
        """Answer what waits, and all that comes. `gone` is called when the connection has gone."""
        self.why, self._connection_fd = why, connection.fd
        os.set_blocking(connection.fd, False)
        _refuse_init(connection.fd, connection.init)
        connection.resend()  # what a daemon had taken and not answered
        self._loop.watch(connection.fd, lambda: None if _refuse_all(connection.fd) else gone())

    def end(self) -> None:
        """A daemon will answer again."""
        if self.why:
            self._loop.ignore(self._connection_fd)
            self.why = ""


def _refuse_init(connection_fd: int, request: bytes) -> None:
    """Answer INIT, if no daemon has: the kernel asks nothing else before, it waits."""
    _, _, unique = _IN_HEADER.unpack_from(request)
    major, minor, readahead = _INIT_IN.unpack_from(request, _IN_HEADER_BYTES)
    body = _INIT_OUT.pack(major, minor, readahead, 0, 12, 9, 4096, 1, 0, 0, 0)
    with contextlib.suppress(OSError):  # ENOENT: answered
        os.write(connection_fd, _OUT_HEADER.pack(_OUT_HEADER.size + len(body), 0, unique) + body)


def _refuse_all(connection_fd: int) -> bool:
    """Answer the requests that wait, and return. The descriptor must not block. False: the connection is gone."""
    for _ in range(_AT_ONCE):
        try:
            request = os.read(connection_fd, _REQUEST_BYTES)
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno == errno.ENODEV:
                return False
            continue  # ENOENT, EINTR: taken back by its reader
        _, opcode, unique = _IN_HEADER.unpack_from(request)
        if opcode in _NEEDS_NO_ANSWER:
            continue
        number = 0 if opcode == _DESTROY else -errno.EIO
        try:
            os.write(connection_fd, _OUT_HEADER.pack(_OUT_HEADER.size, number, unique))
        except OSError:
            continue  # its reader has gone
    return True
