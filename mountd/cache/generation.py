"""Where makers of overlays and the daemon meet: the directory `overlays` in the cache directory.

    number              decimal text, another one whenever new overlays are to be made; put in place by rename
    needed              the same of the newest without which names lead astray: made however many are alive
    connection          the kernel's, of the mount
    top                 an empty directory that stands for the root of the mount
    maker-PID-RANDOM    of whoever makes overlays (a *maker*), 16 bytes: the numbers of the oldest of its generations
                        that has not gone, and of the one shown

A maker's file is locked as long as it lives (mountd/supervisor/generations.py). One without a lock is a killed maker's,
of whose generations nobody tells when they go. What says nothing yet counts as the oldest that there can be.

Makers read all this by path and without asking the daemon, which may hang or have died: it outlives daemons. The cache
directory is reached by its descriptor alone, and no link is followed: who may rename it gains nothing. All that is not
`async` or a path waits for the disk: in threads, and nobody waits for these longer than a moment.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import struct
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar, cast

import trio

from hfs.mountd.cache.objects.context import Health, Threads
from hfs.mountd.cache.objects.disk import Disk
from hfs.mountd.core.attributes import Attributes
from hfs.mountd.core.cache_directory import OVERLAYS
from hfs.mountd.core.flight import SingleFlight

_NAME = re.compile(r"maker-[0-9]{1,10}-[0-9a-f]{8}")
_NUMBERS = struct.Struct("<QQ")
_SAFELY = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

_MOST_NAMES = 4096
"""Looked at: a node has some dozens of commands at a time."""


class Makers(NamedTuple):
    """All of them together."""

    files: int = 0
    oldest: int | None = None
    """Of the generations that may be in use; None: there is nobody."""
    shown: int | None = None
    """All that live show this one, or a later one; None: nobody lives."""
    newest: int = 0
    """That any of them names."""


UNKNOWN = Makers(1, 0)
"""Somebody may have anything open."""


def read_makers(directory: int) -> Makers:
    """What their files in this directory say. Raises OSError."""
    files = newest = 0
    oldest: int | None = None
    shown: int | None = None
    for maker in _told(directory):
        if maker is None:
            return UNKNOWN
        files += 1
        oldest = maker.oldest if oldest is None else min(oldest, maker.oldest)
        newest = max(newest, maker.shown)
        if maker.lives:
            shown = maker.shown if shown is None else min(shown, maker.shown)
    return Makers(files, oldest, shown, newest)


def read_holders(directory: int, number: int) -> list[int]:
    """The processes of those that have a generation older than this one in use, or had. Raises OSError."""
    return sorted({maker.pid for maker in _told(directory) if maker is not None and maker.oldest < number})


class _MakerState(NamedTuple):
    """What one of them says."""

    pid: int
    oldest: int
    shown: int
    lives: bool


def _told(directory: int) -> Iterator[_MakerState | None]:
    """None at last, as of `_names`."""
    for name in _names(directory):
        if name is None:
            yield None
            return
        with _opened(directory, name) as fd:
            if fd is None:
                continue
            data = os.pread(fd, _NUMBERS.size, 0)
            oldest, shown = _NUMBERS.unpack(data) if len(data) == _NUMBERS.size else (0, 0)
            lives = not _lock(fd, fcntl.LOCK_SH)
        yield _MakerState(int(name.split("-")[1]), oldest, shown, lives)


def remove_left(directory: int) -> None:
    """Nothing of what killed makers have made is in use any more. Raises OSError."""
    for name in _names(directory):
        if name is None:
            return
        with _opened(directory, name) as fd:
            if fd is not None and _lock(fd, fcntl.LOCK_EX):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=directory)


def _names(directory: int) -> Iterator[str | None]:
    """Those of makers; None at last: there are more than anybody looks at."""
    with os.scandir(directory) as entries:
        for entry in islice(entries, _MOST_NAMES):
            if _NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                yield entry.name
        if next(entries, None) is not None:
            yield None


@contextlib.contextmanager
def _opened(directory: int, name: str) -> Iterator[int | None]:
    """None: it has gone."""
    try:
        fd = os.open(name, os.O_RDONLY | _SAFELY, dir_fd=directory)
    except FileNotFoundError:
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


def _lock(fd: int, how: int) -> bool:
    """Whether nobody else has it; ours goes with the descriptor."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


