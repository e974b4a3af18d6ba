"""The keeper of a mount, asked from outside: is it there, in which state, and what has become of its daemons.

Its socket stands in a directory of its owner, named after the mountpoint; it says which mount it keeps (the device
number, which is the same seen from everywhere), so that one of the same name in another mount namespace is not taken
for it. mountd/supervisor/desk.py is the other side. What another user's keeper says is checked, and all of that user's
together are waited for some seconds. Blocking, bounded in time.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

from hfs.client.client import Client, known_sockets
from hfs.client.control_socket import DaemonSilent
from hfs.client.told import ReportedByKeeper, check, decode_json
from hfs.mountd.core import socket_places
from hfs.mountd.core.errors import ConfigError, HfsError, MountError, printable
from hfs.mountd.core.socket_places import socket_peer
from hfs.mountd.supervisor.daemons import received
from hfs.mounting import mountinfo, processes

_ANSWER_S = 5.0
"""It has nothing else to do, and answers in a millisecond."""
_TAKE_OVER_S = 150.0
"""The daemon that goes has 30 s, the one that comes 60, and so has the old one again if that fails."""

_CONTROL_S = 2.0
_OTHERS_S = 5.0
"""For all keepers of another user together: as many as that one likes may say nothing."""
_ANSWER_BYTES = 8 << 20
"""A configuration and those who hold the mount; a thousandth of it is much."""

_IN_USE_S = (0.05, 0.1, 0.2)
"""Before it is asked again: some hold a directory open for milliseconds, and an overlay goes a moment later."""
_LOOKS_S = (0.01, 0.05)
"""Before the next try to lock: the keeper has the file alone for microseconds while it looks, and so has a command that
asks whether it is the last for milliseconds."""
_ENDING_S = 5.0
"""A process that was killed closes its sockets milliseconds before it has ended, a second where the machine is busy."""
_DESCRIPTORS = 16
"""At most, with one answer: there are six."""


class InUse(MountError):
    """What lies over the mount is."""


class FoundKeeper:
    """One that answered. `status` is what it said then."""

    def __init__(self, path: str, owner: int, pid: int, status: dict[str, Any]) -> None:
        self._path = path
        self._owner = owner
        self.pid = pid
        """As the kernel knows it; 0 if it is outside of our pid namespace."""
        self.status = status

    @property
    def why_refused(self) -> str:
        """Why it answers all requests itself, with errors; empty if it does not."""
        return printable(self.status.get("refusing") or "")

    @property
    def config(self) -> dict[str, Any]:
        """What its daemon was told, as of `mountd.core.config.loading.dump`."""
        return dict(self.status.get("config") or {})

    @property
    def name(self) -> str:
        """What `hfs mount` was told as MOUNTPOINT."""
        return str(self.config.get("mountpoint"))

    @property
    def seen_at(self) -> str | None:
        """Where the mount lies in this mount namespace, if the kernel tells."""
        device = self.status.get("device")
        return next((mount.mountpoint for mount in mountinfo.mounts() if device and mount.device == device), None)

    def control(self) -> str:
        """The control socket of its daemon. Raises DaemonSilent."""
        given = self.config.get("control")
        for path in [str(given)] if given else known_sockets(self.name, os.geteuid()):
            with contextlib.suppress(HfsError):
                status = Client(path).status(_CONTROL_S)
                if (status.get("keeper") or {}).get("pid") == self.status.get("pid"):
                    return path
        raise DaemonSilent(f"{self.name}: {self.why_refused or 'the daemon does not answer'}")

    def is_seen(self) -> bool:
        """Whether the mount is still there for somebody, in whichever namespace."""
        try:
            return ask(self._path, self._owner, {"ask": "status"})[1].get("device") is not None
        except (OSError, MountError):
            return False

    def hold(self, linger_s: float) -> MountReference | None:
        """Use the mount until the result is closed, or this process has ended; None: somebody is just taking it away.
        Raises OSError, MountError."""
        until_s = time.monotonic() + _ANSWER_S
        descriptors: list[int] = []
        with contextlib.ExitStack() as stack:
            stack.callback(_close, descriptors)
            with _connect(self._path, self._owner, until_s) as connection:
                answer = _answer(connection, {"ask": "hold", "linger_s": linger_s}, until_s, descriptors)
                process = processes.open_peer(connection)
            if process is not None:
                stack.callback(os.close, process)
            if not answer.get("held"):
                return None
            try:
                held = MountReference(self, process, answer.get("bequest"), descriptors)
            except BlockingIOError:
                return None
            stack.pop_all()
            return held

    def leave(self) -> bool:
        """Whether we, who alone hold the mount, may take it away. Raises OSError, MountError."""
        return bool(ask(self._path, self._owner, {"ask": "leave"})[1].get("last"))

    def hold_session(self) -> bool:
        """Use the mount for as long as this session has its leader, or unmounts; False: it is just ending. Raises
        OSError, MountError."""
        return bool(ask(self._path, self._owner, {"ask": "hold-session"})[1].get("held"))

    def hold_job(self, job: str) -> bool:
        """Have a job use the mount until `release_job`; False: it is just ending. Raises OSError, MountError."""
        return bool(ask(self._path, self._owner, {"ask": "hold-job", "job": job})[1].get("held"))

    def release_job(self, job: str) -> tuple[bool, bool]:
        """A job uses the mount no more: whether it did, and whether the mount ends now. Raises OSError, MountError."""
        answer = ask(self._path, self._owner, {"ask": "release-job", "job": job})[1]
        return bool(answer.get("released")), bool(answer.get("ending"))

    def release_session(self) -> None:
        """This session uses the mount no more. Raises OSError, MountError."""
        ask(self._path, self._owner, {"ask": "release-session"})

    def unmount(self, *, lazy: bool) -> list[str]:
        """Say that this session is about to unmount. Who else holds the mount, for people; none: go on. Raises OSError,
        MountError; InUse where an overlay over it is."""
        request: dict[str, Any] = {"ask": "unmount", "lazy": lazy}
        pauses_s = list(_IN_USE_S)
        while (answer := ask(self._path, self._owner, request)[1]).get("busy"):
            users = [] if pauses_s else processes.having(answer.get("replaced") or [])
            if users or request.get("sure"):
                raise InUse("\n".join(f"  {user}" for user in users))
            if pauses_s:
                time.sleep(pauses_s.pop(0))
            else:
                request["sure"] = True
        return [_holder(held) for held in answer.get("held", [])]

    def make_overlay(self, told: Mapping[str, Any] | None) -> str:
        """Have the mount covered by an overlay (`io_mode.overlays` of the daemon's status); None: by none. Why there is
        none; empty: there is. Raises OSError, MountError."""
        answer = ask(self._path, self._owner, {"ask": "overlay", "overlay": told or {}})[1]
        why = answer.get("why") or answer.get("error") or ""
        return printable("" if answer.get("made") else why or "its keeper does not say why")

    def take_over(self, request: dict[str, Any]) -> dict[str, Any]:
        """Have another program answer on the mount; what came of it. Raises MountError.

        `request`: `daemon`, `directory` and `environment` of the program, `config` and `origins` for it.
        """
        try:
            return ask(self._path, self._owner, {"ask": "take-over", **request}, _TAKE_OVER_S)[1]
        except OSError as error:
            raise MountError(
                f"the keeper of the mount, process {self.pid}, does not answer: {error.strerror}"
            ) from None


class MountReference:
    """This process uses the mount, and so does a command that it starts, with all that this starts: by locks on the
    file of mountd/supervisor/references.py, which the kernel releases when they have ended."""

    def __init__(
        self, kept: FoundKeeper, process: int | None, inheritance: dict[str, Any] | None, descriptors: list[int]
    ) -> None:
        """`process`: a descriptor of the keeper. `descriptors`: what it has sent, the last of them the file. Raises
        BlockingIOError where somebody has it alone."""
        for pause_s in (*_LOOKS_S, None):
            try:
                fcntl.flock(descriptors[-1], fcntl.LOCK_SH | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if pause_s is None:
                    raise
                time.sleep(pause_s)
        self._for_command = os.open(f"/proc/self/fd/{descriptors[-1]}", os.O_RDWR | os.O_CLOEXEC)
        self._process = process
        self.keeper = kept
        self.inheritance = inheritance or None
        """What another keeper needs to go on with the mount, with `descriptors`; None: none can."""
        self.descriptors = descriptors
        """Ours: as long as they are open, requests of a mount whose keeper and daemon were killed wait."""

    def follow(self, before: MountReference) -> None:
        """This is of the keeper that goes on with the mount of `before`, where a command was started."""
        self._for_command, before._for_command = before._for_command, self._for_command
        before.close()

    def command_starts(self) -> None:
        """In its process, before it is executed: whatever becomes of us, it uses the mount. Raises OSError."""
        fcntl.flock(self._for_command, fcntl.LOCK_SH)
        os.set_inheritable(self._for_command, True)

    def has_keeper(self, ends_s: float = 0.0) -> bool:
        """Whether that has not ended, and does not within `ends_s`, as far as another could go on."""
        return self.inheritance is None if self._process is None else not processes.wait_gone(self._process, ends_s)

    def wait_gone(self, limit_s: float) -> bool:
        """Wait until the keeper has ended; whether it has, or cannot be waited for."""
        return self._process is None or processes.wait_gone(self._process, limit_s)

    def leave(self) -> bool | None:
        """Use it no more, nor does what a command has left behind. Whether it is ours to take away, since nobody else
        uses it; nobody joins then until `close`. None: its keeper has ended; we use it still."""
        if not self.descriptors:
            return None
        fcntl.flock(self._for_command, fcntl.LOCK_UN)
        try:
            fcntl.flock(self.descriptors[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        try:
            is_ours = self.keeper.leave()
        except (OSError, MountError) as error:
            if not self.has_keeper(0.0 if isinstance(error, TimeoutError) else _ENDING_S):
                fcntl.flock(self.descriptors[-1], fcntl.LOCK_SH)  # whoever goes on with it has us hold it
                return None
            is_ours = False  # it is busy, and takes the mount away itself
        if not is_ours:
            fcntl.flock(self.descriptors[-1], fcntl.LOCK_UN)
        return is_ours

    def close(self) -> None:
        """Use it no more."""
        if self.descriptors:
            fcntl.flock(self._for_command, fcntl.LOCK_UN)
            os.close(self._for_command)
        _close(self.descriptors)
        if self._process is not None:
            os.close(self._process)
            self._process = None


def _close(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


def _holder(held: dict[str, Any]) -> str:
    if held.get("job"):
        return printable(f"job {held['job']}")
    what = "the session of process" if held.get("session") else "process"
    return printable(f"{what} {held.get('pid', '?')} ({held.get('command', '?')})")


def _connect(path: str, owner: int, until_s: float) -> socket.socket:
    """Raises OSError, PermissionError for a socket, a directory or a listener that is not `owner`'s."""
    directory, name = os.path.split(path)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_left_s(until_s))
        with socket_places.opened(directory, owner) as descriptor:
            socket_places.connect(connection, descriptor, name, owner)
        uid = socket_peer(connection).uid
        if uid != owner:
            raise PermissionError(errno.EPERM, f"a process of user {uid} listens there", path)
    except BaseException:
        connection.close()
        raise
    return connection


