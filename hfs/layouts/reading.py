"""How builders of layouts read the files of a data set: as one version, in large reads, ahead of who uses the bytes.

Never runs in a training job. With pread only: nothing is mapped (a file that is cut short meanwhile would be a SIGBUS),
written or locked. Whatever is wrong with a file is a LayoutError that names it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self, TypeVar

from hfs.mountd.wire.layout import LayoutError

_T = TypeVar("_T")
_U = TypeVar("_U")

BLOCK_BYTES = 8 * 1024**2
"""What one read asks for: large enough that a parallel file system works at its full rate."""

SCATTERED_BYTES = 256 * 1024
"""What a small read alone costs, in bytes read in order: 1 ms at 250 MB/s, on a source that serves one at a time."""

_READS = 4
"""Blocks in flight: hides the latency of the source behind the work on what has come; 32 MiB of memory."""


@dataclasses.dataclass(frozen=True)
class SourceFile:
    """A regular file that is open for reading, of which nothing is written or locked."""

    path: str
    fd: int
    size: int
    mtime_ns: int

    def read(self, offset: int, size: int) -> bytes:
        """`size` bytes at `offset`. Raises LayoutError where there are fewer or they cannot be read."""
        pieces: list[bytes] = []
        got = 0
        while got < size:
            try:
                piece = os.pread(self.fd, size - got, offset + got)
            except OSError as error:
                raise LayoutError(
                    f"{self.path}: cannot be read at offset {offset + got:,} ({error.strerror})"
                ) from None
            if not piece:
                raise LayoutError(
                    f"{self.path}: cut short at {offset + got:,}, and {size:,} bytes at offset {offset:,} belong to it"
                )
            pieces.append(piece)
            got += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def blocks(self, size: int) -> Iterator[bytes]:
        """The first `size` bytes, in order, in blocks of BLOCK_BYTES that are read ahead."""

        def read(at: int) -> bytes:
            return self.read(at, min(BLOCK_BYTES, size - at))

        return ahead(read, range(0, size, BLOCK_BYTES), _READS)


class FileWindow:
    """A file whose headers are read in ascending order: by blocks where they lie close together, else each alone.

    Blocks are read one ahead, so that the file's bytes come in while the headers in the last block are worked on. What
    lies between headers that are far apart (more than SCATTERED_BYTES) is not read.
    """

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self._data = b""
        self._at = 0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="layout")
        self._next: tuple[int, Future[bytes]] | None = None
        self._used = 0
        """End of what was asked for last."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def read(self, offset: int, size: int) -> bytes:
        """`size` bytes at `offset`. Raises LayoutError where there are fewer."""
        at = offset - self._at
        if at < 0 or at + size > len(self._data):
            self._move(offset, size)
            at = offset - self._at
        self._used = offset + size
        return self._data[at : at + size]

    def _move(self, offset: int, size: int) -> None:
        close = offset - self._used < SCATTERED_BYTES
        if self._next is not None:
            begin, coming = self._next
            self._next = None
            if self._at <= offset < begin + BLOCK_BYTES and begin == self._at + len(self._data):
                data = coming.result()
                if offset >= begin:
                    self._at, self._data = begin, data
                else:  # a header across the end of a block
                    self._at, self._data = offset, self._data[offset - self._at :] + data
        there = self._at + len(self._data)
        if not self._at <= offset or offset + size > there:
            length = max(size, BLOCK_BYTES if close else _HEADERS_BYTES)
            self._at, self._data = offset, self._file.read(offset, max(size, min(length, self._file.size - offset)))
            there = self._at + len(self._data)
        if close and there < self._file.size:
            step = min(BLOCK_BYTES, self._file.size - there)
            self._next = there, self._pool.submit(self._file.read, there, step)


_HEADERS_BYTES = 16 * 1024
"""Read where a header stands alone: those that come in several blocks (long names), and a small member behind it."""


@contextlib.contextmanager
def opened(path: str) -> Iterator[SourceFile]:
    """The file at `path`; that it has not changed meanwhile is checked at the end. Raises LayoutError."""
    try:
        # Not to wait for the writer of a pipe that somebody has named by mistake.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise LayoutError(f"{path}: cannot be opened ({error.strerror})") from None
    try:
        before = os.fstat(fd)
        if not stat.S_ISREG(before.st_mode):
            raise LayoutError(f"{path}: not a regular file")
        yield SourceFile(path, fd, before.st_size, before.st_mtime_ns)
        after = os.fstat(fd)
        if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise LayoutError(f"{path}: changed while it was read; build the layout when nobody writes to it")
    finally:
        os.close(fd)


def ahead(work: Callable[[_T], _U], items: Iterable[_T], depth: int) -> Iterator[_U]:
    """`map` by threads, at most `depth` items ahead of who takes the results."""
    with ThreadPoolExecutor(depth, thread_name_prefix="layout") as pool:
        waiting: list[Future[_U]] = []
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) == depth:
                    yield waiting.pop(0).result()
            while waiting:
                yield waiting.pop(0).result()
        finally:
            for future in waiting:
                future.cancel()
