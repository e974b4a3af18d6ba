"""Where the sockets of daemons and keepers lie, by which commands find them when a mount does not answer.

One directory for each user, named after nobody else's wish: $XDG_RUNTIME_DIR/hfs (/run/hfs for root), then
/tmp/hfs-UID, which anybody may have made first, so its owner is looked at. A socket is named after its mountpoint.
Standard library only; blocks for a few system calls of local file systems.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator, Mapping

from hfs.mountd.base.socket_path import MAX_SOCKET_PATH_BYTES

DAEMON, KEEPER = ".sock", ".keeper"
"""How the names of sockets end."""
_MOUNT = "mount"
"""How those of mountpoints of our own end."""
_STARTING_S = 60.0
"""From bind to listen a process takes microseconds, from its mountpoint to its socket less than a second; a machine may
be slow."""


def directories_of(uid: int, environ: Mapping[str, str] | None = None) -> list[str]:
    """Where sockets of a user may be by default, the best first.

    Root does not use XDG_RUNTIME_DIR: after sudo it may be the caller's, and goes when the caller logs out. Another
    user may have made /tmp/hfs-UID: see `is_private`.
    """
    runtime = "/run" if uid == 0 else (os.environ if environ is None else environ).get("XDG_RUNTIME_DIR", "")
    return [*([f"{runtime}/hfs"] if os.path.isabs(runtime) else []), f"/tmp/hfs-{uid}"]


def prefix_of(mountpoint: str) -> str:
    """How the names of the sockets of a mountpoint begin."""
    import hashlib  # loads OpenSSL, and most commands look for no socket by its name

    return hashlib.blake2b(os.fsencode(mountpoint), digest_size=8).hexdigest() + "-"


def is_private(directory: str, uid: int) -> bool:
    """A directory of this user, and no link to one, that nobody else can write to. Raises OSError."""
    found = os.lstat(directory)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == uid and not found.st_mode & 0o022


def paths_of(directory: str, mountpoint: str, suffix: str) -> list[str]:
    """The sockets of a mountpoint in a directory; none if it cannot be listed."""
    prefix = prefix_of(mountpoint)
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    return [f"{directory}/{name}" for name in names if name.startswith(prefix) and name.endswith(suffix)]


def new_path(mountpoint: str, suffix: str, *, for_others: bool = False) -> str | None:
    """For a new socket, in a directory that is made if it is missing; None if there is none that only we can write to.
    `for_others`: other users can reach it there, if they know its name.

    What killed processes have left there is removed: sockets of the same mountpoint at once, others only when they are
    old, since a process that is just starting has bound its socket and does not listen yet.
    """
    prefix = prefix_of(mountpoint)
    directories = directories_of(os.geteuid())
    # $XDG_RUNTIME_DIR itself is its owner's alone.
    for directory in reversed(directories) if for_others and os.geteuid() else directories:
        path = f"{directory}/{prefix}{os.urandom(4).hex()}{suffix}"
        if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES and _make_private(directory, for_others=for_others):
            _sweep(directory, prefix, suffix)
            return path
    return None


def mountpoint_of(source: str) -> str | None:
    """A directory of our own to mount a source at that is to be seen elsewhere; None if there is none that is ours
    alone. Those of mounts that have gone are removed meanwhile."""
    for directory in directories_of(os.geteuid()):
        path = f"{directory}/{prefix_of(source)}{_MOUNT}"
        if _make_private(directory):
            with _alone(directory):
                with contextlib.suppress(OSError):  # a mount of ours, perhaps dead: whoever mounts there looks
                    os.mkdir(path, 0o700)
                with contextlib.suppress(OSError):
                    os.utime(path)  # nobody takes it away before there is a socket for it
                _remove_mountpoints(directory)
            return path
    return None


@contextlib.contextmanager
def _alone(directory: str) -> Iterator[None]:
    """One at a time makes and removes mountpoints in it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_mountpoints(directory: str) -> None:
    """Empty directories that `mountpoint_of` has made, of which no daemon and no keeper has a socket any more.

    Sockets tell it, since removing a directory takes a mount away that only other mount namespaces see there.
    """
    names = os.listdir(directory)
    in_use = {name[: name.index("-") + 1] for name in names if name.endswith((DAEMON, KEEPER)) and "-" in name}
    old_s = time.time() - _STARTING_S
    for name in names:
        path = f"{directory}/{name}"
        if name.endswith(f"-{_MOUNT}") and prefix_of(path) not in in_use:
            with contextlib.suppress(OSError):  # mounted, in use otherwise, or gone meanwhile
                if os.lstat(path).st_mtime < old_s:
                    os.rmdir(path)


def _make_private(directory: str, *, for_others: bool = False) -> bool:
    """`for_others`: they may pass it, and do not see what is in it."""
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o700)
        if not is_private(directory, os.geteuid()):
            return False
        if for_others:
            os.chmod(directory, stat.S_IMODE(os.lstat(directory).st_mode) | 0o111)
    except OSError:
        return False
    return True


def _sweep(directory: str, prefix: str, suffix: str) -> None:
    old_s = time.time() - _STARTING_S
    for name in os.listdir(directory):
        path = f"{directory}/{name}"
        with contextlib.suppress(OSError):  # gone meanwhile
            # Nothing but sockets is looked at: a mount beside them may not answer yet.
            is_ours = name.endswith(suffix) and (name.startswith(prefix) or os.lstat(path).st_ctime < old_s)
            if is_ours and is_stale(path):
                os.unlink(path)


def is_stale(path: str) -> bool:
    """A socket that nobody listens at: its process has ended, or has bound it a moment ago. Never raises."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return False
    except OSError:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(path) == errno.ECONNREFUSED
