"""A connection to a mount's daemon through the mount itself (mountd/wire/tunnel.py), where its socket is not seen.

`open_tunnel` gives a connected socket, as connecting to the control socket would. At its other end a thread carries the
bytes to the mount and back. Only this thread ever waits for the mount: whoever has the socket sees nothing of a daemon
that hangs but silence, and of one that ends or is replaced but the end of the connection. The thread asks at once while
there is something to say, and the seldomer the longer it was quiet, once a second at least. The mount's directory is
open only while bytes move, so that a learner that rests does not keep anybody from unmounting.

Belongs to the process: a forked child has no thread, and closes its copies. What was said before the process ends is
carried, for a moment. Standard library only; runs inside training jobs.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import os
import select
import signal
import socket
import threading
import time
import weakref

from hfs.mountd.wire.tunnel import (
    BODY_BYTES,
    CLOSE,
    END,
    EXCHANGE,
    EXCHANGE_BYTES,
    MORE,
    OPEN,
    TOKEN_BYTES,
    Answer,
    NoExchange,
)
from hfs.mountd.wire.tunnel import Exchange as Asked

LONGEST_S = 1.0
"""Between two exchanges; far below what the daemon takes for the end."""
_SHORTEST_S = 0.001
"""A status is answered in two or three of these."""
_KEPT_OPEN_S = 0.005
"""Before a longer pause the directory is closed, though to open it again costs as much as an exchange: whoever unmounts
meanwhile is told that the mount is in use."""
_LAST_WORDS_S = 5.0
"""For what was said before the socket was closed."""
_AT_EXIT_S = 1.0
"""The same at the end of the process."""

_pumps: weakref.WeakSet[_Pump] = weakref.WeakSet()


def open_tunnel(directory: str, limit_s: float) -> socket.socket:
    """A connection to the daemon of the mount that this directory lies in. What it says is in the queue of the socket
    (SIOCOUTQ) until the daemon has it.

    Raises TimeoutError where it does not answer within `limit_s`, and OSError: ENOTTY where it offers no tunnels,
    EUSERS where there are too many.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    pump = _Pump(directory, theirs)
    try:
        pump.start(limit_s)
    except BaseException:
        ours.close()
        raise
    return ours


