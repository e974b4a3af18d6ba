"""Sockets that nobody listens at, of killed daemons and keepers, mountpoints of ended commands, and the directories of
both where those are empty.

The directories are of their users, who may change them while root looks: so all is done below an open descriptor, of
a directory that is its user's alone and no link.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence

from hfs.mountd.core import socket_places
from hfs.mountd.core.path_steps import stat_name
from hfs.sweeping import Swept, TimeForOthers

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
        found += [(path, user) for path, user in sorted(socket_places.all_in_tmp()) if user]
        users = [int(name) for name in _names("/run/user") if re.fullmatch("[1-9][0-9]{0,9}", name, re.ASCII)]
        found += [(f"/run/user/{user}/hfs", user) for user in sorted(users)]
    return found


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def sweep(*, dry_run: bool, others: TimeForOthers, places: Sequence[tuple[str, int]] | None = None) -> Iterator[Swept]:
    """Of all that are ours, or of these."""
    by_user: dict[int, list[str]] = {}
    for directory, uid in directories() if places is None else places:
        by_user.setdefault(uid, []).append(directory)
    stale: dict[str, list[str]] = {}
    for uid in others.each(by_user):
        for directory in by_user[uid]:
            stale[directory] = _stale(directory, uid) if others.left_s(uid) else []
    if any(stale.values()):
        time.sleep(_AGAIN_S)
    for uid in others.each(by_user):
        for directory in by_user[uid]:
            if others.left_s(uid):
                with contextlib.suppress(OSError), socket_places.opened(directory, uid) as descriptor:
                    yield from _swept(descriptor, directory, uid, stale.get(directory, []), dry_run=dry_run)


def _stale(directory: str, uid: int) -> list[str]:
    """What looks so, of a directory that is this user's."""
    with contextlib.suppress(OSError), socket_places.opened(directory, uid) as descriptor:
        names = sorted(socket_places.names(descriptor, *_SOCKETS))
        return [name for name in names if socket_places.is_stale(descriptor, name)]
    return []


def _swept(descriptor: int, directory: str, uid: int, stale: list[str], *, dry_run: bool) -> Iterator[Swept]:
    is_old = os.fstat(descriptor).st_mtime < time.time() - _OLD_S
    for name in stale:
        if socket_places.is_stale(descriptor, name):
            yield _removed(descriptor, directory, name, dry_run=dry_run)
    yield from _mountpoints(descriptor, directory, dry_run=dry_run)
    is_in_tmp = socket_places.user_of(os.path.basename(directory)) == uid and os.path.dirname(directory) == "/tmp"
    if uid and is_old and is_in_tmp and not os.listdir(descriptor):
        if not dry_run:
            os.rmdir(directory)
        yield Swept("directory", directory, "empty directory of sockets")


def _mountpoints(descriptor: int, directory: str, *, dry_run: bool) -> Iterator[Swept]:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return  # somebody mounts there just now
    for name in socket_places.left_mountpoints(descriptor, directory):
        with contextlib.suppress(OSError):  # mounted, or not empty
            if not dry_run:
                os.rmdir(name, dir_fd=descriptor)
            yield Swept("directory", f"{directory}/{name}", "mountpoint of a command that has ended")


def _removed(descriptor: int, directory: str, name: str, *, dry_run: bool) -> Swept:
    path, text, kept = f"{directory}/{name}", "socket that nobody listens at", ""
    try:
        if not dry_run and stat.S_ISSOCK(stat_name(name, descriptor).st_mode):
            os.unlink(name, dir_fd=descriptor)
    except OSError as error:
        kept = f"cannot be removed ({error.strerror})"
    return Swept("socket", path, text, kept)
