"""Reading one directory of the source by getdents64(2): many names a call, with inode number and type, no stat.

os.scandir makes an object of every name and keeps the interpreter meanwhile (1 us a name), reads 32 KiB a call, and
stats what has no type. The names go into a `Listing` as they come.
"""

from __future__ import annotations

import ctypes
import os

from mountd.base.errors import VersionChanged
from mountd.core.metrics import Metrics
from mountd.source.descriptors import Directories, show
from mountd.source.listing import Listing
from mountd.source.threads import SourceThreads

__all__ = ["DirectoryReader", "Lister"]

_BLOCK_BYTES = 256 << 10
"""Eight thousand names a call: a larger one saves little (17 calls instead of 5 for 100 000) and shows the first names
later."""

_libc = ctypes.CDLL(None, use_errno=True)
_getdents64 = getattr(_libc, "getdents64", None) or _libc.getdents  # musl calls it so


class Lister:
    """Lists directories. Event loop only; what blocks runs in a thread."""

    def __init__(self, directories: Directories, threads: SourceThreads, metrics: Metrics) -> None:
        self._directories = directories
        self._threads = threads
        self._metrics = metrics

    async def fill(self, directory: bytes, inode: int, listing: Listing, *, file_system: str = "") -> None:
        """Put the names in `directory`, without . and .., into `listing` as they come.

        Raises VersionChanged if it is no longer `inode` of `file_system` (see `Attributes`), SourceError and
        SourceTimeout; `listing` then has the names before.
        """
        self._metrics.add("source_listings")
        what = f"listing of {show(directory, b'')}"
        reader, records = await self._threads.call(
            "metadata", what, self._open, directory, inode, file_system, directory=directory
        )
        listing.append(records)
        while not reader.ended:
            listing.append(await self._threads.call("metadata", what, reader.read, directory=directory))

    def _open(self, directory: bytes, inode: int, file_system: str) -> tuple[DirectoryReader, bytes]:
        where = self._directories.get(directory)
        fd = os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=where.fd)
        reader = DirectoryReader(fd)
        found = os.fstat(fd)
        same = found.st_ino == inode and where.file_system == file_system
        if directory and (not same or (found.st_nlink == 0 and self._is_another(directory))):
            self._directories.forget(directory)
            raise VersionChanged(f"{show(directory, b'')}: another directory stands here now")
        return reader, reader.read()

    def _is_another(self, directory: bytes) -> bool:
        """True if the path leads to a directory with links, which the one we had open has not; some sources never count
        them."""
        self._directories.forget(directory)
        return os.fstat(self._directories.get(directory).fd).st_nlink > 0


class DirectoryReader:
    """An open directory of the source; closed at its end, or when nobody holds it any more. Blocks."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        """`fd`: owned from now on."""
        self._fd = fd

    @property
    def ended(self) -> bool:
        """All names were read."""
        return self._fd < 0

    def read(self) -> bytes:
        """The next names, in records of getdents64(2). Raises OSError, and may then be called again.

        Goes on until there are many or all: a small directory is one call for the event loop, not two.
        """
        room = ctypes.create_string_buffer(_BLOCK_BYTES)
        used = 0
        while used < _BLOCK_BYTES // 2:
            size = _getdents64(self._fd, ctypes.byref(room, used), _BLOCK_BYTES - used)
            if size < 0:
                number = ctypes.get_errno()
                if used:
                    break  # what was read is not lost; the next call meets the error again
                raise OSError(number, os.strerror(number))
            if size == 0:
                self._close()
                break
            used += size
        return ctypes.string_at(room, used)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self._close()
