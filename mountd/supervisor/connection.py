"""One connection to the kernel's FUSE: /dev/fuse opened and mounted, its INIT request read, and taken away again.

As root with mount(2); where that is not allowed, fusermount3 does it and sends the descriptor. The mount looks as
libfuse's own does. Once made, the descriptor is the mount: when its last holder closes it, the mount is dead.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import socket
import stat
import struct
import subprocess
import time

from hfs.mountd.supervisor.daemons import received
from hfs.mountd.supervisor.overlay import MNT_DETACH, MNT_FORCE, libc, take_away, unmounted
from hfs.mountd.supervisor.table import device_at, places_of

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8  # <sys/mount.h>

_FUSECTL = "/sys/fs/fuse/connections"

_INIT_BYTES = 8192
"""FUSE_MIN_READ_BUFFER: the kernel refuses to fill less."""
_INIT_LIMIT_S = 30.0
"""The kernel sends INIT as it mounts; what does not come within seconds never comes."""
_INIT = 26
_HAS_RESEND = 1 << 7
"""FUSE_HAS_RESEND, bit 39 of the flags: in their second word."""
_IN_HEADER = struct.Struct("=IIQQIIIHH")  # struct fuse_in_header
_OUT_HEADER = struct.Struct("=IiQ")  # struct fuse_out_header
_NOTIFY_RESEND = 7
_INIT_IN = struct.Struct("=IIIII")  # struct fuse_init_in: major, minor, max_readahead, flags, flags2


class MountRefused(Exception):
    """The mount could not be made; the text says why."""


class Connection:
    """A mount that was made here."""

    def __init__(self, fd: int, mountpoint: str, device: str) -> None:
        self.fd = fd
        self.mountpoint = mountpoint
        self.device = device
        """"MAJOR:MINOR" as in mountinfo: names the mount, whatever lies above it."""
        self.init = b""
        """The INIT request; empty until it is read."""

    @classmethod
    def make(
        cls,
        mountpoint: str,
        source: str,
        *,
        allow_other: bool,
        noexec: bool,
        owner: tuple[int, int] | None = None,
    ) -> Connection:
        """Mount `source` (a name to show) on `mountpoint`, read-only. `owner`: uid and gid that the mount is of, as
        mount(2) alone can say; None: ours. Raises MountRefused."""
        fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        try:
            ids = owner or (os.getuid(), os.getgid())
            if not _mount(fd, mountpoint, source, ids, allow_other=allow_other, noexec=noexec):
                if owner not in {None, (os.getuid(), os.getgid())}:
                    raise MountRefused(f"{mountpoint}: a mount for user {ids[0]} needs CAP_SYS_ADMIN")
                os.close(fd)
                fd = -1
                fd = _fusermount(mountpoint, source, allow_other=allow_other, noexec=noexec)
            device = device_at(mountpoint)
            if device is None:
                raise MountRefused(f"{mountpoint}: the mount is gone again")
            return cls(fd, mountpoint, device)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            raise MountRefused(f"{mountpoint}: cannot be mounted on ({error.strerror})") from None
        except MountRefused:
            if fd >= 0:
                os.close(fd)
            raise

    def read_init(self) -> None:
        """Take the kernel's INIT request, for daemons that are fed it. Raises MountRefused."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        if not poll.poll(_INIT_LIMIT_S * 1000):
            raise MountRefused(f"{self.mountpoint}: the kernel does not begin to ask")
        request = os.read(self.fd, _INIT_BYTES)
        if len(request) < _IN_HEADER.size + _INIT_IN.size or _IN_HEADER.unpack_from(request)[1] != _INIT:
            raise MountRefused(f"{self.mountpoint}: the kernel begins with something else than INIT")
        self.init = request

    @property
    def resends(self) -> bool:
        """Whether the kernel sends again what a daemon had taken (Linux 6.9)."""
        return bool(self.init) and bool(_INIT_IN.unpack_from(self.init, _IN_HEADER.size)[4] & _HAS_RESEND)

    def resend(self) -> None:
        """Have the kernel send again what was read from the connection and not answered, if it can (Linux 6.9)."""
        with contextlib.suppress(OSError):  # EINVAL: an earlier kernel
            os.write(self.fd, _OUT_HEADER.pack(_OUT_HEADER.size, _NOTIFY_RESEND, 0))

    def refuse(self, unique: int) -> None:
        """Answer a request that somebody else has taken with an I/O error, if it still waits."""
        with contextlib.suppress(OSError):  # ENOENT: it does not
            os.write(self.fd, _OUT_HEADER.pack(_OUT_HEADER.size, -errno.EIO, unique))

    @property
    def is_asked(self) -> bool:
        """Whether requests wait to be read."""
        if self.fd < 0:
            return False
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return any(event & select.POLLIN for _, event in poll.poll(0))

    @property
    def is_gone(self) -> bool:
        """Whether the kernel has dropped the connection: unmounted by everybody, or aborted."""
        if self.fd < 0:
            return True
        poll = select.poll()
        poll.register(self.fd, 0)
        return any(event & (select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0))

    @property
    def is_mounted(self) -> bool:
        """Whether this mount is the one on top at its mountpoint."""
        return device_at(self.mountpoint) == self.device

    def detach(self) -> None:
        """Take the mount out of the tree, wherever it is shown; it ends when its last user has gone. Raises OSError."""
        if self.is_gone:
            return  # its device number is another's by now
        for place in places_of(self.device):
            unmount(place, self.device)

    def abort(self) -> None:
        """End what waits with an error, and let go of it, whoever else holds it: a thread of a killed daemon may wait
        for an answer itself. The mount is dead then."""
        try:
            with open(f"{_FUSECTL}/{self.device.rpartition(':')[2]}/abort", "w") as file:
                file.write("1")
        except OSError:  # no fusectl here, as in a container
            with contextlib.suppress(OSError):
                if self.is_mounted:
                    unmounted(self.mountpoint, MNT_FORCE, lambda mount: mount.device == self.device)
        self.close()

    def close(self) -> None:
        """Let go of it: if no daemon holds it either, requests that wait are answered with an error."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def unmount(mountpoint: str, device: str) -> None:
    """Take the mount of this device, on top at this path, away, lazily, and what lies over it. Raises OSError."""
    take_away(mountpoint)
    number = unmounted(mountpoint, MNT_DETACH, lambda mount: mount.device == device)
    if number == errno.EPERM:
        done = subprocess.run(
            ["fusermount3", "-u", "-z", "-q", "--", mountpoint], stdin=subprocess.DEVNULL, check=False
        )
        number = number if done.returncode else 0
    if number:
        raise OSError(number, os.strerror(number), mountpoint)


def _mount(fd: int, mountpoint: str, source: str, owner: tuple[int, int], *, allow_other: bool, noexec: bool) -> bool:
    """mount(2). False if we may not. Raises OSError."""
    options = f"fd={fd},rootmode={stat.S_IFDIR:o},user_id={owner[0]},group_id={owner[1]},default_permissions"
    if allow_other:
        options += ",allow_other"
    flags = _MS_RDONLY | _MS_NOSUID | _MS_NODEV | (_MS_NOEXEC if noexec else 0)
    name, path = os.fsencode(f"hfs#{source}"), os.fsencode(mountpoint)
    if libc.mount(name, path, b"fuse.hfs", ctypes.c_ulong(flags), options.encode()) == 0:
        return True
    number = ctypes.get_errno()
    if number == errno.EPERM:
        return False
    raise OSError(number, os.strerror(number))


def _fusermount(mountpoint: str, source: str, *, allow_other: bool, noexec: bool) -> int:
    """The descriptor of a mount that fusermount3 has made. Raises MountRefused."""
    shown = source.replace("\\", "\\\\").replace(",", "\\,")
    options = f"ro,nosuid,nodev,default_permissions,subtype=hfs,fsname=hfs#{shown}"
    options += ",allow_other" * allow_other + ",noexec" * noexec
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            done = subprocess.run(
                ["fusermount3", "-o", options, "--", mountpoint],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
            )
        except OSError as error:
            raise MountRefused(f"fusermount3: {error.strerror}; install the package fuse3") from None
        if done.returncode != 0:
            said = done.stderr.decode(errors="backslashreplace").strip()
            raise MountRefused(f"{mountpoint}: {said or 'fusermount3 failed'}")
        ours.setblocking(False)  # it has ended: what it sent is there
        descriptors: list[int] = []
        with contextlib.suppress(BlockingIOError):
            _, descriptors = received(ours, 1, 1)
        if not descriptors:
            raise MountRefused(f"{mountpoint}: fusermount3 sent no descriptor")
        return descriptors[0]


_FUSE_DEVICE = (10, 229)  # MISC_MAJOR and FUSE_MINOR, <linux/miscdevice.h>
_MOUNTED_S = 10.0
"""Who opens it may start us before mounting it."""
_LOOK_S = 0.05
_INIT_S = 1.0
"""The kernel sends INIT as it mounts: where it is not there, somebody has read it."""
_MINOR_BITS = 20  # of the kernel's own dev_t, <linux/kdev_t.h>


class GivenConnection(Connection):
    """One that somebody else has opened and mounted: MOUNTPOINT is `/dev/fd/N`, or came through a socket. Taken as it
    is. The mount's options are those that its maker gave it, and the mount goes when its maker unmounts: here nothing
    is mounted, unmounted or made again. Where it is seen, if at all in this mount namespace, mountinfo tells, as far as
    the kernel says which mount a descriptor belongs to."""

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