Value = TypeVar("Value")

_NUMBER, _NEEDED, _CONNECTION, _NEXT, _TOP = "number", "needed", "connection", "number-next", "top"
_CONNECTIONS = "/sys/fs/fuse/connections"

_LARGEST = 1 << 62

_AT_MOST_S = 1.0
_MOST_LATE = 8
"""Calls that wait for a disk that hangs: of more none is begun."""


class OverlaysFound(NamedTuple):
    """What an earlier daemon has left."""

    number: int
    """No maker knows a larger one."""
    makers: Makers


class Generation:
    """Of one cache. Event loop only, but for what is said above."""

    def __init__(self, disk: Disk, threads: Threads, health: Health, nursery: trio.Nursery) -> None:
        self._disk = disk
        self._threads = threads
        self._health = health
        self._calls: SingleFlight[object, object] = SingleFlight(nursery)
        self._one_at_a_time = trio.Lock()

    @property
    def objects(self) -> str:
        """Where the objects lie."""
        return self._disk.objects_dir

    @property
    def makers(self) -> str:
        """The directory in which makers say what they have made."""
        return os.path.join(os.path.dirname(self.objects), OVERLAYS)

    @property
    def number(self) -> str:
        """The file that has the number."""
        return os.path.join(self.makers, _NUMBER)

    @property
    def top(self) -> str:
        """The directory that looks like the root of the mount, as far as its maker may say."""
        return os.path.join(self.makers, _TOP)

    async def found(self) -> OverlaysFound | None:
        """None: nobody has ever made any, as far as can be told."""
        unknown = OverlaysFound(0, UNKNOWN)
        return await self._told(self._find, None, unknown, unknown) if self._disk.directory >= 0 else None

    async def look(self) -> Makers | None:
        """Who makes them now; None: the disk does not say."""
        # Where somebody has removed the directory it is made again when the number is moved.
        return await self._told(partial(self._inside, read_makers), UNKNOWN, UNKNOWN, None)

    async def holders(self, number: int) -> list[int]:
        """Processes that have made generations older than this one, which may be in use; as far as is known."""
        holders: Callable[[int], list[int]] = partial(read_holders, number=number)
        return await self._told(partial(self._inside, holders), [], [], [])

    async def begin(self, root: Attributes, device: str = "", *, is_new: bool) -> OverlaysFound:
        """Have the directory made. `root`, `device`: of the mount, empty: not known; `is_new`: nobody has served it
        before. Raises OSError."""
        return await self._in_time(partial(self._begun, root, device, is_new))

    async def clear(self) -> None:
        """Nobody has served the mount before: what killed makers have made is not in use any more."""
        await self._told(partial(self._inside, remove_left), None, None, None)

    async def move(self, number: int, root: Attributes | None = None, *, is_needed: bool = True) -> bool:
        """`root`: as it is now; `is_needed`: not only worth it. Where the disk refuses, overlays stay as they are, and
        more is read through us. False: it takes long, and may not have begun."""
        return await self._told(partial(self._moved, number, root, is_needed), True, True, False)

    async def _told(self, call: Callable[[], Value], absent: Value, failed: Value, late: Value) -> Value:
        """What the disk says; what to go by where the directory is not there, the disk fails, and where it is late."""
        try:
            return await self._in_time(call)
        except FileNotFoundError:
            return absent
        except TimeoutError:
            return late
        except OSError as error:
            self._health.failed(error, "the directory of overlays")
            return failed

    async def _in_time(self, call: Callable[[], Value]) -> Value:
        """In a thread. Raises OSError: TimeoutError where the disk takes long; what was begun goes on then."""
        if len(self._calls) < _MOST_LATE:
            with trio.move_on_after(_AT_MOST_S):
                return cast(Value, await self._calls.run(object(), partial(self._alone, call)))
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    async def _alone(self, call: Callable[[], object]) -> object:
        async with self._one_at_a_time:
            return await self._threads.sweep(call)

    def _find(self) -> OverlaysFound:
        with self._opened() as directory:
            if _has_gone(_read(directory, _CONNECTION)):  # and with it all that lay over it
                remove_left(directory)
            return _found(directory)

    def _inside(self, call: Callable[[int], Value]) -> Value:
        with self._opened() as directory:
            return call(directory)

    def _begun(self, root: Attributes, device: str, is_new: bool) -> OverlaysFound:
        with self._opened(make=True) as directory:
            _make_top(directory, root)
            connection = _connection(device)
            if is_new:
                remove_left(directory)
            elif _read(directory, _CONNECTION) != connection.encode():
                connection = ""  # it was made anew, and something may lie over the one before
            _write(directory, _CONNECTION, connection)
            found = _found(directory)
            _write(directory, _NUMBER, str(found.number))
            return found

    def _moved(self, number: int, root: Attributes | None, is_needed: bool) -> bool:
        with self._opened(make=True) as directory:
            if root is not None:
                _make_top(directory, root)
            if is_needed:
                _write(directory, _NEEDED, str(number))
            _write(directory, _NUMBER, str(number))
            return True

    @contextlib.contextmanager
    def _opened(self, *, make: bool = False) -> Iterator[int]:
        above = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._disk.directory)
        try:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(OVERLAYS, 0o700, dir_fd=above)
            directory = os.open(OVERLAYS, os.O_RDONLY | os.O_DIRECTORY | _SAFELY, dir_fd=above)
        finally:
            os.close(above)
        try:
            yield directory
        finally:
            os.close(directory)


