"""Where the sockets of daemons and keepers lie, by which commands find them when a mount does not answer.

One directory for each user, named after nobody else's wish: $XDG_RUNTIME_DIR/hfs (/run/hfs for root), then
/tmp/hfs-UID. That one anybody may have made first; then it is /tmp/hfs-UID-XXXXXXXX, whatever name was free. A socket
is named after its mountpoint.

`open_private` opens them all, and nothing in a directory is reached but by what it gives: one that another user has
made, or can write to, or to which a link leads, is never looked into. Standard library only; blocks for a few system
calls of local file systems.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import itertools
import os
import re
import socket
import stat
import struct
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from hfs.mountd.core.errors import MountError
from hfs.mountd.core.path_steps import open_step

MAX_SOCKET_PATH_BYTES = 107
"""sun_path of unix(7) holds 108 bytes with the ending zero."""

DAEMON, KEEPER = ".sock", ".keeper"
"""How the names of sockets end."""
_MOUNT = "mount"
"""How those of mountpoints of our own end."""
_TMP = "/tmp"
_INSTEAD = "[a-z0-9_]{8}"
"""As tempfile makes names."""
_MOST_NAMES = 4096
"""In one directory: a node has a few mounts."""
_MOST_USERS = 20_000
"""Directories in /tmp that are looked at, whoever makes however many."""
_STARTING_S = 60.0
"""From bind to listen a process takes microseconds, from its mountpoint to its socket less than a second; a machine may
be slow."""


_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid
_SO_PEERGROUPS = 59  # <asm-generic/socket.h>; the same but for alpha, parisc and sparc. Since Linux 4.13.
_MOST_BYTES = 1024
"""What Python lets an answer be long: 256 groups."""


class SocketPeer(NamedTuple):
    """A process and its user, as numbers of our own namespaces; pid 0: a process outside of ours."""

    pid: int
    uid: int
    gid: int


class HasPeer(Protocol):
    """A socket of Python or of trio."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


def socket_peer(connection: HasPeer) -> SocketPeer:
    """Who is at the other end of a Unix socket, as the kernel noted it at connect or listen.

    Standard library only: training jobs import it.

    The other end of a connected Unix socket. Raises OSError.
    """
    return SocketPeer(*_CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)))


def socket_peer_groups(connection: HasPeer) -> tuple[int, ...]:
    """The supplementary groups of the other end of a connected Unix socket. Raises OSError, also if there are more than
    256: without all of them nobody knows what a user may do."""
    return tuple(array.array("I", connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_BYTES)))


def directories_of(uid: int, environ: Mapping[str, str] | None = None) -> list[str]:
    """Where sockets of a user may be by default, the best first.

    Root does not use XDG_RUNTIME_DIR: after sudo it may be the caller's, and goes when the caller logs out.
    """
    runtime = "/run" if uid == 0 else (os.environ if environ is None else environ).get("XDG_RUNTIME_DIR", "")
    in_tmp = f"{_TMP}/hfs-{uid}"
    instead = _places_instead(uid) if why_not_ours(in_tmp, uid) else []
    return [*([f"{runtime}/hfs"] if os.path.isabs(runtime) else []), in_tmp, *instead]


def _places_instead(uid: int) -> list[str]:
    """Those that `new_path` has made because /tmp/hfs-UID is somebody else's."""
    pattern = re.compile(f"hfs-{uid}-{_INSTEAD}")
    with contextlib.suppress(OSError), os.scandir(_TMP) as found:
        names = sorted(entry.name for entry in found if pattern.fullmatch(entry.name))
        return [path for name in names if not why_not_ours(path := f"{_TMP}/{name}", uid)]
    return []


def all_in_tmp() -> list[tuple[str, int]]:
    """(directory, user) of those that users have there for their sockets. A name alone says nothing: it is the user's
    whose directory it is."""
    found = []
    with contextlib.suppress(OSError), _step(_TMP, links_ok=True) as above, os.scandir(_TMP) as entries:
        named = ((entry.name, user_of(entry.name)) for entry in entries)
        for name, uid in itertools.islice((each for each in named if each[1] is not None), _MOST_USERS):
            with contextlib.suppress(OSError), _step(name, above) as step:  # else it is none
                if uid is not None and os.fstat(step).st_uid == uid:
                    found.append((f"{_TMP}/{name}", uid))
    return found


def user_of(name: str) -> int | None:
    """Whose directory of sockets this name in /tmp would be; None: nobody's."""
    match = re.fullmatch(f"hfs-(0|[1-9][0-9]{{0,9}})(-{_INSTEAD})?", name, re.ASCII)
    return int(match[1]) if match else None


