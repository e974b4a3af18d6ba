"""An overlay over a mount (overlayfs with a layer of data alone): what is staged is opened in the cache by the kernel.

The mount is the layer of names, and says of each staged file where its object lies below the layer of data, the objects
of the cache (mountd/native/plane/overlay.c, mountd/fuse/xattrs.py). The way of a file is fixed when its name is first
looked up, so overlays come in *generations*: a new one is put beneath the one that is there, which is taken away then;
whoever has something open in it goes on (Documentation/filesystems/overlayfs.rst; move_mount(2), Linux 6.5).

All here is done within the mount namespace that it is for.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import time
from typing import NamedTuple

_FSOPEN, _FSCONFIG, _FSMOUNT, _MOVE_MOUNT = 430, 431, 432, 429  # the same on every architecture
_SET_FLAG, _SET_STRING, _CREATE = 0, 1, 6  # <linux/mount.h>
_FSOPEN_CLOEXEC = _FSMOUNT_CLOEXEC = 1
_RDONLY, _NOSUID, _NODEV, _NOEXEC = 1, 2, 4, 8
_EMPTY_PATH, _BENEATH = 0x4, 0x200
_AT_FDCWD = -100
_MNT_DETACH, _NOFOLLOW = 2, 8
_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000  # <sched.h>

_AGAIN_S = 5.0
"""After a renewal that has failed."""

_libc = ctypes.CDLL(None, use_errno=True)


class Layers(NamedTuple):
    """What an overlay is made of."""

    names: str
    """Where the mount is seen, in the namespace of the overlay."""
    objects: str
    source: str
    """As the mount is called in mountinfo: `hfs#...`."""
    top: str
    """An empty directory that stands for the root of the mount: of that the kernel keeps no ACL, since it is older than
    what was agreed on about them, and would ask the daemon at every look-up of whoever does not own it."""
    number: str
    """The file that says when a new generation is to be made (mountd/cache/generation.py)."""
    noexec: bool = False

    def number_now(self) -> bytes:
        """Never raises."""
        try:
            with open(self.number, "rb") as file:
                return file.read(20)
        except OSError:
            return b""


def put(layers: Layers, place: str) -> None:
    """The first generation, over what is seen at `place`. Raises OSError."""
    _move(_made(layers), place, 0)


def renew(layers: Layers, place: str) -> None:
    """Another generation in the place of the one that is there. Raises OSError, and then that one stays."""
    _move(_made(layers), place, _BENEATH)
    _checked(_libc.umount2(os.fsencode(place), _MNT_DETACH | _NOFOLLOW))


def _made(layers: Layers) -> int:
    """A descriptor of it."""
    context = _call(_FSOPEN, b"overlay", _FSOPEN_CLOEXEC)
    try:
        is_ours = os.geteuid() == 0 and _maps_all_users()
        options: list[tuple[bytes, bytes | None]] = [(b"source", os.fsencode(layers.source)), (b"ro", None)]
        options += [(b"metacopy", b"on"), (b"redirect_dir", b"follow")] if is_ours else [(b"userxattr", None)]
        options += [(b"lowerdir+", os.fsencode(layer)) for layer in (layers.top, layers.names)]
        options += [(b"datadir+", os.fsencode(layers.objects))]
        for name, value in options:
            _call(_FSCONFIG, context, _SET_FLAG if value is None else _SET_STRING, name, value, 0)
        _call(_FSCONFIG, context, _CREATE, None, None, 0)
        return _call(
            _FSMOUNT, context, _FSMOUNT_CLOEXEC, _RDONLY | _NOSUID | _NODEV | (_NOEXEC if layers.noexec else 0)
        )
    finally:
        os.close(context)


def _maps_all_users() -> bool:
    """We are root, and not in a user namespace of somebody's: attributes `trusted.` may be read."""
    with open("/proc/self/uid_map") as file:
        return file.read().split() == ["0", "0", "4294967295"]


def _move(mount: int, place: str, flags: int) -> None:
    try:
        _call(_MOVE_MOUNT, mount, b"", _AT_FDCWD, os.fsencode(place), _EMPTY_PATH | flags)
    finally:
        os.close(mount)


def _call(number: int, *arguments: int | bytes | None) -> int:
    """A system call. Raises OSError."""
    return _checked(_libc.syscall(ctypes.c_long(number), *(_argument(each) for each in arguments)))


def _argument(value: int | bytes | None) -> ctypes.c_long | ctypes.c_char_p:
    return ctypes.c_long(value) if isinstance(value, int) else ctypes.c_char_p(value)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


class Renewals:
    """Of the generations that a command sees, by the process that waits for it. Never waits, never raises."""

    def __init__(self, layers: Layers, place: str, shown: bytes, pid: int) -> None:
        """`shown`: the number from before the first generation was put. `pid`: of the command, which lives."""
        self._layers, self._place = layers, place
        self._shown = self._asked = shown
        self._again_s = 0.0
        self._child = 0
        self._is_told = False
        self._namespaces: list[tuple[int, int]] = []
        """Descriptors, and what they are, in the order in which they are entered."""
        kinds = [("mnt", _CLONE_NEWNS)] if os.geteuid() == 0 else [("user", _CLONE_NEWUSER), ("mnt", _CLONE_NEWNS)]
        with contextlib.suppress(OSError):  # it has ended
            for name, kind in kinds:
                self._namespaces.append((os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC), kind))

    def look(self) -> str | None:
        """Make a new generation if there is to be one. A line where that fails, the first time."""
        if self._child:
            pid, status = os.waitpid(self._child, os.WNOHANG)
            if not pid:
                return None  # the mount does not answer: what is shown goes on meanwhile
            self._child = 0
            code = os.waitstatus_to_exitcode(status)
            if not code:
                self._shown = self._asked
            else:
                self._again_s = time.monotonic() + _AGAIN_S
                if not self._is_told:
                    self._is_told = True
                    why = os.strerror(code) if code > 0 else f"signal {-code}"
                    return f"{self._place}: what is staged from now on is read through the daemon ({why})"
        number = self._layers.number_now()
        if number != self._shown and self._namespaces and time.monotonic() >= self._again_s:
            self._asked = number
            self._child = os.fork()
            if not self._child:
                os._exit(self._renewed())
        return None

    def close(self) -> None:
        """Let go of the namespaces; the command has ended."""
        if self._child:
            os.kill(self._child, signal.SIGKILL)  # which a mount that does not answer may hold up
            os.waitpid(self._child, os.WNOHANG)
            self._child = 0
        for descriptor, _ in self._namespaces:
            os.close(descriptor)
        self._namespaces = []

    def _renewed(self) -> int:
        """In a process of its own, which becomes one of the namespaces; its exit code."""
        try:
            self._let_go_of_all()
            for descriptor, kind in self._namespaces:
                _checked(_libc.setns(descriptor, kind))
            renew(self._layers, self._place)
        except OSError as error:
            return error.errno or errno.EIO
        except BaseException:  # noqa: BLE001 - whatever it is, this process must not go on as its parent
            return errno.EIO
        return 0

    def _let_go_of_all(self) -> None:
        """In that process: who waits for its parent's end must not wait for it, which the mount may hold up."""
        kept = {descriptor for descriptor, _ in self._namespaces}
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for name in os.listdir("/proc/self/fd"):
            descriptor = int(name)
            if descriptor < 3:
                os.dup2(nothing, descriptor)
            elif descriptor not in kept and descriptor != nothing:
                with contextlib.suppress(OSError):  # of the listing itself
                    os.close(descriptor)