def _found(directory: int) -> OverlaysFound:
    makers, number = read_makers(directory), 1
    with contextlib.suppress(ValueError):
        number = max(1, int(_read(directory, _NUMBER)))
    return OverlaysFound(min(max(number, makers.newest), _LARGEST), makers)


def _connection(device: str) -> str:
    """What is no other mount's: numbers of devices are used again at once. Empty: the kernel does not say."""
    minor = device.rpartition(":")[2]
    try:
        return f"{minor} {os.stat(f'{_CONNECTIONS}/{int(minor)}').st_ino}"
    except (OSError, ValueError):
        return ""


def _has_gone(connection: bytes) -> bool:
    """Whether the kernel has this mount nowhere any more, in whatever namespace, not even below an overlay. False where
    it does not say."""
    text = str(connection, "ascii", "replace")
    return bool(text) and os.path.ismount(_CONNECTIONS) and _connection(text.partition(" ")[0]) != text


def _read(directory: int, name: str) -> bytes:
    """Empty: it is not there."""
    try:
        with open(os.open(name, os.O_RDONLY | _SAFELY, dir_fd=directory), "rb") as file:
            return file.read(40)
    except FileNotFoundError:
        return b""


def _make_top(directory: int, root: Attributes) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(_TOP, 0o700, dir_fd=directory)
    fd = os.open(_TOP, os.O_RDONLY | os.O_DIRECTORY | _SAFELY, dir_fd=directory)
    try:
        if os.geteuid() == 0:
            os.fchown(fd, root.uid, root.gid)
        os.fchmod(fd, root.mode & 0o7777)
        os.utime(fd, ns=(root.atime_ns, root.mtime_ns))
    finally:
        os.close(fd)


def _write(directory: int, name: str, text: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_NEXT, dir_fd=directory)
    fd = os.open(_NEXT, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFELY, 0o600, dir_fd=directory)
    with open(fd, "w") as file:
        file.write(text)
    os.rename(_NEXT, name, src_dir_fd=directory, dst_dir_fd=directory)
