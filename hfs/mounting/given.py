"""A mount that somebody else makes: MOUNTPOINT is its connection, `/dev/fd/N`, or the socket where `hfs fd-mount` gives
one.

`/dev/fd/N` is how libfuse's programs are told of a connection: a descriptor of /dev/fuse that was opened and mounted
before we were started, by a container's runtime or another helper with the rights that we lack.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import select
import socket
import stat
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from hfs.mountd.core import socket_places
from hfs.mountd.core.config import Config
from hfs.mountd.core.errors import ConfigError, HfsError, MountError
from hfs.mountd.core.socket_places import socket_peer
from hfs.mountd.supervisor.connection import Connection, MountRefused, device_of, why_none
from hfs.mountd.supervisor.daemons import received
from hfs.mounting import mountinfo
from hfs.mounting.taking_away import detach, is_dead

_NAME = re.compile(r"/dev/fd/([0-9]+)")
SOCKET_ENDS = ".sock"
"""How the name of a socket must end, by which a connection is given."""
_ANSWER_S = 60.0
"""`hfs fd-mount` mounts anew when the one before has ended, which waits for nothing."""
_MESSAGE_BYTES = 65536


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
    """`hfs fd-mount`: mounts for a process that may not, and gives it the connection through a socket.

    Whoever connects is looked at (SO_PEERCRED); then MOUNTPOINT is mounted and its connection sent, with the options
    that the mount has, as one message of JSON with one descriptor (SCM_RIGHTS). Nothing of the connection is kept here,
    so that a mount whose daemon has gone is dead and hangs nobody. The socket stays open for as long as it is served.
    When it is closed the dead mount stays, so that nobody takes an empty directory for the data; the next one is made
    on top of it for the next who comes, and all go when this process ends.

    This process alone needs rights (CAP_SYS_ADMIN, /dev/fuse). It reads no file of anybody's.

    Raises ConfigError for a MOUNTPOINT that is none, or where a mount is that others have made and that answers.
    """
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


class GivenMount(NamedTuple):
    """What somebody else has made for us. Its descriptors are this process's."""

    fd: int
    """The connection; above standard error."""
    giver_fd: int
    """Of the socket that it came through, to be kept as long as it is served; -1: it came through none."""
    options: frozenset[str] | None
    """Of the mount, as in mountinfo; None: it is not seen here, and nobody has told."""
    owner_uid: int | None
    """Who is let in without `allow_other`."""
    foreign_pids: bool = True
    """It may have been mounted in another pid namespace, whose numbers requests carry (fuse_conn.pid_ns)."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What whoever serves it needs."""
        return (self.fd,) if self.giver_fd < 0 else (self.fd, self.giver_fd)

    @property
    def order(self) -> dict[str, object]:
        """What the keeper is told of it (`KeeperOrder`)."""
        return {"given": self.fd, "giver": self.giver_fd, "foreign_pids": self.foreign_pids}

    def close(self) -> None:
        """Another process has it now, or nobody wants it."""
        for descriptor in self.descriptors:
            os.close(descriptor)