def _left_s(until_s: float) -> float:
    """Raises TimeoutError."""
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
    return left_s


def ask(path: str, owner: int, request: dict[str, Any], limit_s: float = _ANSWER_S) -> tuple[int, dict[str, Any]]:
    """(pid of the keeper, its answer). Raises OSError, PermissionError for a listener that is not `owner`'s; MountError
    for an answer that is none."""
    until_s = time.monotonic() + limit_s
    with _connect(path, owner, until_s) as connection:
        return socket_peer(connection).pid, _answer(connection, request, until_s)


def _answer(
    connection: socket.socket, request: dict[str, Any], until_s: float, descriptors: list[int] | None = None
) -> dict[str, Any]:
    """What is said to this; what comes with it is added to `descriptors`. Raises OSError, MountError."""
    connection.sendall(json.dumps(request).encode() + b"\n")
    data = bytearray()
    while len(data) <= _ANSWER_BYTES:
        connection.settimeout(_left_s(until_s))
        # No command is to have them: its reads would wait for ever where nobody goes on.
        part, more = received(connection, 65536, 0 if descriptors is None else _DESCRIPTORS)
        if descriptors is not None:
            descriptors += more
        if not part:
            break
        data += part
    if not data:
        raise ConnectionResetError(errno.ECONNRESET, "it ended before it answered")
    answer = decode_json(data)
    if not isinstance(answer, dict):
        raise MountError(f"the keeper at {connection.getpeername()} does not answer what it was asked")
    return answer


