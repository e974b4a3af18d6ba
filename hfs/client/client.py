"""The client of a mount's daemon: finds out where it is asked, asks one thing, gives back the answer.

Blocking; no event loop, no FUSE, no framework. One connection carries one request; closing it (an exception in `news`,
Ctrl-C) cancels the request. Every wait for a mount is bounded: a daemon that hangs is a `DaemonSilent`, not a stuck
job.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hfs.client.control_socket import Address, ControlAddress, ControlSocket, DaemonEnded, DaemonSilent, Refused
from hfs.client.told import Nonsense, ReportedCounts, ReportedEstimate, ReportedNodes, ReportedStatus, check
from hfs.mountd.core import socket_places
from hfs.mountd.core.errors import printable
from hfs.mountd.core.socket_places import socket_peer
from hfs.mountd.wire.protocol import (
    Check,
    Cluster,
    Directory,
    Estimate,
    Evict,
    Failure,
    List,
    Progress,
    Record,
    Refresh,
    Request,
    Result,
    Rows,
    Status,
    Touches,
    Unpin,
    Warm,
    encode,
)
from hfs.mounting import mountinfo, probe

SOCKET_XATTR = "user.hfs.socket"
STATUS_S = 10.0
"""The daemon answers status from memory, in milliseconds; ten seconds without is a daemon that hangs."""
_MOST_SOCKETS = 4
"""Of one mount that another user may have: there is one, and one of a daemon that was killed."""
_AWAY = {errno.ECONNREFUSED, errno.ENOENT}
_NEXT_S, _AGAIN_S = 3.0, 0.05
"""In which whoever covers a mount has heard of its next daemon; the first try is the usual one."""
_QUIET_S = 0.2
_DRAIN_S = 5.0
"""Once a recording is to end: others may read on for ever."""

News = Callable[[Progress | Rows], None]


class Client:
    """Asks the daemon at `address`. Holds no connection between requests."""

    def __init__(self, address: Address) -> None:
        self.address = address

    def status(
        self, limit_s: float = STATUS_S, *, page_cache: bool = False, makes_overlay: bool = False
    ) -> dict[str, Any]:
        """The object of `hfs status --json`. `page_cache`, `makes_overlay`: as in `protocol.Status`."""
        return self._told(Status(page_cache, makes_overlay), ReportedStatus, limit_s)

    def cluster(self, limit_s: float = STATUS_S) -> list[dict[str, Any]]:
        """All nodes of the job, as `protocol.Cluster` says."""
        return list(self._told(Cluster(), ReportedNodes, limit_s)["nodes"])

    def directory(self, limit_s: float = STATUS_S) -> dict[str, Any]:
        """The nodes that share their caches, as `protocol.Directory` says."""
        return self._asked_again(Directory(), limit_s).detail

    def warm(self, paths: Sequence[bytes], jobs: int = 0, news: News | None = None, *, pin: bool = False) -> Result:
        """Stage files and trees; `news` is told how far it is. Takes as long as it takes."""
        return self._checked(self._ask(Warm(list(paths), jobs, pin), news, None), ReportedCounts)

    def estimate(self, paths: Sequence[bytes], news: News | None = None) -> Result:
        """What `warm` would read and keep, as `protocol.Estimate` says."""
        return self._checked(self._ask(Estimate(list(paths)), news, None), ReportedEstimate)

    def unpin(self, paths: Sequence[bytes]) -> Result:
        """What is staged may go for room again; no paths: all."""
        return self._ask(Unpin(list(paths)), None, None)

    def refresh(self, paths: Sequence[bytes]) -> Result:
        """Have files and directories, and all below them, looked at anew."""
        return self._ask(Refresh(list(paths)), None, None)

    def check(self, paths: Sequence[bytes], *, against_source: bool = False, news: News | None = None) -> Result:
        """Verify what is staged; no paths: all."""
        return self._ask(Check(list(paths), against_source), news, None)

    def evict(
        self,
        paths: Sequence[bytes],
        *,
        everything: bool = False,
        older_than_s: float = 0.0,
        news: News | None = None,
    ) -> Result:
        """Drop what is staged, and was last used longer ago than that."""
        return self._checked(self._ask(Evict(list(paths), everything, older_than_s), news, None), ReportedCounts)

    def list(self, paths: Sequence[bytes], news: News) -> Result:
        """Rows of what is staged, in parts to `news`; no paths: all."""
        return self._ask(List(list(paths)), news, None)

    def touches(self, start: Callable[[], object], stopped: Callable[[], bool]) -> Iterator[Touches]:
        """What is read, in parts, as it happens. `start` is called when nothing will be missed any more.

        Ends when `stopped` says so and nothing more comes for a moment.
        """
        with self._connected(STATUS_S) as connection:
            connection.send(encode(Record()), time.monotonic() + STATUS_S)
            connection.wait_heard(time.monotonic() + STATUS_S)
            self.status()  # the daemon begins with requests in the order of their coming
            start()
            deadline = None
            while deadline is None or time.monotonic() < deadline:
                ready, _, _ = select.select([connection.socket], [], [], _QUIET_S + connection.delay_s)
                while (reply := connection.receive_nowait()) is not None:
                    if isinstance(reply, Failure):
                        raise Refused(printable(reply.message), reply.code)
                    if isinstance(reply, Touches):
                        yield reply
                if stopped():
                    if not ready:
                        return
                    deadline = deadline or time.monotonic() + _DRAIN_S

    def pid(self, limit_s: float = STATUS_S) -> int:
        """The process at the other end, as the kernel knows it; 0 if it is outside of our pid namespace, or asked
        through the mount."""
        with self._connected(limit_s) as connection:
            return 0 if connection.through_mount else socket_peer(connection.socket).pid

    @contextlib.contextmanager
    def _connected(self, limit_s: float) -> Iterator[ControlSocket]:
        connection = ControlSocket(self.address, limit_s)
        with connection.socket:
            yield connection

    def _told(self, request: Request, kind: Any, limit_s: float) -> dict[str, Any]:  # noqa: ANN401 - as of `check`
        """The `detail` of the answer. Raises as `_checked`."""
        return self._checked(self._asked_again(request, limit_s), kind).detail

    def _asked_again(self, request: Request, limit_s: float) -> Result:
        """For what changes nothing: a daemon that ends meanwhile leaves the question to the next one. Raises
        DaemonSilent."""
        try:
            return self._ask(request, None, limit_s)
        except DaemonEnded:
            return self._ask(request, None, limit_s)

    def _checked(self, result: Result, kind: Any) -> Result:  # noqa: ANN401 - as of `check`
        """With a `detail` of this kind. Raises DaemonSilent: what it says cannot be used."""
        try:
            check(result.detail, kind)
        except Nonsense as error:
            where = self.address if isinstance(self.address, str) else self.address.path
            raise DaemonSilent(f"the daemon at {printable(where)}: {error}") from None
        return result

    def _ask(self, request: Request, news: News | None, limit_s: float | None) -> Result:
        frame = encode(request)
        deadline = None if limit_s is None else time.monotonic() + limit_s
        with self._connected(STATUS_S if limit_s is None else limit_s) as connection:
            connection.send(frame, deadline)
            while not isinstance(reply := connection.receive(deadline), Result):
                if news is not None and isinstance(reply, Progress | Rows):
                    news(reply)
        return reply


def find_socket(mountpoint: str, *, limit_s: float = STATUS_S) -> Address:
    """Where the daemon is asked of the mount that `mountpoint` (or any path below it) lies in.

    Raises DaemonSilent: the path is in no mount of hfs, or its daemon is dead or does not answer.
    """
    try:
        # The process that looks stands in another directory.
        place, covered = mountinfo.below_overlay(os.path.abspath(mountpoint))
        if covered is not None:
            return _address_below(covered, limit_s)
        return address_of(os.fsdecode(probe.xattr(place, SOCKET_XATTR, limit_s=limit_s)), place)
    except TimeoutError:
        raise DaemonSilent(f"{mountpoint}: the mount does not answer within {limit_s:g} s") from None
    except PermissionError:
        # Another user's mount that is not for others: its files are not, its daemon does answer root.
        for address in sockets_by_name(mountpoint):
            return address
        raise DaemonSilent(f"{mountpoint}: the mount of another user, who did not allow others") from None
    except OSError as error:
        raise DaemonSilent(f"{mountpoint}: {_why_no_socket(mountpoint, error)}") from None


def _address_below(covered: str, limit_s: float) -> ControlAddress:
    """Of the daemon of a mount that is seen below an overlay alone, whose root has the socket of the daemon from when
    it was made. Raises OSError."""
    until_s = time.monotonic() + min(limit_s, _NEXT_S)
    with contextlib.suppress(FileNotFoundError):  # no name that anything has: the mount is asked, and answers
        probe.xattr(f"{covered}/.hfs-{os.urandom(8).hex()}", SOCKET_XATTR, limit_s=limit_s)
    while True:
        path = os.fsdecode(probe.xattr(covered, SOCKET_XATTR, limit_s=limit_s))
        with socket.socket(socket.AF_UNIX) as attempt:
            attempt.settimeout(_NEXT_S)
            if attempt.connect_ex(path) not in _AWAY or time.monotonic() > until_s:
                return address_of(path, covered)
        time.sleep(_AGAIN_S)


def address_of(path: str, place: str) -> ControlAddress:
    """Of the daemon of the mount that `place` lies in, which has named this socket."""
    mount = mountinfo.enclosing(mountinfo.canonical(place))
    owner = None if mount is None or mount.owner_uid in {0, os.geteuid()} else mount.owner_uid
    return ControlAddress(path, place, owner)


def _why_no_socket(path: str, error: OSError) -> str:
    if error.errno == errno.EIO and (why := _why_refused(path)):
        return why
    if error.errno in {errno.ENODATA, errno.EOPNOTSUPP}:
        return "not in a mount of hfs; hfs status lists the mounts"
    if error.errno in {errno.ENOTCONN, errno.ECONNABORTED}:
        return f"its daemon is dead ({error.strerror}); hfs mount there again, or hfs umount takes the mount away"
    return f"not a mount of hfs that answers ({error.strerror}); hfs doctor says more"


def _why_refused(path: str) -> str:
    """What the keeper of the mount that `path` lies in says; empty: nothing."""
    from hfs.mounting import keeper  # nobody else asks here

    mount = mountinfo.enclosing(mountinfo.canonical(path))
    kept = keeper.find(mount.mountpoint) if mount is not None else None
    return kept.why_refused if kept is not None else ""


def sockets_by_name(mountpoint: str) -> list[Address]:
    """Control sockets that carry the name of this (canonical) mountpoint, in the usual places of who mounted it.

    For a mount that does not answer. In another mount namespace the same name may stand for another mount.
    """
    mount = mountinfo.at(mountpoint)
    ours = os.geteuid()
    owner = ours if mount is None or mount.owner_uid is None else mount.owner_uid
    if owner == ours:
        return [*known_sockets(mountpoint, owner)]
    found = known_sockets(mountpoint, owner, {"XDG_RUNTIME_DIR": f"/run/user/{owner}"})
    return [ControlAddress(path, mountpoint, owner) for path in found[:_MOST_SOCKETS]]


def known_sockets(mountpoint: str, uid: int, environ: Mapping[str, str] | None = None) -> list[str]:
    """Sockets of user `uid` in the usual places with this (canonical) mountpoint's name: for a mount that hangs.

    One of these places lies in /tmp, where anybody may have made it: what is not the user's own is passed over.
    """
    found = []
    for directory in socket_places.directories_of(uid, environ):
        found += socket_places.paths_of(directory, uid, mountpoint, socket_places.DAEMON)
    return found
