"""The keeper of a mount, asked from outside: is it there, in which state, and what has become of its daemons.

Its socket stands in a directory of its owner, named after the mountpoint; it says which mount it keeps (the device
number, which is the same seen from everywhere), so that one of the same name in another mount namespace is not taken
for it. mountd/supervisor/desk.py is the other side. Blocking, bounded in time, standard library only.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from typing import Any

from hfs.mounting import mountinfo
from mountd.base.errors import MountError
from mountd.core import socket_places
from mountd.core.socket_peer import socket_peer

_ANSWER_S = 5.0
"""It has nothing else to do, and answers in a millisecond."""
_TAKE_OVER_S = 150.0
"""The daemon that goes has 30 s, the one that comes 60, and so has the old one again if that fails."""


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
        return str(self.status.get("refusing") or "")

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


def ask(path: str, owner: int, request: dict[str, Any], limit_s: float = _ANSWER_S) -> tuple[int, dict[str, Any]]:
    """(pid of the keeper, its answer). Raises OSError, PermissionError for a listener that is neither `owner`'s nor
    root's; MountError for an answer that is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(limit_s)
        connection.connect(path)
        pid, uid = socket_peer(connection)
        if uid not in {owner, 0}:
            raise PermissionError(errno.EPERM, f"a process of user {uid} listens there", path)
        connection.sendall(json.dumps(request).encode() + b"\n")
        data = b""
        while part := connection.recv(65536):
            data += part
    try:
        answer = json.loads(data)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise MountError(f"the keeper at {path} does not answer what it was asked")
    return pid, answer


def find(mountpoint: str) -> FoundKeeper | None:
    """The keeper of the mount of hfs on top at this (canonical) path; None: it has none, or another user's."""
    mount = mountinfo.at(mountpoint)
    if mount is None:
        return None
    owner = os.geteuid() if mount.owner_uid is None else mount.owner_uid
    environ = None if owner == os.geteuid() else {"XDG_RUNTIME_DIR": f"/run/user/{owner}"}
    for directory in socket_places.directories_of(owner, environ):
        for path in socket_places.paths_of(directory, mountpoint, socket_places.KEEPER):
            try:
                pid, status = ask(path, owner, {"ask": "status"})
            except (OSError, MountError):
                continue
            if status.get("device") == mount.device:
                return FoundKeeper(path, owner, pid, status)
    return None
