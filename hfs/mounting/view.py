"""A mount seen at another path by one command and its children only: a mount namespace of their own, and a bind.

As root the namespace is just that; a plain user gets a user namespace beside it in which he is himself, so that the
command has its own uid and no more rights than before. Nothing of it outlives the command: the kernel takes the
namespace away with its last process, however that ends.

`enter` is to be called in the child, before the command is executed. Where root may not reach the other path, which is
SOURCE, a child of that child becomes the user who may, and opens it.

The namespace begins with copies of other mounts of hfs, which stay for as long as what they are copies of is mounted
outside. The command may read them, so they must be there; they keep a mount alive, so they must go when it is taken
away outside. Where / is a shared mount, as systemd makes it, the kernel sees to that. Elsewhere, as in most containers,
a process does, which ends with the command: for root only, since a plain user cannot take a copy away.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import socket

from hfs.mountd.core.errors import MountError
from hfs.mountd.supervisor import overlay
from hfs.mountd.supervisor.daemons import received
from hfs.mountd.supervisor.errand import Errand
from hfs.mountd.supervisor.generations import Generations
from hfs.mountd.supervisor.mounts import CannotBecome, open_source
from hfs.mountd.supervisor.overlay import MNT_DETACH, MS_BIND, MS_REC, MS_SLAVE, UMOUNT_NOFOLLOW, Layers, checked, libc
from hfs.mountd.supervisor.table import TABLE, overlay_lies_at
from hfs.mounting import mountinfo

_BIND_S = _TRY_S = 10.0
_PLACE = "/tmp"
_DATA = b"what is staged"


class View:
    """What lies at `shown` is seen at `place`, which may be the same. Both are canonical paths of directories that are
    there."""

    def __init__(
        self, shown: str, place: str, device: str, as_user: str | None = None, generations: Generations | None = None
    ) -> None:
        """`device`: of the mount, as in mountinfo. `as_user`: who can reach `place`, as the configuration has it.
        `generations`: of an overlay that is to lie over it, if that is possible."""
        self._generations = generations
        self.why_no_overlay: str | None = None
        """Once `fault` was asked."""
        self.watch = -1
        """The same: of the overlay, as `Generations.began` wants it."""
        self.namespaces: list[tuple[int, int]] = []
        """The same."""
        self._as_user = as_user
        self._device = device
        self._shown = os.fsencode(shown)
        self._place = os.fsencode(place)
        self._uid = os.geteuid()
        self._faults, self._told = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def enter(self) -> None:
        """In the child. Raises OSError, and tells the parent."""
        try:
            self._enter()
        except OSError as error:
            self._told.send(b"%d" % (error.errno or errno.EIO))
            raise

    def _enter(self) -> None:
        outside = os.open(TABLE, os.O_RDONLY | os.O_CLOEXEC)
        try:
            own_namespaces()
        except _Refused as error:
            if self._shown != self._place:
                raise
            self._told.send(b"-%d" % (error.errno or errno.EIO))  # it is seen there without one
            return
        overlay.take_away(os.fsdecode(self._shown))  # of the mount's own, which nobody would renew here
        if self._shown != self._place:
            checked(libc.mount(self._shown, self._reachable_place(), None, ctypes.c_ulong(MS_BIND), None))
            _check_device(self._place, self._device)
        if not self._uid:
            _follow_copies(outside, frozenset({os.fsdecode(self._shown), os.fsdecode(self._place)}))
        self._lay_over()

    def _lay_over(self) -> None:
        if self._generations is not None:
            try:
                watch = self._generations.put_first()
                kinds = [name for name, _ in self._kinds]
                namespaces = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in kinds]
                socket.send_fds(self._told, [b"+%d" % watch], namespaces)
            except OSError as error:
                self._told.send(b"-%d" % (error.errno or errno.EIO))

    @property
    def _kinds(self) -> list[tuple[str, int]]:
        """Of the namespaces that it has, in the order in which they are entered."""
        return [*([("user", overlay.CLONE_NEWUSER)] if self._uid else []), ("mnt", overlay.CLONE_NEWNS)]

    def _reachable_place(self) -> bytes:
        """A path of it that we may follow; in the new namespace, where what was opened before is none to mount on."""
        if self._as_user is None:
            return self._place
        try:
            return b"/proc/self/fd/%d" % open_source(os.fsdecode(self._place), self._as_user).fd
        except CannotBecome:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM)) from None

    def fault(self) -> MountError | None:
        """In the parent, once, when the child has been started or has failed: why it has no such view; None: it has."""
        self._told.close()
        with self._faults:
            said, descriptors = received(self._faults, 16, 2)
        self.namespaces = [(each, kind) for each, (_, kind) in zip(descriptors, self._kinds, strict=False)]
        if not said:
            return None
        if said.startswith(b"-"):
            self.why_no_overlay = os.strerror(-int(said))
            return None
        if said.startswith(b"+"):
            self.watch = int(said[1:])
            return None
        why = os.strerror(int(said))
        if int(said) == errno.ESTALE:
            return MountError(f"{os.fsdecode(self._shown)}: the mount was taken away just now; try again")
        return MountError(
            f"{os.fsdecode(self._place)}: this kernel does not let user {self._uid} have a mount namespace of its own "
            f"({why}); give --at, an empty directory to show the data at"
        )


class _Refused(OSError):
    """This process may have no namespaces of its own."""


def own_namespaces() -> None:
    """This process has its own from here on: what is mounted elsewhere later is seen there, and nothing of its own
    elsewhere. Raises OSError; _Refused: nothing has changed."""
    uid, gid = os.geteuid(), os.getegid()
    try:
        checked(libc.unshare(overlay.CLONE_NEWNS | (overlay.CLONE_NEWUSER if uid else 0)))
    except OSError as error:
        raise _Refused(*error.args) from None
    if uid:
        _write("/proc/self/setgroups", b"deny")
        _write("/proc/self/uid_map", b"%d %d 1" % (uid, uid))
        _write("/proc/self/gid_map", b"%d %d 1" % (gid, gid))
    checked(libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_SLAVE), None))


def _follow_copies(outside: int, own: frozenset[str]) -> None:
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
                libc.umount2(os.fsencode(mount.mountpoint), MNT_DETACH | UMOUNT_NOFOLLOW)
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


def why_no_overlays() -> str:
    """Why this user can have no overlays here; empty: he can. A small one is made, in namespaces of a child's own and
    in memory, and a file is read by way of it: what kernels and containers allow is not to be told from their names."""
    try:
        errand = Errand(lambda _: _try_overlay(), [])
    except OSError as error:
        return error.strerror or str(error)
    code = errand.wait(_TRY_S)
    errand.close()
    if code == 0:
        return ""
    why = "no answer" if code is None else os.strerror(code)
    return f"this kernel or container has none with a layer of data alone for user {os.geteuid()} ({why})"


def _try_overlay() -> None:
    """In a child. Raises OSError."""
    own_namespaces()
    checked(libc.mount(b"none", _PLACE.encode(), b"tmpfs", ctypes.c_ulong(0), None))
    names, objects, top = (f"{_PLACE}/{name}" for name in ("names", "objects", "top"))
    for made in (names, objects, top):
        os.mkdir(made)
    with open(f"{objects}/1", "wb") as file:
        file.write(_DATA)
    with open(f"{names}/file", "wb") as file:
        file.truncate(len(_DATA))
    kind, is_told = overlay.attributes(), False
    with contextlib.suppress(OSError):  # a tmpfs that keeps no attributes
        os.setxattr(f"{names}/file", f"{kind}.overlay.metacopy", b"")
        os.setxattr(f"{names}/file", f"{kind}.overlay.redirect", b"/1")
        is_told = True
    overlay.put(Layers(objects, "hfs#probe", top, "", ""), names)
    with open(f"{names}/file", "rb") as file:
        if is_told and file.read() != _DATA:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


def bind(shown: str, place: str, device: str) -> None:
    """Show the mount of this device, which lies at `shown`, at `place` too, for everybody. Raises OSError."""
    if overlay_lies_at(shown):
        errand = Errand(lambda _: overlay.show_below(shown, place, device), [])
        code = errand.wait(_BIND_S)
        errand.close()
        if code != 0:
            number = errno.ETIMEDOUT if code is None else code
            raise OSError(number, os.strerror(number))
        return
    checked(libc.mount(os.fsencode(shown), os.fsencode(place), None, ctypes.c_ulong(MS_BIND), None))
    try:
        _check_device(os.fsencode(place), device)
    except OSError:
        libc.umount2(os.fsencode(place), MNT_DETACH | UMOUNT_NOFOLLOW)
        raise


def _check_device(place: bytes, device: str) -> None:
    """The mount may have been taken away a moment ago: then this is the directory below it. Raises OSError."""
    mount = mountinfo.at(os.fsdecode(place))
    if mount is None or mount.device != device:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
