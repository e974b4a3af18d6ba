"""The few system calls of staging, below the cache directory: all that can fail on the cache disk goes through here.

    DIR/objects/xx/N    one staged file for each object number N (xx: its low byte in hexadecimal), mode 0600

Every method blocks and may raise OSError; the staging files call them in their threads. Tests replace this class by one
that fails or dies at the Nth call. Object numbers are never used twice, so a name that is gone stays gone.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from mountd import small_native
from mountd.openat2 import CACHED, How, open_now

__all__ = ["Disk", "DiskSpace"]

_FALLOC_FL_KEEP_SIZE = 0x01
_FALLOC_FL_PUNCH_HOLE = 0x02
_MEMORY_MAGICS = {0x01021994, 0x858458F6}
"""f_type of tmpfs and ramfs (statfs(2))."""

_OVERLAY_MAGIC = 0x794C7630

_libc = ctypes.CDLL(None, use_errno=True)
_OBJECT = How(os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, CACHED)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


_extension = small_native.load()


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """The disk below the cache, in bytes; `free_bytes` is what an ordinary user may still take."""

    total_bytes: int
    free_bytes: int


class Disk:
    """The objects of one cache directory. Stateless but for a descriptor of the directory and what was found out."""

    def __init__(self, cache_dir: str) -> None:
        self.cache_dir = cache_dir
        self.objects_dir = os.path.join(cache_dir, "objects")
        self.direct = True
        """Whether the file system takes O_DIRECT; set to False by the first refusal."""
        self._directory = -1
        self._opens_cached = True

    def open(self) -> None:
        """Make the directories. Raises OSError."""
        os.makedirs(self.objects_dir, mode=0o700, exist_ok=True)
        self._directory = os.open(self.objects_dir, os.O_RDONLY | os.O_DIRECTORY)

    def close(self) -> None:
        """Give the descriptor back. May be called twice."""
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1

    def path(self, number: int) -> str:
        """Where object `number` lies."""
        return f"{self.objects_dir}/{number & 0xFF:02x}/{number}"

    def open_write(self, number: int, *, create: bool, direct: bool) -> int:
        """A descriptor for writing. FileNotFoundError when it must exist and does not."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0) | (os.O_DIRECT if direct else 0)
        path = self.path(number)
        try:
            return os.open(path, flags, 0o600)
        except FileNotFoundError:
            if not create:
                raise
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            return os.open(path, flags, 0o600)

    def open_read(self, number: int) -> int:
        """A descriptor for reading. FileNotFoundError when the object is gone."""
        return os.open(self.path(number), os.O_RDONLY | os.O_CLOEXEC)

    def open_cached(self, number: int) -> int | None:
        """As `open_read`, if that needs no disk: the kernel has the names in memory (openat2(2), Linux 5.12). Else
        None, also when the object is gone.
        """
        if not self._opens_cached:
            return None
        name = b"%02x/%d" % (number & 0xFF, number)
        fd = open_now(self._directory, name, _OBJECT)
        if fd < 0:
            self._opens_cached = -fd not in (errno.ENOSYS, errno.EINVAL, errno.EPERM)
            return None
        return fd

    def open_empty(self) -> int:
        """A descriptor of a new file without a name."""
        path = os.path.join(self.objects_dir, f"probe-{os.getpid()}")
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT, 0o600)
        os.unlink(path)
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

    def write_new(self, numbers: Sequence[int], contents: Sequence[memoryview]) -> list[OSError | None]:
        """New small objects, each all of `contents[i]`, many at a time; what went wrong with each, None: nothing.

        A fault of one does not stop the others, and leaves of it what it leaves. Never raises OSError.
        """
        if _extension is None:
            return [self._write_one(number, data) for number, data in zip(numbers, contents, strict=True)]
        paths = [b"%02x/%d" % (number & 0xFF, number) for number in numbers]
        found = _extension.write(self._directory, paths, list(contents))
        return [OSError(number, os.strerror(number)) if number else None for number in found]

    def _write_one(self, number: int, data: memoryview) -> OSError | None:
        try:
            fd = self.open_write(number, create=True, direct=False)
            try:
                self.write(fd, [data], 0)
            finally:
                self.close_fd(fd)
        except OSError as error:
            return error
        return None

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

    def unlink(self, number: int) -> None:
        """Remove object `number`; nothing happens when it is gone already."""
        try:
            os.unlink(self.path(number))
        except FileNotFoundError:
            pass

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

    def set_objects_aside(self) -> None:
        """Rename the objects away, after the index was lost; `remove_set_aside` deletes them in the background."""
        n = 1
        while os.path.lexists(aside := f"{self.objects_dir}.broken-{n}"):
            n += 1
        try:
            os.rename(self.objects_dir, aside)
        except FileNotFoundError:
            pass  # there never were any

    def remove_set_aside(self) -> None:
        """Delete what `set_objects_aside` left, also in an earlier run. Takes as long as it takes."""
        for name in os.listdir(self.cache_dir):
            if name.startswith("objects.broken-"):
                shutil.rmtree(os.path.join(self.cache_dir, name))
