"""`hfs fd-mount`: mounts for a process that may not, and gives it the connection through a socket.

Whoever connects is looked at (SO_PEERCRED); then MOUNTPOINT is mounted and its connection sent, with the options that
the mount has, as one message of JSON with one descriptor (SCM_RIGHTS). Nothing of the connection is kept here, so that
a mount whose daemon has gone is dead and hangs nobody. The socket stays open for as long as it is served. When it is
closed the dead mount stays, so that nobody takes an empty directory for the data; the next one is made on top of it for
the next who comes, and all go when this process ends.

This process alone needs rights (CAP_SYS_ADMIN, /dev/fuse). It reads no file of anybody's.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import stat
from collections.abc import Callable
from typing import NamedTuple

from hfs.mountd.core import socket_places
from hfs.mountd.core.errors import ConfigError, HfsError
from hfs.mountd.core.socket_peer import socket_peer
from hfs.mountd.supervisor.connection import Connection, MountRefused
from hfs.mounting import mountinfo
from hfs.mounting.given import pid_namespace
from hfs.mounting.taking_away import detach, is_dead

_SEND_S = 5.0
_BACKLOG = 8
_LEFT = 8
"""Dead mounts below one that is made: more come of a container that fails again and again, and are taken away first."""


class MountOffer(NamedTuple):
    """What is mounted for whom."""

    mountpoint: str
    """Canonical."""
    socket: str
    uid: int
    gid: int
    allow_other: bool
    noexec: bool

    @property
    def source(self) -> str:
        """Of its mounts, in the table of mounts."""
        return f"given at {self.socket}"

    @property
    def options(self) -> list[str]:
        """As in mountinfo, of what matters to whoever serves it."""
        return ["ro", "nosuid", "nodev", "default_permissions", *(["allow_other"] if self.allow_other else [])]


def check(offer: MountOffer) -> None:
    """Raises ConfigError for a MOUNTPOINT that is none, or where a mount is that others have made and that answers."""
    mount = mountinfo.at(offer.mountpoint)
    if mount is not None and mount.fstype == mountinfo.HFS_TYPE:
        # One of a former process like us is told by its source: the next one is made on top.
        if mount.source != f"hfs#{offer.source}" and not is_dead(mount):
            raise ConfigError(f"MOUNTPOINT {offer.mountpoint}: hfs is mounted there already; unmount it first")
        return
    try:
        is_directory = stat.S_ISDIR(os.stat(offer.mountpoint).st_mode)
    except OSError as error:
        raise ConfigError(f"MOUNTPOINT {offer.mountpoint}: {error.strerror}; give an empty directory") from None
    if not is_directory:
        raise ConfigError(f"MOUNTPOINT {offer.mountpoint}: not a directory; give an empty directory")


def give_connections(offer: MountOffer, tell: Callable[[str], object]) -> None:
    """Until an exception is raised (a signal's); then no mount is left. `tell`: lines for people.

    Raises MountError where there can be no such socket.
    """
    made: set[int] = set()
    owner = (offer.uid, offer.gid) if os.geteuid() == 0 else None
    with socket_places.listen(offer.socket, "--socket", "give another path", 0o600, _BACKLOG, owner) as listener:
        tell(f"{offer.socket}: gives user {offer.uid} a mount at {offer.mountpoint}")
        try:
            while True:
                client, _ = listener.accept()
                with client:
                    _serve(offer, listener, client, made, tell)
        finally:
            _take_away(offer.mountpoint, made)
            with contextlib.suppress(OSError):
                os.unlink(offer.socket)


def _serve(
    offer: MountOffer, listener: socket.socket, client: socket.socket, made: set[int], tell: Callable[[str], object]
) -> None:
    """One mount, from one who has connected until that one has gone. Its number is added to those that were `made`."""
    peer = socket_peer(client)
    if peer.uid not in {offer.uid, os.geteuid()}:
        _refuse(client, f"for user {offer.uid}, not for user {peer.uid}")
        return
    try:
        if sum(mount.mountpoint == offer.mountpoint for mount in mountinfo.mounts()) >= _LEFT:
            _take_away(offer.mountpoint, made)
        connection = Connection.make(
            offer.mountpoint,
            offer.source,
            allow_other=offer.allow_other,
            noexec=offer.noexec,
            owner=(offer.uid, offer.gid),
        )
    except (MountRefused, HfsError, OSError) as error:
        tell(str(error))
        _refuse(client, str(error))
        return
    if (mount := mountinfo.at(offer.mountpoint)) is not None:
        made.add(mount.mount_id)
    told = {"options": offer.options, "user": offer.uid, "pid_namespace": pid_namespace()}
    message = json.dumps(told).encode()
    try:
        client.settimeout(_SEND_S)
        socket.send_fds(client, [message], [connection.fd])
    except OSError:
        return  # it has gone
    finally:
        connection.close()
    tell(f"{offer.mountpoint}: given to user {peer.uid}{f', process {peer.pid}' if peer.pid else ''}")
    _wait_gone(listener, client)
    tell(f"{offer.mountpoint}: not served any more")


def _wait_gone(listener: socket.socket, client: socket.socket) -> None:
    """Until this client hangs up; others that come meanwhile are refused."""
    poll = select.poll()
    poll.register(client, select.POLLIN)
    poll.register(listener, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == client.fileno():
                with contextlib.suppress(OSError):
                    if client.recv(1, socket.MSG_DONTWAIT):
                        continue
                return
            other, _ = listener.accept()
            with other:
                _refuse(other, "served by another process already")


def _refuse(client: socket.socket, why: str) -> None:
    with contextlib.suppress(OSError):
        client.settimeout(_SEND_S)
        client.sendall(json.dumps({"error": why}).encode())


def _take_away(mountpoint: str, made: set[int]) -> None:
    """Mounts of hfs on top at this place that were made here, or are dead; who has files of them open keeps those."""
    while (mount := mountinfo.at(mountpoint)) is not None and mount.fstype == mountinfo.HFS_TYPE:
        if mount.mount_id not in made and not is_dead(mount):
            return
        detach(mountpoint, lazy=True, mount_id=mount.mount_id)
