"""`ControlSocket`: one connection to a daemon, by its control socket or through its mount, frames out and replies in,
every wait bounded.

Blocking, standard library and msgspec only. Whatever goes wrong is a DaemonSilent, or the Refused that the daemon has
sent, which names its socket.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import socket
import termios
import time
from typing import NamedTuple

from hfs.mountd.core import path_steps
from hfs.mountd.core.errors import HfsError, printable
from hfs.mountd.core.socket_places import socket_peer
from hfs.mountd.wire.protocol import HEADER_BYTES, Failure, ProtocolError, Reply, decode_reply, frame_bytes
from hfs.mounting import mountinfo, probe


class DaemonSilent(HfsError):
    """The daemon cannot be reached or does not answer."""


class DaemonEnded(DaemonSilent):
    """It ended with the connection open; as a rule another one goes on."""


class Refused(HfsError):
    """The daemon answered with a Failure. `code` is the exit code that it proposes."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class ControlAddress(NamedTuple):
    """Where the daemon of a mount is asked."""

    path: str
    """Of its control socket."""
    place: str
    """An absolute path in its mount: from a container that does not see the socket, and for a user who may not use it,
    the connection goes through the mount."""
    owner: int | None = None
    """Who has mounted it, where that is another plain user, who may name any socket: nobody else is taken for the
    daemon."""


Address = str | ControlAddress
"""A control socket alone, or both ways."""

_NOT_SEEN = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ECONNREFUSED, errno.ELOOP, errno.EPROTOTYPE}
)
"""What connecting ends with where the path is nothing, or something else, in our namespaces."""
_LOOK_S = 0.001
"""Between two looks at what is on its way through the mount."""
_SILENT = "; try again in a moment, and look into its log if it stays so"
_ENDED = "; another one goes on in a moment as a rule: try again"