class _Directory:
    """An open directory of the mount, whenever it is needed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._buffer = ctypes.create_string_buffer(EXCHANGE_BYTES)
        # Not fcntl.ioctl: of a buffer as large as this it keeps the interpreter's lock while the call waits.
        self._ioctl = ctypes.CDLL(None, use_errno=True).ioctl
        self._ioctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p]

    def exchange(self, asked: Asked) -> Answer:
        """Raises OSError, NoExchange. Waits for the mount."""
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._buffer.raw = asked.encode()
        if self._ioctl(self._fd, EXCHANGE, self._buffer) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), self._path)
        return Answer.decode(self._buffer.raw)

    def close(self) -> None:
        """Until the next exchange."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class _Pump:
    """The thread of one tunnel, and what it holds. What was said stays in the socket until the daemon has taken it."""

    def __init__(self, directory: str, end: socket.socket) -> None:
        self._directory = _Directory(directory)
        self._end = end
        self._end.setblocking(False)
        self._token = os.urandom(TOKEN_BYTES)
        self._incoming = b""
        """From the daemon, not taken by the socket yet."""
        self._opened = threading.Event()
        self._refusal: OSError | None = None
        self._carrying = False
        self._thread = threading.Thread(target=self._run, name="hfs-tunnel", daemon=True)

    def start(self, limit_s: float) -> None:
        """Raises TimeoutError, OSError. The thread ends by itself, with either end of the connection."""
        _pumps.add(self)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._close()
            raise OSError(errno.EAGAIN, str(error)) from None
        if not self._opened.wait(limit_s):
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        if self._refusal is not None:
            raise self._refusal

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # those of the job are for its own threads
        try:
            self._exchange(flags=OPEN)
            self._carrying = True
            self._opened.set()
            self._carry()
        except (OSError, NoExchange) as error:  # the daemon, the mount or the other end is gone: the socket says so
            if not self._carrying:
                self._refusal = error if isinstance(error, OSError) else OSError(errno.EPROTO, str(error))
        finally:
            self._carrying = False
            self._close()
            self._opened.set()

    def _carry(self) -> None:
        """Until the connection ends. Raises OSError, NoExchange."""
        quiet_since_s = time.monotonic()
        closed_s = 0.0
        while True:
            said = self._said()
            if said == b"" or (said and self._is_closed()):
                closed_s = closed_s or time.monotonic()
                if not said or time.monotonic() > closed_s + _LAST_WORDS_S:
                    self._exchange(said, CLOSE)
                    return
            answer = self._exchange(said or b"")
            if answer.flags & END:
                while self._tell():
                    self._wait_until_taken()
                return
            stuck = self._tell()
            moved = bool(answer.taken_bytes or answer.data)
            left = said is not None and answer.taken_bytes < len(said)
            now_s = time.monotonic()
            if moved:
                quiet_since_s = now_s
            if not moved or stuck or not (left or answer.flags & MORE):
                # Half of the time that nothing came: whoever waits for an answer waits half as long again at most.
                self._wait(min(max(_SHORTEST_S, (now_s - quiet_since_s) / 2), LONGEST_S), left=left)

    def _exchange(self, said: bytes = b"", flags: int = 0) -> Answer:
        """Say this, hear what is to be heard. Raises OSError, NoExchange."""
        room_bytes = 0 if self._incoming else BODY_BYTES
        answer = self._directory.exchange(Asked(self._token, said, flags, room_bytes))
        taken_bytes = answer.taken_bytes
        if taken_bytes > len(said) or len(answer.data) > room_bytes:
            raise NoExchange("more than was offered")
        while taken_bytes:
            taken_bytes -= len(self._end.recv(taken_bytes))
        self._incoming += answer.data
        return answer

    def _said(self) -> bytes | None:
        """What is to be said next; None: nothing now; b"": nothing any more."""
        try:
            return self._end.recv(BODY_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            return None
        except ConnectionError:
            return b""

    def _is_closed(self) -> bool:
        """The other end is, however much of what it said is still to be carried."""
        waiter = select.poll()
        waiter.register(self._end, 0)
        return bool(waiter.poll(0))

    def _tell(self) -> bool:
        """Give the socket what has come. Whether it has no room for some of it."""
        try:
            while self._incoming:
                self._incoming = self._incoming[self._end.send(self._incoming, socket.MSG_NOSIGNAL) :]
        except BlockingIOError:
            return True
        except OSError:  # closed: nobody wants it; what was said before comes first
            self._incoming = b""
        return False

    def _wait(self, limit_s: float, *, left: bool) -> None:
        """So long, or until the socket has or takes something. `left`: the daemon did not take all that it has."""
        if limit_s > _KEPT_OPEN_S:
            self._directory.close()
        if left:
            time.sleep(limit_s)
            return
        waiter = select.poll()
        waiter.register(self._end, select.POLLIN | (select.POLLOUT if self._incoming else 0))
        waiter.poll(limit_s * 1000)

    def _wait_until_taken(self) -> None:
        self._directory.close()
        waiter = select.poll()
        waiter.register(self._end, select.POLLOUT)
        waiter.poll()

    def finish(self, limit_s: float) -> None:
        """No more is said; wait until the daemon has what was."""
        if self._carrying:
            with contextlib.suppress(OSError):
                self._end.shutdown(socket.SHUT_RD)
                self._thread.join(limit_s)

    def forget(self) -> None:
        """In a forked child, where there is no thread."""
        with contextlib.suppress(OSError):
            self._end.close()
            self._directory.close()

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            # A forked child may hold a copy; this ends it for all.
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()
        self._directory.close()


def _at_exit() -> None:
    deadline_s = time.monotonic() + _AT_EXIT_S
    for pump in list(_pumps):
        pump.finish(max(0.0, deadline_s - time.monotonic()))


def _after_fork_in_child() -> None:
    for pump in list(_pumps):
        pump.forget()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork_in_child)