def prefix_of(mountpoint: str) -> str:
    """How the names of the sockets of a mountpoint begin."""
    import hashlib  # loads OpenSSL, and most commands look for no socket by its name

    return hashlib.blake2b(os.fsencode(mountpoint), digest_size=8).hexdigest() + "-"


def open_private(directory: str, uid: int) -> int:
    """A descriptor of a directory of this user that nobody else can write to. Raises OSError: PermissionError for one
    that is not so, for a link, and for a mount that another plain user serves, who may never answer."""
    place, name = os.path.split(directory)
    with _step(place, links_ok=True) as above:
        try:
            with _step(name, above) as step:
                descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=step)
        except NotADirectoryError:  # a link, too
            raise PermissionError(errno.EPERM, "is no directory, or a link to one", directory) from None
    found = os.fstat(descriptor)
    if found.st_uid == uid and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return descriptor
    os.close(descriptor)
    why = "others may write to it" if found.st_uid == uid else f"belongs to user {found.st_uid}"
    raise PermissionError(errno.EPERM, why, directory)


@contextlib.contextmanager
def _step(name: str, above: int | None = None, *, links_ok: bool = False) -> Iterator[int]:
    descriptor = open_step(name, above, links_ok=links_ok)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def opened(directory: str, uid: int) -> Iterator[int]:
    """As `open_private`, until the block ends."""
    descriptor = open_private(directory, uid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def why_not_ours(directory: str, uid: int) -> str:
    """Why it is not this user's alone; empty: it is, or is not there."""
    try:
        with opened(directory, uid):
            return ""
    except FileNotFoundError:
        return ""
    except OSError as error:
        return error.strerror or "cannot be opened"


def why_elsewhere() -> str | None:
    """A line where sockets of ours do not lie where they should, because somebody else was there first."""
    uid = os.geteuid()
    place = f"{_TMP}/hfs-{uid}"
    instead = [path for path in directories_of(uid) if path.startswith(f"{place}-")]
    if not instead:
        return None
    return f"{place}: {why_not_ours(place, uid)}: sockets are put into {instead[0]} instead; have it removed"


def names(descriptor: int, *suffixes: str) -> list[str]:
    """Those in a directory that end so, some thousands at most."""
    with os.scandir(descriptor) as found:
        return [entry.name for entry in itertools.islice(found, _MOST_NAMES) if entry.name.endswith(suffixes)]


def paths_of(directory: str, uid: int, mountpoint: str, suffix: str) -> list[str]:
    """The sockets of a mountpoint in a directory of this user; none if it is not that user's, or cannot be listed."""
    prefix = prefix_of(mountpoint)
    with contextlib.suppress(OSError), opened(directory, uid) as descriptor:
        return [f"{directory}/{name}" for name in names(descriptor, suffix) if name.startswith(prefix)]
    return []


def connect(connection: socket.socket, directory: int, name: str, uid: int) -> None:
    """Connect to the socket of this name in an open directory: one of this user's, and no link. Raises OSError."""
    descriptor = open_step(name, directory, any_kind=True)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISSOCK(found.st_mode) or found.st_uid != uid:
            raise PermissionError(errno.EPERM, f"is no socket of user {uid}", name)
        connection.connect(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def new_path(mountpoint: str, suffix: str, *, for_others: bool = False) -> str | None:
    """For a new socket, in a directory that is made if it is missing; None if there is none that only we can write to.
    `for_others`: other users can reach it there, if they know its name.

    What killed processes have left there is removed: sockets of the same mountpoint at once, others only when they are
    old, since a process that is just starting has bound its socket and does not listen yet.
    """
    prefix = prefix_of(mountpoint)
    for directory in _made(for_others=for_others):
        path = f"{directory}/{prefix}{os.urandom(4).hex()}{suffix}"
        if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
            _sweep(directory, prefix, suffix)
            return path
    return None


def mountpoint_of(source: str) -> str | None:
    """A directory of our own to mount a source at that is to be seen elsewhere; None if there is none that is ours
    alone. Those of mounts that have gone are removed meanwhile."""
    for directory in _made():
        path = f"{directory}/{prefix_of(source)}{_MOUNT}"
        with _alone(directory):
            with contextlib.suppress(OSError):  # a mount of ours, perhaps dead: whoever mounts there looks
                os.mkdir(path, 0o700)
            with contextlib.suppress(OSError):
                os.utime(path)  # nobody takes it away before there is a socket for it
            _remove_mountpoints(directory)
        return path
    return None


def _made(*, for_others: bool = False) -> Iterator[str]:
    """Directories of ours, made where they are missing, the best first."""
    uid = os.geteuid()
    directories = directories_of(uid)
    # $XDG_RUNTIME_DIR itself is its owner's alone.
    for directory in reversed(directories) if for_others and uid else directories:
        if _make_private(directory, for_others=for_others):
            yield directory
    with contextlib.suppress(OSError):  # somebody else was there first: a name that nobody knows beforehand
        directory = tempfile.mkdtemp(prefix=f"hfs-{uid}-", dir=_TMP)
        if _make_private(directory, for_others=for_others):
            yield directory


@contextlib.contextmanager
def _alone(directory: str) -> Iterator[None]:
    """One at a time makes and removes mountpoints in it."""
    with opened(directory, os.geteuid()) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _remove_mountpoints(directory: str) -> None:
    with opened(directory, os.geteuid()) as descriptor:
        for name in left_mountpoints(descriptor, directory):
            with contextlib.suppress(OSError):  # mounted, in use otherwise, or gone meanwhile
                os.rmdir(name, dir_fd=descriptor)


def left_mountpoints(descriptor: int, directory: str) -> list[str]:
    """Names, in a directory of this path that is open, of what `mountpoint_of` has made a while ago, and of which no
    daemon and no keeper has a socket any more.

    Sockets tell it, since removing a directory takes a mount away that only other mount namespaces see there.
    """
    found = names(descriptor, f"-{_MOUNT}", DAEMON, KEEPER)
    in_use = {name[: name.index("-") + 1] for name in found if name.endswith((DAEMON, KEEPER)) and "-" in name}
    old_s, left = time.time() - _STARTING_S, []
    for name in found:
        if name.endswith(f"-{_MOUNT}") and prefix_of(f"{directory}/{name}") not in in_use:
            with contextlib.suppress(OSError):  # gone meanwhile
                if os.lstat(name, dir_fd=descriptor).st_mtime < old_s:
                    left.append(name)
    return left


def _make_private(directory: str, *, for_others: bool = False) -> bool:
    """`for_others`: they may pass it, and do not see what is in it."""
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o700)
        with opened(directory, os.geteuid()) as descriptor:
            if for_others:
                os.fchmod(descriptor, stat.S_IMODE(os.fstat(descriptor).st_mode) | 0o111)
    except OSError:
        return False
    return True


def _sweep(directory: str, prefix: str, suffix: str) -> None:
    old_s = time.time() - _STARTING_S
    with contextlib.suppress(OSError), opened(directory, os.geteuid()) as descriptor:
        for name in names(descriptor, suffix):
            with contextlib.suppress(OSError):  # gone meanwhile
                is_ours = name.startswith(prefix) or os.lstat(name, dir_fd=descriptor).st_ctime < old_s
                if is_ours and is_stale(descriptor, name):
                    os.unlink(name, dir_fd=descriptor)


def is_stale(directory: int, name: str) -> bool:
    """A socket in an open directory that nobody listens at: its process has ended, or has bound it a moment ago. Never
    raises."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            connect(probe, directory, name, os.fstat(directory).st_uid)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def listen(
    path: str, what: str, remedy: str, mode: int, backlog: int, owner: tuple[int, int] | None = None
) -> socket.socket:
    """A socket that listens at `path`, in place of one that nobody answers at. `what` it is called, and the `remedy`:
    for people. Raises MountError for one that somebody answers at, for anything else there, and when none can be made.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _make_way(path, what, remedy)
        listener.bind(path)
        # Until listen, every connect is refused: there is no moment in which the mode is wider.
        os.chmod(path, mode)
        if owner is not None:
            os.chown(path, *owner)
        listener.listen(backlog)
    except (OSError, MountError) as error:
        listener.close()
        if isinstance(error, MountError):
            raise
        raise MountError(f"{what} {path}: {error.strerror or error}; {remedy}") from None
    return listener


def _make_way(path: str, what: str, remedy: str) -> None:
    """Raises OSError, MountError."""
    try:
        is_socket = stat.S_ISSOCK(os.lstat(path).st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise MountError(f"{what} {path}: there is something else; {remedy}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        result = probe.connect_ex(path)
        pid = socket_peer(probe).pid if result == 0 else 0
    if result not in {errno.ECONNREFUSED, errno.ENOENT}:
        owner = f"process {pid}" if pid else "another process"
        raise MountError(f"{what} {path} is in use by {owner}; {remedy}")
    with contextlib.suppress(FileNotFoundError):  # its owner was faster
        os.unlink(path)
