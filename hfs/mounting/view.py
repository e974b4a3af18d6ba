"""A mount seen at another path by one command and its children only: a mount namespace of their own, and a bind.

As root the namespace is just that; a plain user gets a user namespace beside it in which he is himself, so that the
command has its own uid and no more rights than before. Nothing of it outlives the command: the kernel takes the
namespace away with its last process, however that ends.

`enter` is to be called in the child, before the command is executed. Where root may not reach the other path, which is
SOURCE, a child of that child becomes the user who may, and opens it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket

from hfs.mountd.core.errors import MountError
from hfs.mountd.supervisor import overlay
from hfs.mountd.supervisor.errand import Errand
from hfs.mountd.supervisor.generations import Generations
from hfs.mountd.supervisor.source import CannotBecome, open_source
from hfs.mountd.supervisor.table import TABLE, overlay_lies_at
from hfs.mounting import copies, mountinfo

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000  # <sched.h>
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_MS_BIND, _MS_REC, _MS_SLAVE = 4096, 16384, 1 << 19  # <sys/mount.h>
_BIND_S = 10.0

_libc = ctypes.CDLL(None, use_errno=True)


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
            _checked(_libc.mount(self._shown, self._reachable_place(), None, ctypes.c_ulong(_MS_BIND), None))
            _check_device(self._place, self._device)
        if not self._uid:
            copies.follow(outside, frozenset({os.fsdecode(self._shown), os.fsdecode(self._place)}))
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
        return [*([("user", _CLONE_NEWUSER)] if self._uid else []), ("mnt", _CLONE_NEWNS)]

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
            said, descriptors, _, _ = socket.recv_fds(self._faults, 16, 2, socket.MSG_CMSG_CLOEXEC)
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
        _checked(_libc.unshare(_CLONE_NEWNS | (_CLONE_NEWUSER if uid else 0)))
    except OSError as error:
        raise _Refused(*error.args) from None
    if uid:
        _write("/proc/self/setgroups", b"deny")
        _write("/proc/self/uid_map", b"%d %d 1" % (uid, uid))
        _write("/proc/self/gid_map", b"%d %d 1" % (gid, gid))
    _checked(_libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_SLAVE), None))


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
    _checked(_libc.mount(os.fsencode(shown), os.fsencode(place), None, ctypes.c_ulong(_MS_BIND), None))
    try:
        _check_device(os.fsencode(place), device)
    except OSError:
        _libc.umount2(os.fsencode(place), _MNT_DETACH | _UMOUNT_NOFOLLOW)
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


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