def pid_namespace() -> int:
    """Ours, as a number that is the same seen from everywhere. 0 without /proc."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def why_not_ours(mountpoint: str, pid: int) -> str:
    """What `hfs umount` says of it. `pid`: of its keeper."""
    end = f"or end hfs: kill -TERM {pid}" if pid else "or end the container of hfs"
    return f"{mountpoint}: somebody else has mounted it, and takes it away: unmount it there, {end}"


def is_descriptor(mountpoint: str) -> bool:
    """Whether it has the form /dev/fd/N."""
    return _NAME.fullmatch(mountpoint) is not None


def is_given(mountpoint: str) -> bool:
    """Whether MOUNTPOINT stands for a connection, and is no place to mount on.

    A path of another name is not looked at: it may lie where nobody answers.
    """
    if is_descriptor(mountpoint):
        return True
    if not mountpoint.endswith(SOCKET_ENDS):
        return False
    try:
        return stat.S_ISSOCK(os.stat(mountpoint).st_mode)
    except OSError:
        return False


def take_if_given(config: Config, origins: dict[str, str]) -> tuple[GivenMount | None, Config, dict[str, str]]:
    """The mount that MOUNTPOINT stands for, if somebody else has made one, and the configuration that goes with it.
    Raises ConfigError, MountError."""
    if not is_given(config.mountpoint):
        return None, config, origins
    given = take(config.mountpoint)
    try:
        return given, *settled(config, origins, given)
    except BaseException:
        given.close()
        raise


def why_no_connection(mountpoint: str) -> str:
    """What is wrong with a MOUNTPOINT of the form /dev/fd/N, and the remedy; empty: nothing that can be seen."""
    match = _NAME.fullmatch(mountpoint)
    if match is None or not (why := why_none(int(match[1]))):
        return ""
    remedy = "give a descriptor of /dev/fuse that is open in this process and mounted (mount(2) with fd=N)"
    return f"MOUNTPOINT {mountpoint}: {why}; {remedy}"


def take(mountpoint: str) -> GivenMount:
    """The connection that MOUNTPOINT stands for. Raises ConfigError for a descriptor that is none, MountError."""
    match = _NAME.fullmatch(mountpoint)
    if match is None:
        return _received(mountpoint)
    if why := why_no_connection(mountpoint):
        raise ConfigError(why)
    number = int(match[1])
    # Standard input and output become something else; and no child is to hold a second one.
    fd = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3)
    if number > 2:
        os.close(number)
    return _seen(fd)


def _received(path: str) -> GivenMount:
    """From `hfs fd-mount`. Raises MountError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as giver:
        try:
            giver.settimeout(_ANSWER_S)
            giver.connect(path)
            uid = socket_peer(giver).uid
            if uid not in {0, os.geteuid()}:
                raise MountError(f"MOUNTPOINT {path}: a process of user {uid} listens there, not root's; not trusted")
            data, descriptors = received(giver, _MESSAGE_BYTES, 1)
            record = json.loads(data or b"{}")
        except ValueError:
            record, descriptors = {}, []
        except OSError as error:
            why = "nobody gives a connection" if isinstance(error, TimeoutError) else error.strerror or str(error)
            raise MountError(f"MOUNTPOINT {path}: {why}; is hfs fd-mount running, for this user?") from None
        if not descriptors:
            why = str(record.get("error") or "whoever listens there gives no connection")
            raise MountError(f"MOUNTPOINT {path}: {why}")
        options, owner_uid = frozenset(record.get("options", [])), record.get("user")
        foreign_pids = record.get("pid_namespace") not in {pid_namespace()} - {0}
        return GivenMount(_above_standard(descriptors[0]), giver.detach(), options, owner_uid, foreign_pids)


def _above_standard(fd: int) -> int:
    if fd > 2:
        return fd
    higher = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return higher


def _seen(fd: int) -> GivenMount:
    mount = next((mount for mount in mountinfo.mounts() if mount.device == device_of(fd)), None)
    if mount is None:
        return GivenMount(fd, -1, None, None)
    options = frozenset([*mount.options.split(","), *mount.super_options.split(",")])
    return GivenMount(fd, -1, options, mount.owner_uid)


def settled(config: Config, origins: dict[str, str], given: GivenMount) -> tuple[Config, dict[str, str]]:
    """The configuration with what the mount decides: whether others than the user that hfs runs as come here. Where
    nobody tells, they do, unless the user says otherwise. Raises ConfigError where that is wrong.

    That the kernel looks at mode bits and ACLs (`default_permissions`) does not depend on the mount: it does so as soon
    as a daemon has answered INIT that it has ACLs, as ours does.
    """
    others = given.options is None or "allow_other" in given.options or given.owner_uid not in {None, os.geteuid()}
    if origins.get("allow_other", "default") != "default":
        if given.options is not None and others and not config.allow_other:
            why = f"allow-other: false, and others may enter the mount behind {config.mountpoint}"
            raise ConfigError(f"{why}; leave it out, or have it mounted without allow_other, for user {os.geteuid()}")
        return config, origins
    return msgspec.structs.replace(config, allow_other=others), {**origins, "allow_other": "mountpoint"}