class ControlSocket:
    """Connected to a daemon. Deadlines are times of time.monotonic(); None: as long as it takes."""

    def __init__(self, address: Address, limit_s: float) -> None:
        """Raises DaemonSilent if nobody takes the connection within `limit_s`."""
        path = address if isinstance(address, str) else address.path
        self.where = f"the daemon at {path}"
        self.delay_s = 0.0
        """For how long a reply may be on its way."""
        self._incoming = bytearray()
        owner = None if isinstance(address, str) else address.owner
        try:
            self.socket = _connected(path, owner, limit_s)
        except OSError as error:
            silent = DaemonSilent(
                f"no daemon answers at {printable(path)}: {error.strerror or error}; hfs status lists the mounts"
            )
            if isinstance(address, str) or error.errno not in _NOT_SEEN or (owner is not None and os.geteuid() == 0):
                raise silent from None  # root waits for no mount of another user, which may not answer for ever
            self._go_through_mount(address, limit_s, silent)

    @property
    def through_mount(self) -> bool:
        """The other end of the socket is a thread of ours."""
        return self.delay_s > 0

    def _go_through_mount(self, address: ControlAddress, limit_s: float, silent: DaemonSilent) -> None:
        """Raises `silent` where the mount offers no way, and DaemonSilent."""
        from hfs.client.tunnel import LONGEST_S, open_tunnel  # few need it, and it brings ctypes

        place = address.place
        try:
            canonical, _ = mountinfo.below_overlay(mountinfo.canonical(place))
            if mountinfo.lies_in_overlay(canonical):
                seen = f"have {printable(os.path.dirname(address.path))} seen here too"
                raise DaemonSilent(f"{silent}; and no connection goes through the overlay at {place}: {seen}") from None
            mount = mountinfo.enclosing(canonical)
            if mount is None or not mount.may_be_hfs:
                raise silent from None
            self.socket = open_tunnel(mount.mountpoint, limit_s)
        except OSError as error:
            if error.errno == errno.ENOTTY:  # of an older release, or without its extension
                raise silent from None
            raise DaemonSilent(f"{silent}; nor through the mount {place}: {error.strerror}") from None
        self.where, self.delay_s = f"the daemon behind {mount.mountpoint}", LONGEST_S

    def send(self, frame: bytes, deadline: float | None) -> None:
        """All of it. Raises DaemonSilent, and Refused where the daemon has said why it takes no more."""
        rest = memoryview(frame)
        try:
            while rest:
                self._wait_until(deadline)
                rest = rest[self.socket.send(rest, socket.MSG_NOSIGNAL) :]
        except TimeoutError:
            raise DaemonSilent(f"{self.where} does not listen{_SILENT}") from None
        except OSError as error:
            with contextlib.suppress(DaemonSilent):
                self.receive(deadline)  # refused before all was read: the reason is waiting for us
            raise DaemonEnded(f"{self.where} is gone: {error.strerror}{_ENDED}") from None

    def wait_heard(self, deadline: float | None) -> None:
        """Until the daemon has what was sent, as it has at once by a socket of its own. Raises DaemonSilent."""
        try:
            while self.through_mount and fcntl.ioctl(self.socket, termios.TIOCOUTQ, bytes(4)) != bytes(4):
                self._wait_until(deadline)
                time.sleep(_LOOK_S)
        except TimeoutError:
            raise DaemonSilent(f"{self.where} does not listen{_SILENT}") from None

    def receive(self, deadline: float | None) -> Reply:
        """The next reply. Raises DaemonSilent, and Refused for a Failure."""
        try:
            while (reply := self._next()) is None:
                self._wait_until(deadline)
                self._take(self.socket.recv(65536))
        except TimeoutError:
            raise DaemonSilent(f"{self.where} does not answer{_SILENT}") from None
        except EOFError:
            raise DaemonEnded(f"{self.where} ended before it answered{_ENDED}") from None
        except OSError as error:
            raise DaemonEnded(f"{self.where} is gone: {error.strerror}{_ENDED}") from None
        if isinstance(reply, Failure):
            raise Refused(printable(reply.message), reply.code)
        return reply

    def send_nowait(self, frame: bytes) -> bytes:
        """What is left of the frame when the socket takes no more. Raises OSError."""
        self.socket.settimeout(None)  # with another one Python waits, whatever the flags say
        try:
            return frame[self.socket.send(frame, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :]
        except BlockingIOError:
            return frame

    def receive_nowait(self) -> Reply | None:
        """A reply, Failure too, if one is here. Raises DaemonSilent at the end of the connection."""
        try:
            self.socket.settimeout(None)
            while (reply := self._next()) is None:
                self._take(self.socket.recv(65536, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return None
        except EOFError:
            raise DaemonEnded(f"{self.where} is gone{_ENDED}") from None
        except OSError as error:
            raise DaemonEnded(f"{self.where} is gone: {error.strerror}{_ENDED}") from None
        return reply

    def wait_incoming(self, limit_s: float) -> None:
        """Until something has come, or it has ended; no longer than `limit_s`."""
        select.select([self.socket], [], [], limit_s)

    def _wait_until(self, deadline: float | None) -> None:
        left_s = None if deadline is None else deadline - time.monotonic()
        if left_s is not None and left_s <= 0:
            raise TimeoutError
        self.socket.settimeout(left_s)

    def _take(self, part: bytes) -> None:
        if not part:
            raise EOFError
        self._incoming += part

    def _next(self) -> Reply | None:
        """The next reply of which all is here."""
        if len(self._incoming) < HEADER_BYTES:
            return None
        try:
            end = HEADER_BYTES + frame_bytes(bytes(self._incoming[:HEADER_BYTES]))
            if len(self._incoming) < end:
                return None
            reply = decode_reply(bytes(self._incoming[HEADER_BYTES:end]))
        except ProtocolError as error:
            raise DaemonSilent(
                f"{self.where} cannot be understood: {printable(str(error))}; it is of another release: hfs mount "
                "--take-over puts this one in its place"
            ) from None
        del self._incoming[:end]
        return reply


def _connected(path: str, owner: int | None, limit_s: float) -> socket.socket:
    """`owner`: another plain user has named the path, and may have put anything on the way to it. Raises OSError:
    PermissionError where somebody else listens than `owner`."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(limit_s)
        if owner is None:
            connection.connect(path)
            return connection
        descriptor = probe.opened(path, limit_s)
        try:
            path_steps.refuse_strange(descriptor, path)
            connection.connect(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
        if (uid := socket_peer(connection).uid) != owner:
            raise PermissionError(errno.EPERM, f"a process of user {uid} listens there, not of user {owner}", path)
    except BaseException:
        connection.close()
        raise
    return connection
