"""Reading one file of the source, a large request at a time: open beneath its directory, look, read, look again.

What is looked for is the version: bytes that may be of two of them are never returned, nor those of a file on another
file system, mounted there since. O_DIRECT for files of several chunks where the source takes it, since a buffered 8 MiB
read reaches a FUSE or network source as 128 KiB requests; descriptors of such files are kept for the next read. Used by
`source` only, in its threads.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import xxhash

from mountd.base.errors import VersionChanged
from mountd.base.version import Version
from mountd.native.statx import identity, place
from mountd.source.directories import Directories
from mountd.source.doubts import Rewritten
from mountd.source.file_systems import FileSystems
from policies.geometry import Extent

__all__ = ["Done", "Reading", "show"]

_PAGE_BYTES = 4096
"""What O_DIRECT wants of offset, length and memory everywhere we know of."""

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""O_NONBLOCK: a file that became a FIFO under our hands must not hang the thread; it means nothing for regular
files."""


_DIGEST_BYTES = 1 << 20
"""Memory of a second look."""


class Done(NamedTuple):
    """What a read took."""

    opened: int
    """Descriptors that were opened."""
    reads: int
    at_ns: int
    """When it began, by time.monotonic_ns."""
    digest: int | None
    """xxh3_64 of its bytes, where the tick of their ctime may not have been over by then."""


