"""Sockets that nobody listens at, of killed daemons and keepers, and their directories where those are empty.

The directories are of their users, who may change them while root looks: so all is done below an open descriptor, of
a directory that is its user's alone and no link.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence

from hfs.mountd.core import socket_places
from hfs.sweeping.swept import Swept

_AGAIN_S = 0.2
"""Between bind and listen of a process that is just starting lie microseconds."""
_OLD_S = 60.0
"""A directory that was made or changed less long ago may be somebody's who is about to bind a socket in it."""
_SOCKETS = (socket_places.DAEMON, socket_places.KEEPER)


def directories() -> list[tuple[str, int]]:
    """(directory, user) of all that may hold sockets of ours; for root of everybody's."""
    uid = os.geteuid()
    found = [(path, uid) for path in socket_places.directories_of(uid)]
    if uid == 0:
        users = [int(name[4:]) for name in _names("/tmp") if re.fullmatch("hfs-[1-9][0-9]*", name)]
        found += [(f"/tmp/hfs-{user}", user) for user in sorted(users)]
        users = [int(name) for name in _names("/run/user") if re.fullmatch("[1-9][0-9]*", name)]
        found += [(f"/run/user/{user}/hfs", user) for user in sorted(users)]
    return found


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def sweep(*, dry_run: bool, places: Sequence[tuple[str, int]] | None = None) -> Iterator[Swept]:
    """Of all that are ours, or of these."""
    for directory, uid in directories() if places is None else places:
        with contextlib.suppress(OSError):  # not there, or gone meanwhile
            if socket_places.is_private(directory, uid):
                yield from _swept(directory, uid, dry_run=dry_run)


def _swept(directory: str, uid: int, *, dry_run: bool) -> Iterator[Swept]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != uid:
            return
        stale = [name for name in sorted(os.listdir(descriptor)) if _is_stale(descriptor, name)]
        if stale:
            time.sleep(_AGAIN_S)
        for name in stale:
            if _is_stale(descriptor, name):
                yield _removed(descriptor, directory, name, dry_run=dry_run)
        is_old = found.st_mtime < time.time() - _OLD_S
        if uid and is_old and not os.listdir(descriptor) and directory == f"/tmp/hfs-{uid}":
            if not dry_run:
                os.rmdir(directory)
            yield Swept("directory", directory, "empty directory of sockets")
    finally:
        os.close(descriptor)


def _is_stale(descriptor: int, name: str) -> bool:
    if not name.endswith(_SOCKETS):
        return False
    return socket_places.is_stale(f"/proc/self/fd/{descriptor}/{name}")


def _removed(descriptor: int, directory: str, name: str, *, dry_run: bool) -> Swept:
    path, text, kept = f"{directory}/{name}", "socket that nobody listens at", ""
    try:
        if not dry_run and stat.S_ISSOCK(os.lstat(name, dir_fd=descriptor).st_mode):
            os.unlink(name, dir_fd=descriptor)
    except OSError as error:
        kept = f"cannot be removed ({error.strerror})"
    return Swept("socket", path, text, kept)
