"""An overlay over a mount (overlayfs with a layer of data alone): what is staged is opened in the cache by the kernel.

The mount is the layer of names, and says of each staged file where its object lies below the layer of data, the objects
of the cache (mountd/native/plane/overlay.c, mountd/fuse/handlers.py). The way of a file is fixed when its name is first
looked up, so overlays come in *generations*: a new one is put beneath the one that is there, which is taken away then;
whoever has something open in it goes on (Documentation/filesystems/overlayfs.rst; move_mount(2), Linux 6.5). Who makes
them, and when, is told in generations.py.

System calls alone. To make one waits for the mount; all here is done within the mount namespace that it is for.

Below a directory of another user a path leads elsewhere a moment after it was looked up, or into a file system of that
user's which never answers. So root goes down by descriptors of directories, follows no link, goes into nothing that
another plain user serves, and knows what is mounted at the end by its number. As `mountd.core.path_steps`, of which the
keeper knows nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from hfs.mountd.supervisor.table import Mount, number_of, numbered, overlay_lies_at

libc = ctypes.CDLL(None, use_errno=True)
MS_REC, MS_SLAVE, MS_BIND = 16384, 1 << 19, 4096  # <sys/mount.h>
MNT_FORCE, MNT_DETACH, UMOUNT_NOFOLLOW = 1, 2, 8

_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT = range(428, 433)  # the same on every architecture
_SET_FLAG, _SET_STRING, _CREATE = 0, 1, 6  # <linux/mount.h>
_FSOPEN_CLOEXEC = _FSMOUNT_CLOEXEC = 1
_RDONLY, _NOSUID, _NODEV, _NOEXEC = 1, 2, 4, 8
_CLONE, _EMPTY_PATH, _BENEATH = 1, 0x4, 0x200
_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000  # <sched.h>
SOCKET_XATTR = "user.hfs.socket"
"""Where the daemon of a mount is asked: an attribute of its root, which the empty first layer covers."""
_ACL = "system.posix_acl_access"
_LARGEST = 1 << 62
"""No daemon calls a generation by a larger number."""
_TEXT_BYTES = 255
"""The longest text that fsconfig(2) takes."""


def checked(result: int) -> int:
    """Of a call of the C library. Raises OSError."""
    if result < 0:
        number = ctypes.get_errno() or errno.EIO
        raise OSError(number, os.strerror(number))
    return result


class Layers(NamedTuple):
    """What an overlay is made of."""

    objects: str
    source: str
    """As the mount is called in mountinfo: `hfs#...`."""
    top: str
    """An empty directory that stands for the root of the mount: of that the kernel keeps no ACL, since it is older than
    what was agreed on about them, and would ask the daemon at every look-up of whoever does not own it."""
    number: str
    """The file that says when a new generation is to be made (mountd/cache/generation.py)."""
    makers: str
    """The directory where whoever makes them says so (generations.py)."""
    device: str = ""
    """Of the mount, as in mountinfo; empty: any."""
    noexec: bool = False

    @classmethod
    def told(cls, told: Mapping[str, Any], source: str, device: str, *, noexec: bool) -> Layers:
        """As the daemon tells of them: `io_mode.overlays` of its status."""
        paths = {name: str(told[name]) for name in ("objects", "top", "number", "makers")}
        return cls(source=f"hfs#{source}", device=device, noexec=noexec, **paths)

    def number_now(self) -> int:
        """0: there is none. Never raises."""
        return _number_in(self.number)

    def needed_now(self) -> int:
        """The newest that is to be made however many are alive. 0: there is none. Never raises."""
        return _number_in(os.path.join(os.path.dirname(self.number), "needed"))


def _number_in(path: str) -> int:
    try:
        with open(path, "rb") as file:
            number = int(file.read(20) or b"0")
    except (OSError, ValueError):
        return 0
    return number if 0 < number <= _LARGEST else 0


def put(layers: Layers, place: str, made: Callable[[str, int], object] = lambda _root, _number: None) -> None:
    """A generation, over the mount that is seen at `place`, in the place of the one that is there. `made` is called
    before it is seen, with a path of its root and its number. Raises OSError; where another one is there, that stays.

    Below that one the mount is found in a namespace of this process's own, which must have one thread, and nothing else
    to do.
    """
    before = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) if overlay_lies_at(place) else -1
    mount = -1
    try:
        mount = _made(layers, place) if before < 0 else _made_below(layers, place)
        made(f"/proc/self/fd/{mount}", number_of(mount))
        flags = _EMPTY_PATH | (_BENEATH if before >= 0 else 0)
        _call(_MOVE_MOUNT, mount, b"", _AT_FDCWD, os.fsencode(place), flags)
        if before >= 0 and not overlay_lies_at(place):  # somebody has taken the other away, and means the mount below
            _detach(mount)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        if before >= 0:
            _detach(before)
    finally:
        for descriptor in (before, mount):
            if descriptor >= 0:
                os.close(descriptor)


def take_away(place: str, *, lazily: bool = True) -> bool:
    """All that lie over what is seen at `place`; whether there were any. Who has something open in one goes on with it;
    `lazily` False: raises OSError (EBUSY) then."""
    found = False
    while overlay_lies_at(place):
        number = unmounted(place, MNT_DETACH if lazily else 0, lambda mount: mount.is_our_overlay)
        if number:
            raise OSError(number, os.strerror(number), place)
        found = True
    return found


def show_below(place: str, other: str, device: str) -> None:
    """Show the mount of this device, which such a one covers at `place`, at the `other` place too, for everybody. In a
    process as for `put`. Raises OSError."""
    outside = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    own_namespace()
    take_away(place)
    mount = _call(_OPEN_TREE, _root_of(place, device), b"", _CLONE | os.O_CLOEXEC | _AT_EMPTY_PATH)
    enter(outside, CLONE_NEWNS)
    _call(_MOVE_MOUNT, mount, b"", _AT_FDCWD, os.fsencode(other), _EMPTY_PATH)


def attributes() -> str:
    """Whose attributes say where an object lies: root's alone, if we are root and not in a user namespace of
    somebody's, `trusted`; else `user`."""
    with open("/proc/self/uid_map") as file:
        is_root = os.geteuid() == 0 and file.read().split() == ["0", "0", "4294967295"]
    return "trusted" if is_root else "user"


