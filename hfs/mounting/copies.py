"""Copies of other mounts of hfs, as a mount namespace of one command's own begins with: they stay for as long as what
they are copies of is mounted outside.

The command may read them, so they must be there; they keep a mount alive, so they must go when it is taken away
outside. Where / is a shared mount, as systemd makes it, the kernel sees to that. Elsewhere, as in most containers, a
process does, which ends with the command. For root only: a plain user cannot take a copy away.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select

from hfs.mounting import mountinfo

_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8  # <sys/mount.h>

_libc = ctypes.CDLL(None, use_errno=True)


def follow(outside: int, own: frozenset[str]) -> None:
    """In the process that will be the command, in its namespace. `outside`: the table of mounts of the namespace that
    it comes from, opened there. `own`: mountpoints of the command's own. Raises OSError where it cannot be forked."""
    if not _copies(own):
        return
    try:
        command = os.pidfd_open(os.getpid())
    except OSError:  # a kernel before 5.3, or a container that forbids it: they go with the command
        return
    child = os.fork()
    if child == 0:
        try:
            if os.fork() == 0:  # the command is to have no child that it does not know
                _go_on(outside, command, own)
        finally:
            os._exit(0)
    os.close(command)
    os.waitpid(child, 0)


def _go_on(outside: int, command: int, own: frozenset[str]) -> None:
    """Until the command has ended, or there is no copy left."""
    os.setsid()
    os.chdir("/")
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor not in {outside, command}:
            with contextlib.suppress(OSError):  # the one of the listing has gone
                os.close(descriptor)  # pipes among them, whose readers wait for their end
    changes = select.poll()
    changes.register(outside, select.POLLPRI)
    changes.register(command, select.POLLIN)
    while copies := _copies(own):
        there = {(mount.device, mount.mountpoint) for mount in _table(outside)}
        for mount in reversed(copies):
            if (mount.device, mount.mountpoint) not in there:
                _libc.umount2(os.fsencode(mount.mountpoint), _MNT_DETACH | _UMOUNT_NOFOLLOW)
        if any(descriptor == command for descriptor, _ in changes.poll()):
            return


def _copies(own: frozenset[str]) -> list[mountinfo.Mount]:
    """In the order in which they lie upon each other. Overlays are followed too: below one that has been replaced
    outside the mount itself is seen."""
    table = mountinfo.read()
    seen = {mount.mount_id for mount in mountinfo.hfs_mounts([mount for mount in table if not mount.is_our_overlay])}
    found = [mount for mount in table if mount.mount_id in seen or mount.is_our_overlay]
    return [mount for mount in found if mount.mountpoint not in own]


def _table(descriptor: int) -> list[mountinfo.Mount]:
    with open(descriptor, encoding="utf-8", errors="surrogateescape", newline="\n", closefd=False) as file:
        file.seek(0)
        return mountinfo.parse(file.read())
