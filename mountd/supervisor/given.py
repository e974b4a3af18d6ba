"""A connection that somebody else has opened and mounted: MOUNTPOINT is `/dev/fd/N`, or came through a socket.

Taken as it is. The mount's options are those that its maker gave it, and the mount goes when its maker unmounts: here
nothing is mounted, unmounted or made again. Where it is seen, if at all in this mount namespace, mountinfo tells, as
far as the kernel says which mount a descriptor belongs to.
"""

from __future__ import annotations

import os
import select
import stat
import time

from hfs.mountd.supervisor.connection import Connection, MountRefused
from hfs.mountd.supervisor.table import places_of

_FUSE_DEVICE = (10, 229)  # MISC_MAJOR and FUSE_MINOR, <linux/miscdevice.h>
_MOUNTED_S = 10.0
"""Who opens it may start us before mounting it."""
_LOOK_S = 0.05
_INIT_S = 1.0
"""The kernel sends INIT as it mounts: where it is not there, somebody has read it."""
_MINOR_BITS = 20  # of the kernel's own dev_t, <linux/kdev_t.h>


class GivenConnection(Connection):
    """Its mount is another's."""

    @classmethod
    def take(cls, fd: int, name: str) -> GivenConnection:
        """The connection behind `fd`, which is its own from here on. `name`: for people. Waits until it is mounted.
        Raises MountRefused; then `fd` is closed."""
        try:
            _check(fd, name)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd, name, device_of(fd))

    def read_init(self) -> None:
        """As of any connection. Raises MountRefused."""
        try:
            super().read_init()
        except MountRefused:
            self.resend()  # what we have read was not for us
            raise MountRefused(_served(self.mountpoint)) from None

    @property
    def is_mounted(self) -> bool:
        """Whether the mount is seen in this namespace."""
        return not self.is_gone and bool(places_of(self.device))

    def detach(self) -> None:
        """Who has made the mount takes it away."""

    def abort(self) -> None:
        """Let go of it."""
        self.close()


def why_none(fd: int) -> str:
    """Why this descriptor is no connection to the kernel's FUSE; empty: it is one."""
    try:
        found = os.fstat(fd)
    except OSError:
        return "not open"
    if not stat.S_ISCHR(found.st_mode) or (os.major(found.st_rdev), os.minor(found.st_rdev)) != _FUSE_DEVICE:
        return "open, but not as /dev/fuse"
    return ""


def device_of(fd: int) -> str:
    """ "MAJOR:MINOR" of the mount of a connection, as in mountinfo; empty where the kernel does not say it."""
    try:
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name == "fuse_connection":
                    number = int(value)
                    return f"{number >> _MINOR_BITS}:{number & ((1 << _MINOR_BITS) - 1)}"
    except (OSError, ValueError):
        pass
    return ""


def _check(fd: int, name: str) -> None:
    if why := why_none(fd):
        raise MountRefused(f"{name}: {why}; give a descriptor of /dev/fuse that is mounted")
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    until_s = time.monotonic() + _MOUNTED_S
    while (found := poll.poll(_INIT_S * 1000)) and found[0][1] & select.POLLERR:
        if time.monotonic() > until_s:
            remedy = "whoever opens it calls mount(2) with fd=N, and then starts hfs"
            raise MountRefused(f"{name}: not mounted, or unmounted again; {remedy}")
        time.sleep(_LOOK_S)
    if not found:
        raise MountRefused(_served(name))


def _served(name: str) -> str:
    return f"{name}: somebody else has begun to serve it: its first request (INIT) has been read; mount a new one"