def own_namespace() -> None:
    """This process has one of its own from here on: what is mounted elsewhere later is seen in it, and nothing that is
    done in it elsewhere. Raises OSError."""
    checked(libc.unshare(CLONE_NEWNS))
    checked(libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_SLAVE), None))


def enter(descriptor: int, kind: int) -> None:
    """Become one of a namespace. Raises OSError."""
    checked(libc.setns(descriptor, kind))


def _made_below(layers: Layers, place: str) -> int:
    """As `_made`, of a mount that is covered."""
    outside = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        own_namespace()
        take_away(place)
        mount = _made(layers, place)
        enter(outside, CLONE_NEWNS)
    finally:
        os.close(outside)
    return mount


def _made(layers: Layers, place: str) -> int:
    """A descriptor of it, over the mount that is seen at `place`."""
    with contextlib.ExitStack() as stack:
        root = _root_of(place, layers.device)
        stack.callback(os.close, root)
        names = f"/proc/self/fd/{root}"
        top, objects = _short(layers.top, stack), _short(layers.objects, stack)
        _show_socket(names, top)
        if os.geteuid() == 0:  # who is not owns that directory, and is alone in his namespace
            _show_acl(names, top)
        return _overlay(layers, (top, names), objects)


def _short(path: str, stack: contextlib.ExitStack) -> str:
    """A path of this directory that fsconfig(2) takes, until the stack is left."""
    if len(os.fsencode(path)) <= _TEXT_BYTES:
        return path
    descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    stack.callback(os.close, descriptor)
    return f"/proc/self/fd/{descriptor}"


def _root_of(place: str, device: str) -> int:
    """A descriptor of the root of the mount of this device, which is seen at `place`."""
    root = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    mount = numbered(number_of(root)) if device else None
    if device and (mount is None or mount.device != device):
        os.close(root)
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))  # it was unmounted
    return root


def _detach(mount: int) -> None:
    """Take away the mount that this descriptor leads to, whatever lies over it. Raises OSError."""
    checked(libc.umount2(b"/proc/self/fd/%d" % mount, MNT_DETACH))


def _show_socket(names: str, top: str) -> None:
    """Who asks for the daemon finds it all the same, though the root of the mount is not seen."""
    with contextlib.suppress(OSError):  # a file system without such attributes
        socket = os.getxattr(names, SOCKET_XATTR)
        with contextlib.suppress(OSError):
            if os.getxattr(top, SOCKET_XATTR) == socket:
                return
        os.setxattr(top, SOCKET_XATTR, socket)