def find(mountpoint: str) -> FoundKeeper | None:
    """The keeper of the mount of hfs on top at this (canonical) path; None: it has none, or another user's."""
    mount = mountinfo.at(mountpoint)
    if mount is None:
        return None
    owner = os.geteuid() if mount.owner_uid is None else mount.owner_uid
    return next((kept for kept in _all(owner, mountpoint) if kept.status.get("device") == mount.device), None)


def ours() -> Iterator[FoundKeeper]:
    """The keepers of all mounts of our user, those too that are just ending."""
    return of_user(os.geteuid())


def of_given_mounts() -> list[FoundKeeper]:
    """Those of our mounts whose connection somebody else has given (`/dev/fd/N`, or a socket of `hfs fd-mount`). They
    may be seen in another mount namespace, or nowhere, and are found by that name."""
    return [kept for kept in ours() if kept.status.get("given")]


def of_given(path: str) -> FoundKeeper | None:
    """The one of such a mount whose name this is, or lies above it; None: there is none. Raises ConfigError if there
    are several."""
    found = [kept for kept in of_given_mounts() if path == kept.name or path.startswith(f"{kept.name}/")]
    if len(found) > 1:
        which = ", ".join(f"process {kept.pid} ({kept.config.get('source')})" for kept in found)
        raise ConfigError(f"{path}: several mounts have this name: {which}; give the place where it is mounted")
    return found[0] if found else None


