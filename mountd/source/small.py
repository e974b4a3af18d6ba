"""Small files of the source, many in one call of a thread: open, look, read all of it, look again, close.

One small file at a time costs some 0.2 ms of CPU in hops to threads and in the interpreter's lock, which each system
call gives away and gets back late; so a batch is read in one call, by `_small_files.c` where that was built, else here.
Called by `mountd/source/source.py` only, in its threads. What ails one file is said in its answer and does not stop the
others. A reader who needs one of the files now tells the thread to hurry: it ends after the file it is at.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from mountd.base.attributes import Attributes
from mountd.native import small_files as small_native
from mountd.native.statx import identity

__all__ = ["BatchProgress", "SmallRead", "has_devices", "read_files"]

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_PAGE_BYTES = 4096
_WHOLE = 0

_extension = small_native.load()


class SmallRead(NamedTuple):
    """What became of one file."""

    attributes: Attributes | None
    """Of the open file; None if it could not be read, or changed meanwhile: then ask for it by itself."""
    data: memoryview | None
    """All its bytes, of the version that `attributes` stands for; None also of what is no regular file or too large."""
    mount: int = 0
    """As in `statx.Place`, beside the attributes' `device`; 0 where it was not asked for."""

    def on(self, file_system: str | None) -> SmallRead:
        """Now that it is known which file system it lies on; if it is not, the file is to be asked for by itself."""
        if file_system is None or self.attributes is None:
            return SmallRead(None, None)
        return self._replace(attributes=self.attributes._replace(file_system=file_system))


class BatchProgress:
    """Of one call of `read_files`: made on the event loop, which may hurry it while it is in its thread."""

    __slots__ = ("shared",)

    def __init__(self) -> None:
        self.shared = bytearray(b"\xff\xff\xff\xff\0\0\0\0")
        """Two native integers of 32 bits: the number of the file that is being read, or in the end was read last (-1:
        none), and whether to hurry."""

    def hurry(self) -> int:
        """End after the file that is being read. Its number; -1: none, and none will be. Those after it neither.

        That one may be left out too: the thread has named it and not begun to read it.
        """
        if _extension is not None:
            return _extension.hurry(self.shared)
        numbers = memoryview(self.shared).cast("i")
        numbers[1] = 1
        return numbers[0]


def has_devices(root_fd: int) -> bool:
    """Whether opening a name blindly could open a device, and do something there."""
    return not os.fstatvfs(root_fd).f_flag & os.ST_NODEV


def read_files(
    directories: Sequence[int],
    names: Sequence[bytes],
    into: memoryview,
    progress: BatchProgress,
    limit_bytes: int,
    *,
    careful: bool,
) -> list[SmallRead]:
    """In a thread: whole files of at most `limit_bytes`, which `into` holds at least. As far as it came.

    `directories[i]`: descriptor of the directory of `names[i]`. `careful`: see `has_devices`. Raises ValueError for
    what is not a name.
    """
    read = _extension.read if _extension is not None else _read_plain
    found = read(list(directories), list(names), into, limit_bytes, careful, progress.shared)
    data = into.toreadonly()
    answers = []
    for status, figures, offset in found:
        if figures is None or status < -1:
            answers.append(SmallRead(None, None))
            continue
        attributes, mount = Attributes._make((*figures[:-1], "")), figures[-1]
        whole = data[offset : offset + attributes.size] if status == _WHOLE else None
        answers.append(SmallRead(attributes, whole, mount))
    return answers


def _read_plain(
    directories: list[int],
    names: list[bytes],
    into: memoryview,
    limit_bytes: int,
    careful: bool,
    progress: bytearray,
) -> list[small_native.Found]:
    """As the extension's, without it."""
    numbers = memoryview(progress).cast("i")
    found: list[small_native.Found] = []
    used = 0
    for number, (directory, name) in enumerate(zip(directories, names, strict=True)):
        if not name or b"/" in name or b"\0" in name or name in (b".", b".."):
            raise ValueError("not a name in a directory")
        numbers[0] = number
        if numbers[1]:
            break
        try:
            one = _read_one(directory, name, into[used:], limit_bytes, careful)
        except OSError as error:
            found.append((error.errno or 5, None, 0))
            continue
        if one is None:
            break
        status, attributes = one
        found.append((status, (*attributes[:-1], 0), used))
        if status == _WHOLE:
            used = min(len(into), used + -(-attributes.size // _PAGE_BYTES) * _PAGE_BYTES)
    numbers[0] = len(found) - 1  # who hurries while the answer is on its way must not wait for what was not read
    return found


def _read_one(
    directory: int, name: bytes, into: memoryview, limit_bytes: int, careful: bool
) -> tuple[int, Attributes] | None:
    """None: there is no room for it."""
    if careful:
        named = Attributes.of(os.stat(name, dir_fd=directory, follow_symlinks=False))
        if not named.is_file:
            return -1, named
    fd = os.open(name, _OPEN, dir_fd=directory)
    try:
        attributes = Attributes.of(os.fstat(fd))
        if not attributes.is_file or attributes.size > limit_bytes:
            return -1, attributes
        if attributes.size > len(into):
            return None
        done = 0
        while done < attributes.size:
            got = os.preadv(fd, [into[done : attributes.size]], done)
            if got == 0:
                return -2, attributes  # it ends before its size says so
            done += got
        before = (attributes.mode, attributes.inode, attributes.size, attributes.mtime_ns, attributes.ctime_ns)
        same = identity(fd) == before  # a time that no version can hold is never the same
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return (_WHOLE if same else -2), attributes
    finally:
        os.close(fd)
