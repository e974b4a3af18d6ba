"""The generations of an overlay at one place: when a new one is made, which have gone, and what the daemon is told.

The daemon moves a number when there is to be a new one (mountd/cache/generation.py). A child process makes it, which
enters the namespace that it is for; a mount that does not answer holds up that child alone. Each is called by the
number that was read before it was made. It has gone with the last that has something open, mapped or its working
directory in it: the kernel says so (inotify), where we may read the root of the mount; else it counts until the end.

A maker tells the daemon by a file of its own (mountd/cache/generation.py), which is locked for as long as it lives. The
daemon lets nothing go that an older generation may have open. A file that is left without a lock was a killed maker's:
what it has made may be in use.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import struct
import time
from collections.abc import Sequence
from typing import NamedTuple

from hfs.mountd.supervisor import overlay
from hfs.mountd.supervisor.errand import Errand
from hfs.mountd.supervisor.overlay import Layers, checked, libc

MOVED_TO, IGNORED = 0x80, 0x8000  # <sys/inotify.h>
_NEVER = 0x400
"""IN_DELETE_SELF of a root: what ends a watch is told whatever was asked for."""
_EVENT = struct.Struct("iIII")  # struct inotify_event
_BUFFER_BYTES = 65536


class InotifyEvent(NamedTuple):
    """One event."""

    watch: int
    mask: int


class Inotify:
    """What the kernel says of directories and file systems (inotify(7)): a name was moved in, one has gone with its
    last user. A watch keeps nothing alive. `descriptor` is readable when there is something to be heard."""

    def __init__(self) -> None:
        """Raises OSError."""
        self.descriptor = checked(libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))

    def watch_end(self, path: str) -> int:
        """A number, which `heard` has with IGNORED once the file system with this root has gone. -1: we may not read
        that, and nobody will tell."""
        try:
            return checked(libc.inotify_add_watch(self.descriptor, os.fsencode(path), ctypes.c_uint32(_NEVER)))
        except OSError:
            return -1

    def watch_names(self, directory: str) -> int:
        """A number, which `heard` has with MOVED_TO for each name that is moved in. Raises OSError."""
        return checked(libc.inotify_add_watch(self.descriptor, os.fsencode(directory), ctypes.c_uint32(MOVED_TO)))

    def heard(self) -> list[InotifyEvent]:
        """What there is; never waits."""
        try:
            data = os.read(self.descriptor, _BUFFER_BYTES)
        except BlockingIOError:
            return []
        found, at = [], 0
        while at < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size + length
            found.append(InotifyEvent(watch, mask))
        return found

    def close(self) -> None:
        """All watches end."""
        with contextlib.suppress(OSError):  # it was closed before
            os.close(self.descriptor)
        self.descriptor = -1


NUMBERS = struct.Struct("<QQ")
_SAFELY = os.O_CLOEXEC | os.O_NOFOLLOW
MOST = 8
"""Alive at once: at the bound none is made until one has gone, but where names lead astray without it."""
MOST_NEEDED = 64
"""The same, and then none is made at all: what has changed is ESTALE to whoever comes by the old ones."""
_AGAIN_S = 5.0
"""After a renewal that has failed."""
_END_S = 1.0
"""At the end: for a child that works, and until the kernel has given up what nobody uses."""


class MadeGeneration(NamedTuple):
    """One that was put in place, or may have been."""

    number: int
    watch: int
    """Of its end; -1: nobody will tell."""
    mount: int = 0
    """As mountinfo has it, as long as it is seen; 0: not known here."""


class MakerFile:
    """In the directory `overlays` of the cache, of this process."""

    def __init__(self, directory: str) -> None:
        """Raises OSError."""
        self._directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | _SAFELY)
        self._told: tuple[int, int] | None = None
        try:
            while True:
                self._name = f"maker-{os.getpid()}-{os.urandom(4).hex()}"
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _SAFELY
                self._fd = os.open(self._name, flags, 0o600, dir_fd=self._directory)
                fcntl.flock(self._fd, fcntl.LOCK_EX)
                if os.fstat(self._fd).st_nlink:
                    return
                os.close(self._fd)  # a daemon that has just begun took it for one that was left
        except BaseException:
            os.close(self._directory)
            raise

    def tell(self, oldest: int, shown: int) -> None:
        """Raises OSError where the disk has no room, the first time; later what was told before stays."""
        if (oldest, shown) == self._told:
            return
        try:
            os.pwrite(self._fd, NUMBERS.pack(oldest, shown), 0)
        except OSError:
            if self._told is None:
                raise
            return  # it has the room that it needs: the disk is broken
        self._told = oldest, shown

    def close(self, *, removed: bool) -> None:
        """`removed`: nothing is left that was made. Else it stays, without a lock."""
        if removed:
            with contextlib.suppress(OSError):
                os.unlink(self._name, dir_fd=self._directory)
        os.close(self._fd)
        os.close(self._directory)


class Generations:
    """Made by this process (the *maker*). `look` whenever `descriptor` is readable or a child has ended, and now and
    then; it never waits, and never raises. Then `end`."""

    def __init__(self, layers: Layers, place: str) -> None:
        """Nothing is made yet. Raises OSError."""
        self.place = place
        self._layers = layers
        self._alive: list[MadeGeneration] = []
        self._last: MadeGeneration | None = None
        self._gone: set[int] = set()
        """Watches of those that had gone before they were known here."""
        self._making: Errand | None = None
        self._number = 0
        """Of the one that is being made."""
        self._again_s = 0.0
        self.why = ""
        """The last that has failed did so."""
        self._namespaces: list[tuple[int, int]] = []
        """Where they lie, as of `began`; none: ours."""
        self._inotify = Inotify()
        self._file: MakerFile | None = None
        try:
            self._inotify.watch_names(os.path.dirname(layers.number))
            self._file = MakerFile(layers.makers)
            self._shown = layers.number_now()
            self._tell()
        except BaseException:
            self._close(removed=True)
            raise

    @property
    def descriptor(self) -> int:
        """Readable when the number was moved, or one has gone."""
        return self._inotify.descriptor

    @property
    def is_made(self) -> bool:
        """There was one."""
        return self._last is not None

    @property
    def was_taken_away(self) -> bool:
        """The one that was put in place last has gone, and none is made in its place: that was somebody else."""
        return self._last is not None and self._making is None and self._last not in self._alive

    def put_first(self) -> int:
        """In the process that is to see it, in namespaces of its own: what `began` is to be told here. Raises
        OSError."""
        watches = [-1]
        overlay.put(self._layers, self.place, lambda root, _: watches.append(self._inotify.watch_end(root)))
        return watches[-1]

    def began(self, watch: int, namespaces: Sequence[tuple[int, int]]) -> None:
        """The first is in place there: descriptors, which are ours from here on, and what they are, in the order in
        which they are entered."""
        self._last = self._add(watch, self._shown)
        self._namespaces = list(namespaces)

    def look(self) -> str | None:
        """Make a new one if there is to be one. A line where that fails, the first time."""
        said = self._look_after_making()
        self._hear()
        number = self._layers.number_now()
        is_wanted = number not in {0, self._shown} or self._last is None
        may_make = self._making is None and time.monotonic() >= self._again_s
        most = MOST if len(self._alive) < MOST or self._layers.needed_now() <= self._shown else MOST_NEEDED
        if is_wanted and may_make and len(self._alive) < most:
            self._number = number
            try:
                self._making = Errand(self._put, self._kept)
            except OSError as error:  # no process to be had
                said = said or self._failed(error.errno or errno.EIO)
        self._tell()
        return said

    @property
    def replaced(self) -> list[int]:
        """Mounts that were, and have not gone: somebody has something open in them, or another namespace a copy."""
        return [each.mount for each in self._alive if each is not self._last]

    def end(self, *, lazily: bool = True, sure: bool = False) -> bool:
        """Take away what there is, and wait shortly until it has gone. False, unless it is to go `lazily`: it is in
        use, or one that it has replaced may be, and it goes on. `sure`: those are not."""
        if self._making is not None:
            self._making.wait(_END_S)
            self._look_after_making()
        if self._making is not None:  # the mount does not answer: it must not come when the others have gone
            self._making.close()
            self._making = None
            self._add(-1, self._number)
        self._hear()
        if not lazily and not sure and self.replaced:
            return False
        with contextlib.suppress(OSError):  # no process to be had: it goes with its namespace, or is found left
            taking = Errand(lambda _: self._take_away(lazily=lazily), self._kept)
            code = taking.wait(_END_S)
            taking.close()
            if code == errno.EBUSY:
                return False
        self._let_go()
        self._wait_gone()
        self._tell()
        self._close(removed=not self._alive)
        return True

    def _look_after_making(self) -> str | None:
        making = self._making
        if making is None or (code := making.wait(0.0)) is None:
            return None  # the mount does not answer: what is shown goes on meanwhile
        self._making = None
        made = None
        if making.told:  # it may be in place, whatever came then
            made = self._add(making.told[0], self._number, making.told[-1])
        making.close()
        if code:
            return self._failed(code)
        self._shown, self._last = self._number, made
        return None

    def _failed(self, code: int) -> str | None:
        self._again_s = time.monotonic() + _AGAIN_S
        was_told, self.why = bool(self.why), os.strerror(code)
        if was_told:
            return None
        return f"{self.place}: what is staged from now on is read through the daemon ({self.why})"

    def _add(self, watch: int, number: int, mount: int = 0) -> MadeGeneration:
        made = MadeGeneration(number, watch, mount)
        self._alive.append(made)
        return made

    def _hear(self) -> None:
        for heard in self._inotify.heard():
            if heard.mask & IGNORED:
                self._gone.add(heard.watch)
        self._alive = [each for each in self._alive if each.watch not in self._gone]

    def _wait_gone(self) -> None:
        until_s = time.monotonic() + _END_S
        waiter = select.poll()
        waiter.register(self._inotify.descriptor, select.POLLIN)
        self._hear()
        while any(each.watch >= 0 for each in self._alive):
            if not waiter.poll(max(0.0, until_s - time.monotonic()) * 1000):
                return
            self._hear()

    def _tell(self) -> None:
        """Raises OSError the first time, as the file does."""
        if self._file is not None:
            numbers = [each.number for each in self._alive]
            numbers += [] if self._making is None else [self._number]
            self._file.tell(min(numbers, default=self._shown), self._shown)

    @property
    def _kept(self) -> list[int]:
        """What a child needs of what we have open."""
        return [self._inotify.descriptor, *(descriptor for descriptor, _ in self._namespaces)]

    def _put(self, errand: Errand) -> None:
        """In a child. Raises OSError."""
        for descriptor, kind in self._namespaces:
            overlay.enter(descriptor, kind)

        def made(root: str, number: int) -> None:
            errand.tell(self._inotify.watch_end(root))
            errand.tell(number)

        overlay.put(self._layers, self.place, made)

    def _take_away(self, *, lazily: bool) -> None:
        """In a child. Raises OSError."""
        for descriptor, kind in self._namespaces:
            overlay.enter(descriptor, kind)
        overlay.take_away(self.place, lazily=lazily)

    def _let_go(self) -> None:
        for descriptor, _ in self._namespaces:
            os.close(descriptor)
        self._namespaces = []

    def _close(self, *, removed: bool) -> None:
        self._inotify.close()
        if self._file is not None:
            self._file.close(removed=removed)
            self._file = None