def of_user(owner: int) -> Iterator[FoundKeeper]:
    """The same of another user, for root."""
    return _all(owner, "")


def _all(owner: int, mountpoint: str) -> Iterator[FoundKeeper]:
    """Keepers of a user that answer; first those whose socket is named after `mountpoint`."""
    is_ours = owner == os.geteuid()
    prefix = socket_places.prefix_of(mountpoint)
    until_s = time.monotonic() + _OTHERS_S
    for directory in socket_places.directories_of(owner, None if is_ours else of_others(owner)):
        try:
            with socket_places.opened(directory, owner) as descriptor:
                names = socket_places.names(descriptor, socket_places.KEEPER)
        except OSError:
            continue
        for name in sorted(names, key=lambda name: not name.startswith(prefix)):
            path = f"{directory}/{name}"
            limit_s = _ANSWER_S if is_ours else until_s - time.monotonic()
            if limit_s <= 0:
                return
            try:
                pid, status = ask(path, owner, {"ask": "status"}, limit_s)
                check(status, ReportedByKeeper)
            except (OSError, HfsError):
                continue
            yield FoundKeeper(path, owner, pid, status)


def of_others(uid: int) -> dict[str, str]:
    """What `socket_places.directories_of` needs to know of another user's environment."""
    return {"XDG_RUNTIME_DIR": f"/run/user/{uid}"}