class Reading:
    """Any thread. `large_bytes`: files above are read with O_DIRECT, if `direct`."""

    def __init__(
        self,
        directories: Directories,
        file_systems: FileSystems,
        rewritten: Rewritten,
        *,
        direct: bool,
        large_bytes: int,
        at_most: int,
    ) -> None:
        """`at_most`: descriptors kept between reads."""
        self._at_most = at_most
        self.direct = direct
        """Whether the source takes O_DIRECT, as far as is known."""
        self._directories = directories
        self._file_systems = file_systems
        self._rewritten = rewritten
        self._large_bytes = large_bytes
        self._lock = threading.Lock()
        self._idle: OrderedDict[tuple[Version, int], None] = OrderedDict()

    def close(self) -> None:
        """Close the descriptors that are kept."""
        with self._lock:
            idle, self._idle = list(self._idle), OrderedDict()
        for _, fd in idle:
            os.close(fd)

    @property
    def idle_files(self) -> int:
        """Descriptors kept open between reads."""
        return len(self._idle)

    def release(self, version: Version) -> None:
        """The last handle of `version` is closed: its idle source descriptors go. Any thread; never blocks: a close may
        ask the source (Lustre, NFS and FUSE do), which may hang, and this is called on the event loop."""
        with self._lock:
            mine = [key for key in self._idle if key[0] == version]
        self._close_later(mine)

    def let_go(self) -> None:
        """Close half of what is kept, that which was not used for longest. As `release`."""
        with self._lock:
            oldest = list(self._idle)[: len(self._idle) - len(self._idle) // 2]
        self._close_later(oldest)

    def _close_later(self, keys: Sequence[tuple[Version, int]]) -> None:
        with self._lock:
            mine = [key for key in keys if key in self._idle]
            for key in mine:
                del self._idle[key]
        if not mine:
            return
        try:
            threading.Thread(target=_close_all, args=([fd for _, fd in mine],), daemon=True).start()
        except RuntimeError:  # no more threads: others that read will close them
            with self._lock:
                self._idle.update(dict.fromkeys(mine))

    def read(self, directory: bytes, name: bytes, version: Version, extent: Extent, into: memoryview) -> Done:
        """As `Source.read`. Raises OSError."""
        at_ns = time.monotonic_ns()
        is_over = self._file_systems.clock(version.source_id).is_over(version.ctime_ns, at_ns)
        large = version.size > self._large_bytes
        fd, opened = self._take(version), 0
        if fd is None:
            fd, opened = self._open(directory, name, version, direct=large and self.direct), 1
        keep = False
        try:
            self._check(fd, version)
            try:
                reads = self._fill(fd, extent, into)
            except OSError as error:
                if error.errno != errno.EINVAL or not self.direct:
                    raise
                self.direct = False  # the file system opens with O_DIRECT and then refuses the read
                buffered = self._open(directory, name, version, direct=False)
                os.close(fd)
                fd, opened = buffered, opened + 1
                self._check(fd, version)
                reads = self._fill(fd, extent, into)
            self._check(fd, version)
            keep = large
            if not large or not self.direct:
                # Read once and staged: these pages would only push out others.
                os.posix_fadvise(fd, extent.start, extent.size, os.POSIX_FADV_DONTNEED)
            digest = None if is_over else xxhash.xxh3_64_intdigest(into[: extent.size])
            return Done(opened, reads, at_ns, digest)
        finally:
            if keep:
                self._keep(version, fd)
            else:
                os.close(fd)
                if large:
                    self.release(version)  # what ails this descriptor ails its brothers; the next try opens a new one

    def digest(self, directory: bytes, name: bytes, version: Version, extent: Extent) -> int:
        """xxh3_64 of the bytes of `extent` as they are now, past what the client remembers of them. Raises OSError."""
        digest = xxhash.xxh3_64()
        fd = self._open(directory, name, version, direct=False)
        with mmap.mmap(-1, _DIGEST_BYTES) as room, memoryview(room) as into:
            try:
                os.posix_fadvise(fd, extent.start, extent.size, os.POSIX_FADV_DONTNEED)
                self._check(fd, version)
                for start in range(extent.start, extent.end, _DIGEST_BYTES):
                    part = Extent(start, min(start + _DIGEST_BYTES, extent.end))
                    self._fill(fd, part, into)
                    digest.update(into[: part.size])
                self._check(fd, version)
                os.posix_fadvise(fd, extent.start, extent.size, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)
        return digest.intdigest()

    def _fill(self, fd: int, extent: Extent, into: memoryview) -> int:
        wanted, done, reads = extent.size, 0, 0
        length = -(-wanted // _PAGE_BYTES) * _PAGE_BYTES
        while done < wanted:
            got = os.preadv(fd, [into[done:length]], extent.start + done)
            reads += 1
            if got == 0:
                # The file ends before its size says so: it shrank, or the client's attributes are old. The next try
                # opens it anew and will see which.
                raise OSError(errno.EIO, "the file ends early")
            done += got
            if done < wanted and done % _PAGE_BYTES:
                done -= done % _PAGE_BYTES  # a short read must be taken up at a page for O_DIRECT
                if got < _PAGE_BYTES:
                    raise OSError(errno.EIO, "the source gives less than a page at a time")
        return reads

    def _open(self, directory: bytes, name: bytes, version: Version, *, direct: bool) -> int:
        """A descriptor of a file on the file system of `version`: on another one, mounted there since, there may be a
        file of the same inode number, size and times."""
        where = self._directories.get(directory)
        try:
            fd = os.open(name, _OPEN | (os.O_DIRECT if direct else 0), dir_fd=where.fd)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESTALE):
                self._directories.forget(directory)
                raise VersionChanged(f"{show(directory, name)} has gone from the source") from error
            if error.errno != errno.EINVAL or not direct:
                raise
            self.direct = False
            fd = os.open(name, _OPEN, dir_fd=where.fd)
        try:
            same_device = place(fd).device == where.device
            file_system = where.file_system if same_device else self._file_systems.of(fd)[1]
            found = version._replace(source_id=file_system or self._file_systems.root.id)
            if self._rewritten.name(found) != version.source_id:
                raise VersionChanged(f"{show(directory, name)} lies on another file system now, or was written twice")
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _check(self, fd: int, version: Version) -> None:
        mode, inode, size, mtime_ns, ctime_ns = identity(fd)
        if not stat.S_ISREG(mode) or (inode, size, mtime_ns, ctime_ns) != version[1:]:
            raise VersionChanged("the file has changed at the source")

    def _take(self, version: Version) -> int | None:
        with self._lock:
            for key in self._idle:
                if key[0] == version:
                    del self._idle[key]
                    return key[1]
        return None

    def _keep(self, version: Version, fd: int) -> None:
        with self._lock:
            self._idle[(version, fd)] = None
            out = [self._idle.popitem(last=False)[0][1] for _ in range(len(self._idle) - self._at_most)]
        for old in out:
            os.close(old)


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


def show(directory: bytes, name: bytes) -> str:
    """A path for a message: below the source, undecodable bytes escaped."""
    joined = b"/".join(part for part in (directory, name) if part) or b"."
    return joined.decode("utf-8", "backslashreplace")
