"""The few system calls of staging, below the cache directory: all that can fail on the cache disk goes through here.

    DIR/objects/xx/N    one staged file for each object number N (xx: its low byte in hexadecimal), mode 0600

What lies under the name of an object and is no file is none: it counts as gone, and is moved out of the way when its
name is needed. Every method blocks and may raise OSError; the staging files call them in their threads. Tests replace
this class by one that fails or dies at the Nth call. Object numbers are never used twice, so a name that is gone stays
gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from mountd.cache.index import Stamp
from mountd.core.cache_directory import CacheDirectory
from mountd.core.open_files import OpenFiles
from mountd.native import small_files as small_native
from mountd.native.openat2 import CACHED, How, open_now
from policies.cache.admission import BLOCK_BYTES

__all__ = ["Disk", "DiskSpace", "set_objects_aside"]

_OBJECTS = "objects"
_ASIDE = "objects.broken-"
_NOT_OURS = ".not-ours"
_SAFELY = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | _SAFELY
_PLENTY = 1 << 16
"""Open files, for who says nothing about it."""
"""Of a pipe that somebody has put there the open does not wait for the other end."""

_FALLOC_FL_KEEP_SIZE = 0x01
_FALLOC_FL_PUNCH_HOLE = 0x02
_MEMORY_MAGICS = {0x01021994, 0x858458F6}
"""f_type of tmpfs and ramfs (statfs(2))."""

_OVERLAY_MAGIC = 0x794C7630

_libc = ctypes.CDLL(None, use_errno=True)
_OBJECT = How(os.O_RDONLY | _SAFELY, CACHED)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


_extension = small_native.load()


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
        self.direct = True
        """Whether the file system takes O_DIRECT; set to False by the first refusal."""
        self._cache: CacheDirectory | None = None
        self._directory = -1
        self._opens_cached = True

    def open(self, cache: CacheDirectory) -> None:
        """Have the objects in this directory, which stays open as long. Raises OSError, ConfigError."""
        self._cache = cache
        self._directory = cache.open_directory(_OBJECTS)

    def close(self) -> None:
        """Give the descriptor back. May be called twice."""
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1

    def path(self, number: int) -> str:
        """Where object `number` lies, for people."""
        return f"{self.objects_dir}/{_name(number)}"

    def open_write(self, number: int, *, create: bool, direct: bool) -> int:
        """A descriptor for writing: of a new object, or of one that exists; FileNotFoundError if it does not."""
        new = os.O_CREAT | os.O_EXCL if create else 0
        flags = os.O_RDWR | _SAFELY | new | (os.O_DIRECT if direct else 0)
        if not create:
            return self._open_object(_name(number), flags)
        return self.open_files.patiently(lambda: self._create(number, flags))

    def _create(self, number: int, flags: int) -> int:
        name = _name(number)
        try:
            return os.open(name, flags, 0o600, dir_fd=self._directory)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                os.mkdir(os.path.dirname(name), 0o700, dir_fd=self._directory)
        except FileExistsError:
            self.unlink(number)  # the remains of a write that failed, or what somebody else has put there
        return os.open(name, flags, 0o600, dir_fd=self._directory)

    def open_read(self, number: int, *, direct: bool = False) -> int:
        """A descriptor for reading. FileNotFoundError when the object is gone."""
        return self._open_object(_name(number), os.O_RDONLY | _SAFELY | (os.O_DIRECT if direct else 0))

    def _open_object(self, name: str, flags: int) -> int:
        try:
            fd = self.open_files.patiently(lambda: os.open(name, flags, dir_fd=self._directory))
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV):
                raise _not_ours(name) from None
            raise
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise _not_ours(name)
        return fd

    def open_cached(self, number: int) -> int | None:
        """As `open_read`, if that needs no disk: the kernel has the names in memory (openat2(2), Linux 5.12). Else
        None, also when the object is gone.
        """
        if not self._opens_cached:
            return None
        fd = open_now(self._directory, _name(number).encode(), _OBJECT)
        if fd < 0:
            self._opens_cached = -fd not in (errno.ENOSYS, errno.EINVAL, errno.EPERM)
            return None
        return fd

    def open_empty(self) -> int:
        """A descriptor of a new file without a name."""
        name = f"probe-{os.getpid()}"
        fd = os.open(name, os.O_RDWR | _SAFELY | os.O_CREAT, 0o600, dir_fd=self._directory)
        os.unlink(name, dir_fd=self._directory)
        return fd

    def write(self, fd: int, parts: Sequence[memoryview | mmap.mmap], offset: int) -> None:
        """All of `parts` from `offset` on. With O_DIRECT every part is aligned in memory and in length."""
        total = sum(len(part) for part in parts)
        done = os.pwritev(fd, parts, offset)
        while done < total:
            # Short writes: near a full disk or a quota; the rest gives the error, or succeeds.
            rest: list[memoryview] = []
            skip = done
            for part in parts:
                view = memoryview(part)
                if skip < len(view):
                    rest.append(view[skip:])
                skip = max(0, skip - len(view))
            more = os.pwritev(fd, rest, offset + done)
            if more == 0:
                raise OSError(errno.ENOSPC, "a write to the cache wrote nothing")
            done += more

    def write_new(self, numbers: Sequence[int], contents: Sequence[memoryview]) -> list[Stamp | OSError]:
        """New small objects, each all of `contents[i]`, many at a time; how each was left, or what went wrong with it.

        A fault of one does not stop the others, and leaves of it what it leaves. Never raises OSError.
        """
        if _extension is None:
            return [self._write_one(number, data) for number, data in zip(numbers, contents, strict=True)]
        paths = [_name(number).encode() for number in numbers]
        found = _extension.write(self._directory, paths, list(contents))
        answers: list[Stamp | OSError] = []
        for number, data, (fault, inode, ctime_ns) in zip(numbers, contents, found, strict=True):
            if fault in (errno.EEXIST, errno.EMFILE, errno.ENFILE):
                answers.append(self._write_one(number, data))
            else:
                answers.append(OSError(fault, os.strerror(fault)) if fault else Stamp(inode, ctime_ns))
        return answers

    def _write_one(self, number: int, data: memoryview) -> Stamp | OSError:
        try:
            fd = self.open_write(number, create=True, direct=False)
            try:
                self.write(fd, [data], 0)
                left = os.fstat(fd)
            finally:
                self.close_fd(fd)
        except OSError as error:
            return error
        return Stamp(left.st_ino, left.st_ctime_ns)

    def set_length(self, fd: int, size: int) -> None:
        """Make the file `size` bytes long; what was not written reads as zeros."""
        os.ftruncate(fd, size)

    def read(self, fd: int, offset: int, size: int) -> bytearray:
        """`size` bytes, fewer only at the end of the file."""
        data = bytearray(size)
        done = os.preadv(fd, [data], offset)
        while 0 < done < size:
            more = os.preadv(fd, [memoryview(data)[done:]], offset + done)
            if more == 0:
                break
            done += more
        if done < size:
            del data[done:]
        return data

    def read_into(self, fd: int, offset: int, buffer: memoryview) -> bool:
        """Fill `buffer`. False if the file ends before."""
        done = 0
        while done < len(buffer):
            more = os.preadv(fd, [buffer[done:]], offset + done)
            if more == 0:
                return False
            done += more
        return True

    def read_part(self, fd: int, offset: int, buffer: memoryview) -> int:
        """As many bytes as there are, at most a full `buffer`, which is aligned for O_DIRECT like `offset`."""
        done = os.preadv(fd, [buffer], offset)
        while done < len(buffer) and done % BLOCK_BYTES == 0:
            more = os.preadv(fd, [buffer[done:]], offset + done)
            if more == 0:
                break
            done += more
        return done

    def has_cached(self, fd: int, offset: int, size: int) -> bool:
        """Whether the page cache seems to have `size` bytes: their first, middle and last one."""
        byte = memoryview(bytearray(1))
        try:
            return all(self.read_cached(fd, at, byte) for at in (offset, offset + size // 2, offset + size - 1))
        except OSError:
            return True  # it is memory

    def only_asked_for(self, fd: int) -> None:
        """Read no bytes into the page cache that were not asked for."""
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)

    def let_go(self, fd: int, offset: int, size: int) -> None:
        """Drop bytes from the page cache, as far as they are on the disk."""
        os.posix_fadvise(fd, offset, size, os.POSIX_FADV_DONTNEED)

    def read_cached(self, fd: int, offset: int, buffer: memoryview) -> bool:
        """Fill `buffer` if the page cache has all of it. Raises OSError (EOPNOTSUPP: never on this disk)."""
        try:
            return os.preadv(fd, [buffer], offset, os.RWF_NOWAIT) == len(buffer)
        except BlockingIOError:
            return False

    def will_need(self, fd: int, offset: int, size: int) -> None:
        """Begin to read bytes into the page cache; does not wait for them. Raises OSError."""
        os.posix_fadvise(fd, offset, size, os.POSIX_FADV_WILLNEED)

    def sync(self, fd: int) -> None:
        """The bytes of one object, durable."""
        os.fdatasync(fd)

    def sync_all(self) -> None:
        """Everything on the file system, durable. Also reports failed write-backs since the cache was opened."""
        if _libc.syncfs(self._directory) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"syncfs: {os.strerror(number)}")

    def punch(self, fd: int, start: int, end: int) -> None:
        """Give the blocks of `[start, end)` back; the length stays."""
        if _libc.fallocate(fd, _FALLOC_FL_KEEP_SIZE | _FALLOC_FL_PUNCH_HOLE, start, end - start) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"punching a hole: {os.strerror(number)}")

    def close_fd(self, fd: int) -> None:
        """Close a descriptor of an object. The last one of a removed object frees its blocks, which takes a while."""
        os.close(fd)

    def unlink(self, number: int) -> bool:
        """Remove object `number`; False, and nothing happens, when it is gone already. A directory in its place, which
        is not ours to delete, is renamed."""
        name = _name(number)
        try:
            os.unlink(name, dir_fd=self._directory)
        except FileNotFoundError:
            return False
        except IsADirectoryError:
            self._move_away(name)
        return True

    def _move_away(self, name: str) -> None:
        n = 1
        while True:
            try:
                os.stat(f"{name}{_NOT_OURS}-{n}", dir_fd=self._directory, follow_symlinks=False)
            except FileNotFoundError:
                break
            n += 1
        os.rename(name, f"{name}{_NOT_OURS}-{n}", src_dir_fd=self._directory, dst_dir_fd=self._directory)

    def sync_name(self, number: int) -> None:
        """That object `number` is gone, durable."""
        folder = os.path.dirname(_name(number))
        fd = self.open_files.patiently(partial(os.open, folder, _FOLDER, dir_fd=self._directory))
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def space(self) -> DiskSpace:
        """Size and free bytes of the disk."""
        figures = os.fstatvfs(self._directory)
        return DiskSpace(figures.f_blocks * figures.f_frsize, figures.f_bavail * figures.f_frsize)

    def in_memory(self) -> bool:
        """Whether the cache lies on tmpfs, whose size says nothing about what may be used of it."""
        return self._magic() in _MEMORY_MAGICS

    def on_overlay(self) -> bool:
        """Whether the cache lies on an overlay, which the kernel passes through only if told so beforehand."""
        return self._magic() == _OVERLAY_MAGIC

    def _magic(self) -> int:
        # struct statfs begins with f_type, a long; 256 bytes hold the whole of it on every Linux.
        buffer = ctypes.create_string_buffer(256)
        return ctypes.c_long.from_buffer(buffer).value if _libc.fstatfs(self._directory, buffer) == 0 else 0

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


def _not_ours(name: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "something other than a file lies in its place", name)


def _name(number: int) -> str:
    return f"{number & 0xFF:02x}/{number}"