def _show_acl(names: str, top: str) -> None:
    """Whom the root of the mount lets in beyond its mode bits, of which those of the group are a mask then, or keeps
    out. Raises OSError where that cannot be said."""
    try:
        acl = os.getxattr(names, _ACL)
    except OSError as error:
        if error.errno not in {errno.ENODATA, errno.EOPNOTSUPP}:
            raise
        with contextlib.suppress(OSError):  # a file system without any
            os.removexattr(top, _ACL)
    else:
        os.setxattr(top, _ACL, acl)


def _overlay(layers: Layers, names: tuple[str, ...], objects: str) -> int:
    """The uppermost of `names` first."""
    context = _call(_FSOPEN, b"overlay", _FSOPEN_CLOEXEC)
    try:
        is_ours = attributes() == "trusted"
        source = os.fsencode(layers.source)[:_TEXT_BYTES]
        options: list[tuple[bytes, bytes | None]] = [(b"source", source), (b"ro", None)]
        options += [(b"metacopy", b"on"), (b"redirect_dir", b"follow")] if is_ours else [(b"userxattr", None)]
        options += [(b"lowerdir+", os.fsencode(layer)) for layer in names]
        options += [(b"datadir+", os.fsencode(objects))]
        for name, value in options:
            _call(_FSCONFIG, context, _SET_FLAG if value is None else _SET_STRING, name, value, 0)
        _call(_FSCONFIG, context, _CREATE, None, None, 0)
        return _call(
            _FSMOUNT, context, _FSMOUNT_CLOEXEC, _RDONLY | _NOSUID | _NODEV | (_NOEXEC if layers.noexec else 0)
        )
    finally:
        os.close(context)


def _call(number: int, *arguments: int | bytes | None) -> int:
    """A system call. Raises OSError."""
    return checked(libc.syscall(ctypes.c_long(number), *(_argument(each) for each in arguments)))


def _argument(value: int | bytes | None) -> ctypes.c_long | ctypes.c_char_p:
    return ctypes.c_long(value) if isinstance(value, int) else ctypes.c_char_p(value)


def unmounted(mountpoint: str, flags: int, is_meant: Callable[[Mount], bool] | None = None) -> int:
    """Unmount what lies on top there: 0, or the errno of umount2(2); ESTALE: root finds another than is meant. None:
    whatever is there. Raises OSError as `reached`."""
    with contextlib.ExitStack() as stack:
        path = mountpoint
        if is_meant is not None and os.geteuid() == 0:  # others take away by fusermount3, which looks for itself
            path, number = stack.enter_context(reached(mountpoint))
            mount = numbered(number)
            if mount is None or not is_meant(mount):
                return errno.ESTALE
        return 0 if libc.umount2(os.fsencode(path), UMOUNT_NOFOLLOW | flags) == 0 else ctypes.get_errno()


@contextlib.contextmanager
def reached(mountpoint: str) -> Iterator[tuple[str, int]]:
    """(path, number as mountinfo has it) of what is mounted on top there. The path leads to it until the block ends.
    Touches no mount. Raises OSError: NotADirectoryError where a link is on the way, PermissionError where another plain
    user serves something on it."""
    above, name = os.path.split(mountpoint)
    directory = os.open("/", _STEP | os.O_DIRECTORY)
    try:
        number = number_of(directory)
        for part in filter(None, above.split("/")):
            below = os.open(part, _STEP | os.O_DIRECTORY, dir_fd=directory)
            os.close(directory)
            directory, before, number = below, number, number_of(below)
            served_by = None if number == before else _server_of(number)
            if served_by not in {None, 0, os.geteuid()}:
                raise PermissionError(errno.EPERM, f"lies in a file system that user {served_by} serves", part)
        end = os.open(name, _STEP, dir_fd=directory)
        try:
            number = number_of(end)
        finally:
            os.close(end)
        yield f"/proc/self/fd/{directory}/{name}", number
    finally:
        os.close(directory)


def _server_of(number: int) -> int | None:
    """Who has mounted it, where a process serves it; None: the kernel does, or it is gone."""
    mount = numbered(number)
    return None if mount is None else mount.owner_uid
