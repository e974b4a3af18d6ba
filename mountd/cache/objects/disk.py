"""The objects below the cache directory, by number: opened, made, removed, kept open, and the disk that they lie on.

    DIR/objects/xx/N    one staged file for each object number N (xx: its low byte in hexadecimal), mode 0600

All that can fail on the cache disk goes through here and through its `io`. What lies under the name of an object and is
no file is none: it counts as gone, and is moved out of the way when its name is needed. Every method of `Disk` blocks
and may raise OSError; they are called in threads. Tests replace that class by one that fails or dies at the Nth call.
Object numbers are never used twice, so a name that is gone stays gone.

Descriptors are kept open, the least recently used closed first. One that a thread reads with is never closed under it:
its number could be given to another file, and the thread would read that file's bytes. So users are counted, and a
descriptor that is dropped while in use is closed by its last user.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import random
import shutil
import stat
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from hfs.mountd.cache.index import Stamp
from hfs.mountd.cache.objects.io import ObjectIO
from hfs.mountd.core.cache_directory import CacheDirectory
from hfs.mountd.core.limits import OpenFiles
from hfs.mountd.native.statx import CACHED, How, open_now
from hfs.policies.cache.admission import BLOCK_BYTES


class Descriptor:
    """One open descriptor and how many use it."""

    __slots__ = ("dropped", "fd", "users")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.users = 0
        self.dropped = False


class Descriptors:
    """By object number."""

    def __init__(self, close: Callable[[int], None], limit: int) -> None:
        self._close = close
        self._limit = limit
        self._held: OrderedDict[int, Descriptor] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def get_nowait(self, object_id: int) -> int | None:
        """The descriptor, for use before the next await; None if the object is not open."""
        held = self._held.get(object_id)
        if held is None:
            return None
        self._held.move_to_end(object_id)
        return held.fd

    def acquire(self, object_id: int) -> Descriptor | None:
        """The descriptor for use in a thread; give it back with `release`."""
        held = self._held.get(object_id)
        if held is not None:
            self._held.move_to_end(object_id)
            held.users += 1
        return held

    def release(self, descriptor: Descriptor) -> None:
        """Undo `acquire`."""
        descriptor.users -= 1
        if descriptor.dropped and not descriptor.users:
            self._close(descriptor.fd)

    def put(self, object_id: int, fd: int) -> None:
        """Keep a descriptor that a thread has opened; closed at once if the object is open already."""
        if object_id in self._held:
            self._close(fd)
            return
        self._held[object_id] = Descriptor(fd)
        while len(self._held) > self._limit:
            _, oldest = self._held.popitem(last=False)
            self._drop(oldest)

    def discard(self, object_id: int) -> int | None:
        """Forget an object that is about to be removed. Returns the descriptor that the caller must close, in a thread
        (closing the last one of a removed file frees its blocks); None if there is none or a reader will close it.
        """
        held = self._held.pop(object_id, None)
        if held is None:
            return None
        if held.users:
            held.dropped = True
            return None
        return held.fd

    def drop(self, object_id: int) -> None:
        """Close it: by its name the object may be another one now. It is opened again for the next read."""
        fd = self.discard(object_id)
        if fd is not None:
            self._close(fd)

    def let_go(self) -> None:
        """Drop half of them, those that were not used for longest."""
        for _ in range(len(self._held) - len(self._held) // 2):
            self._drop(self._held.popitem(last=False)[1])

    def close(self) -> None:
        """Drop all."""
        while self._held:
            self._drop(self._held.popitem()[1])

    def _drop(self, held: Descriptor) -> None:
        held.dropped = True
        if not held.users:
            self._close(held.fd)


_OBJECTS = "objects"
_ASIDE = "objects.broken-"
_NOT_OURS = ".not-ours"
_SAFELY = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""Of a pipe that somebody has put there the open does not wait for the other end."""
_PLENTY = 1 << 16
"""Open files, for whoever says nothing about it."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | _SAFELY

_FOLDERS = 256
_OF_A_FOLDER = 4
"""So many are taken of each, where some are taken by chance."""

_MEMORY_MAGICS = {0x01021994, 0x858458F6}
"""f_type of tmpfs and ramfs (statfs(2))."""

_OVERLAY_MAGIC = 0x794C7630

_libc = ctypes.CDLL(None, use_errno=True)
_OBJECT = How(os.O_RDONLY | _SAFELY, CACHED)


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """The disk below the cache, in bytes; `free_bytes` is what an ordinary user may still take."""

    total_bytes: int
    free_bytes: int


class Disk:
    """The objects of one cache directory. Stateless but for a descriptor of the directory and what was found out."""

    def __init__(self, cache_dir: str, open_files: OpenFiles | None = None) -> None:
        self.objects_dir = os.path.join(cache_dir, _OBJECTS)
        """For people; nothing is opened by it."""
        self.open_files = open_files or OpenFiles(_PLENTY)
        self.io = ObjectIO()
        """What is done with open objects."""
        self.direct = True
        """Whether the file system takes O_DIRECT; set to False by the first refusal."""
        self._cache: CacheDirectory | None = None
        self.directory = -1
        self._opens_cached = True

    def open(self, cache: CacheDirectory) -> None:
        """Have the objects in this directory, which stays open as long. Raises OSError, ConfigError."""
        self._cache = cache
        self.directory = cache.open_directory(_OBJECTS)

    def close(self) -> None:
        """Give the descriptor back. May be called twice."""
        if self.directory >= 0:
            os.close(self.directory)
            self.directory = -1

    def path(self, number: int) -> str:
        """Where object `number` lies, for people."""
        return f"{self.objects_dir}/{object_name(number)}"

    def open_write(self, number: int, *, create: bool, direct: bool) -> int:
        """A descriptor for writing: of a new object, or of one that exists; FileNotFoundError if it does not."""
        new = os.O_CREAT | os.O_EXCL if create else 0
        flags = os.O_RDWR | _SAFELY | new | (os.O_DIRECT if direct else 0)
        if not create:
            return self._open_object(object_name(number), flags)
        return self.open_files.patiently(lambda: self._create(number, flags))

    def _create(self, number: int, flags: int) -> int:
        name = object_name(number)
        try:
            return os.open(name, flags, 0o600, dir_fd=self.directory)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                os.mkdir(os.path.dirname(name), 0o700, dir_fd=self.directory)
        except FileExistsError:
            self.unlink(number)  # the remains of a write that failed, or what somebody else has put there
        return os.open(name, flags, 0o600, dir_fd=self.directory)

    def open_read(self, number: int, *, direct: bool = False) -> int:
        """A descriptor for reading. FileNotFoundError when the object is gone."""
        return self._open_object(object_name(number), os.O_RDONLY | _SAFELY | (os.O_DIRECT if direct else 0))

    def _open_object(self, name: str, flags: int) -> int:
        try:
            fd = self.open_files.patiently(lambda: os.open(name, flags, dir_fd=self.directory))
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV):
                raise _not_ours(name) from None
            raise
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise _not_ours(name)
        return fd

    def open_cached(self, number: int) -> int | None:
        """Open an object to read if the kernel has its name in memory (openat2(2), Linux 5.12). Else None, also when
        the object is gone.
        """
        if not self._opens_cached:
            return None
        fd = open_now(self.directory, object_name(number).encode(), _OBJECT)
        if fd < 0:
            self._opens_cached = -fd not in (errno.ENOSYS, errno.EINVAL, errno.EPERM)
            return None
        return fd

    def open_empty(self) -> int:
        """A descriptor of a new file without a name."""
        name = f"probe-{os.getpid()}"
        fd = os.open(name, os.O_RDWR | _SAFELY | os.O_CREAT, 0o600, dir_fd=self.directory)
        os.unlink(name, dir_fd=self.directory)
        return fd

    def try_out(self) -> None:
        """Write a block and have it durable, of a file without a name."""
        fd = self.open_empty()
        try:
            self.io.write(fd, [memoryview(bytes(BLOCK_BYTES))], 0)
            self.io.sync(fd)
        finally:
            self.io.close(fd)

    def write_new(self, number: int, data: memoryview) -> Stamp:
        """A new small object, which is all of `data`; how it was left. After a fault some of it may be there."""
        fd = self.open_write(number, create=True, direct=False)
        try:
            self.io.write(fd, [data], 0)
            left = os.fstat(fd)
        finally:
            self.io.close(fd)
        return Stamp(left.st_ino, left.st_ctime_ns)

    def sync_all(self) -> None:
        """Everything on the file system, durable. Also reports failed write-backs since the cache was opened."""
        if _libc.syncfs(self.directory) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"syncfs: {os.strerror(number)}")

    def unlink(self, number: int) -> bool:
        """Remove object `number`; False, and nothing happens, when it is gone already. A directory in its place, which
        is not ours to delete, is renamed."""
        name = object_name(number)
        try:
            os.unlink(name, dir_fd=self.directory)
        except FileNotFoundError:
            return False
        except IsADirectoryError:
            self._move_away(name)
        return True

    def _move_away(self, name: str) -> None:
        n = 1
        while True:
            try:
                os.stat(f"{name}{_NOT_OURS}-{n}", dir_fd=self.directory, follow_symlinks=False)
            except FileNotFoundError:
                break
            n += 1
        os.rename(name, f"{name}{_NOT_OURS}-{n}", src_dir_fd=self.directory, dst_dir_fd=self.directory)

    def sync_name(self, number: int) -> None:
        """That object `number` is gone, durable."""
        folder = os.path.dirname(object_name(number))
        fd = self.open_files.patiently(partial(os.open, folder, _FOLDER, dir_fd=self.directory))
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def space(self) -> DiskSpace:
        """Size and free bytes of the disk."""
        figures = os.fstatvfs(self.directory)
        return DiskSpace(figures.f_blocks * figures.f_frsize, figures.f_bavail * figures.f_frsize)

    def in_memory(self) -> bool:
        """Whether the cache lies on tmpfs, whose size says nothing about what may be used of it."""
        return _file_system_type(self.directory) in _MEMORY_MAGICS

    def on_overlay(self) -> bool:
        """Whether the cache lies on an overlay, which the kernel passes through only if told so beforehand."""
        return _file_system_type(self.directory) == _OVERLAY_MAGIC

    def remove_set_aside(self) -> None:
        """Delete what `set_objects_aside` left, also in an earlier run. Takes as long as it takes."""
        assert self._cache is not None
        for name in self._cache.names():
            if name.startswith(_ASIDE):
                shutil.rmtree(name, dir_fd=self._cache.fd)


def set_objects_aside(cache: CacheDirectory) -> None:
    """Rename the objects away, after the index was lost; `remove_set_aside` deletes them in the background."""
    n = 1
    while cache.exists(f"{_ASIDE}{n}"):
        n += 1
    try:
        cache.rename(_OBJECTS, f"{_ASIDE}{n}")
    except FileNotFoundError:
        pass  # there never were any


def some_objects(directory: int, at_most: int) -> list[int]:
    """Numbers of objects that lie in this directory, by chance."""
    found: list[int] = []
    for folder in random.sample(range(_FOLDERS), _FOLDERS):
        if len(found) >= at_most:
            break
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            fd = os.open(f"{folder:02x}", _FOLDER, dir_fd=directory)
            try:
                names = [name for name in os.listdir(fd) if name.isdecimal()]
            finally:
                os.close(fd)
            found += map(int, random.sample(names, min(_OF_A_FOLDER, len(names), at_most - len(found))))
    return found


def _file_system_type(fd: int) -> int:
    # struct statfs begins with f_type, a long; 256 bytes hold the whole of it on every Linux.
    buffer = ctypes.create_string_buffer(256)
    return ctypes.c_long.from_buffer(buffer).value if _libc.fstatfs(fd, buffer) == 0 else 0


def _not_ours(name: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "something other than a file lies in its place", name)


def object_name(number: int) -> str:
    return f"{number & 0xFF:02x}/{number}"
