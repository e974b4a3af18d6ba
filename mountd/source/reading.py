"""Reading one file of the source, a large request at a time: open beneath its directory, look, read, look again.

What is looked for is the version: bytes that may be of two of them are never returned, nor those of a file on another
file system, mounted there since. Who reads the end of a file looks behind it too: one that has more bytes than it says
(documents that are made when they are read, files that are decompressed) would be cut. One that says that it has none
(procfs and its like) is read as it is, again each time.
O_DIRECT for files of several chunks where the source takes it, since a buffered 8 MiB read reaches a FUSE or network
source as 128 KiB requests.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import logging
import mmap
import os
import stat
import time
from collections import OrderedDict
from typing import NamedTuple

import xxhash

from hfs.mountd.core.attributes import Version
from hfs.mountd.core.errors import SourceError, VersionChanged
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.native.statx import identity, place
from hfs.mountd.source.descriptors import OPEN_TO_READ, Directories, IdleFiles, show
from hfs.mountd.source.file_systems import FileSystems
from hfs.mountd.source.second_looks import SecondLooks, Seen
from hfs.mountd.source.threads import SourceThreads
from hfs.policies.geometry import Extent

log = logging.getLogger(__name__)

_PAGE_BYTES = 4096
"""What O_DIRECT wants of offset, length and memory everywhere we know of."""

_DIGEST_BYTES = 1 << 20
"""Memory of a second look."""

_MAX_ORDERS = 128
"""Files whose last read is remembered, to tell whether the next one is in order: as many as have idle descriptors."""


_LAST_OFFSET = (1 << 63) - 1

_MAX_EXTENTS = 1 << 16
"""Of the data of a sparse file: what lies behind so many counts as data."""


class Done(NamedTuple):
    """What a read took."""

    opened: int
    """Descriptors that were opened."""
    reads: int
    at_ns: int
    """When it began, by time.monotonic_ns."""
    digest: int | None
    """xxh3_64 of its bytes, where the tick of their ctime may not have been over by then."""
    more: bool
    """There are bytes behind the end that the file says."""


@dataclasses.dataclass(eq=False)
class FileReader:
    """Implements `second_looks.Rereader`. Event loop only; what blocks runs in a thread."""

    directories: Directories
    file_systems: FileSystems
    second_looks: SecondLooks
    idle_files: IdleFiles
    threads: SourceThreads
    metrics: Metrics
    _: dataclasses.KW_ONLY
    direct: bool
    """Whether the source takes O_DIRECT, as far as is known."""
    large_bytes: int
    """Files above are read with O_DIRECT, if `direct`, and their descriptors kept."""
    _last_ends: OrderedDict[Version, int] = dataclasses.field(init=False, default_factory=OrderedDict)
    _sparse: tuple[Version, bool] | None = dataclasses.field(init=False, default=None)
    """Whether the file that was asked about last has holes."""
    wrong_sizes: int = dataclasses.field(init=False, default=0)
    """Reads of files that have more bytes than they say."""
    _told = False

    async def read(
        self, directory: bytes, name: bytes, version: Version, extent: Extent, into: memoryview, *, urgent: bool
    ) -> None:
        """Fill `into[:extent.size]` with the bytes of `extent`, all of `version`.

        `into` is page-aligned and holds `extent.size` rounded up to whole pages (the rest is scratch); `extent` starts
        at a page. Raises VersionChanged, SourceError, SourceTimeout; then the contents of `into` mean nothing.
        """
        if version.size > self.large_bytes:
            self._count_large(version, extent)
        done: Done = await self.threads.call(
            "demand" if urgent else "prefetch",
            f"read of {show(directory, name)} at {extent.start}",
            self._read,
            directory,
            name,
            version,
            extent,
            into,
            directory=directory,
        )
        if done.more:
            self._tell(directory, name, version)
            raise SourceError(errno.EIO, f"{show(directory, name)} gives more bytes than it says")
        if done.digest is not None:
            self.second_looks.add(version, Seen(directory, name, extent, done.digest, done.at_ns))
        self.metrics.add("source_opens", done.opened)
        self.metrics.add("source_reads", done.reads)
        self.metrics.add("source_read_bytes", extent.size if done.reads else 0)

    async def digest(self, directory: bytes, name: bytes, version: Version, extent: Extent) -> int:
        """xxh3_64 of the bytes of `extent` as they are now, past what the client remembers. Raises as `read`."""
        what = f"second read of {show(directory, name)} at {extent.start}"
        digest: int = await self.threads.call("prefetch", what, self._digest, directory, name, version, extent)
        self.metrics.add("source_opens")
        self.metrics.add("source_reads")
        self.metrics.add("source_read_bytes", extent.size)
        return digest

    async def gives_bytes(self, directory: bytes, name: bytes, version: Version) -> bool:
        """Whether a file that says that it has no bytes gives some. Raises as `read`."""
        what = f"look into {show(directory, name)}"
        got: bytes = await self.threads.call(
            "demand", what, self._read_unsized, directory, name, version, 0, 1, True, directory=directory
        )
        if got:
            self._tell(directory, name, version)
        return bool(got)

    async def read_unsized(self, directory: bytes, name: bytes, version: Version, offset: int, size: int) -> bytes:
        """What such a file gives there just now; fewer bytes only at its end. Raises as `read`."""
        what = f"read of {show(directory, name)} at {offset}"
        got: bytes = await self.threads.call(
            "demand", what, self._read_unsized, directory, name, version, offset, size, False, directory=directory
        )
        self.metrics.add("source_opens")
        self.metrics.add("source_reads")
        self.metrics.add("source_read_bytes", len(got))
        return got

    def _read_unsized(
        self, directory: bytes, name: bytes, version: Version, offset: int, size: int, is_look: bool
    ) -> bytes:
        fd = self._open(directory, name, version, direct=False)
        try:
            if is_look:
                self._check(fd, version)
            elif identity(fd)[1:3] != version[1:3]:  # its times may be those of its last read
                raise VersionChanged("the file has changed at the source")
            parts, done = [], 0
            while done < size and (part := os.pread(fd, size - done, offset + done)):
                parts.append(part)
                done += len(part)
            if is_look:
                self._check(fd, version)  # it may be growing
            return b"".join(parts)
        finally:
            os.close(fd)

    def _tell(self, directory: bytes, name: bytes, version: Version) -> None:
        """Of files that have more bytes than they say, counted, and the first named."""
        self.wrong_sizes += 1
        if not self._told:
            self._told = True
            what = "is read as it is, and not cached" if not version.size else "cannot be read to its end"
            log.warning("%s gives more than the %d bytes it says: it %s", show(directory, name), version.size, what)

    async def data(self, directory: bytes, name: bytes, version: Version) -> tuple[list[Extent], bool]:
        """Where the file system says that its bytes are not all zeros, ascending, none touch; and whether the tick of
        its ctime was over before it was asked: if not, that may be so no more. Raises as `read`."""
        what, at_ns = f"holes of {show(directory, name)}", time.monotonic_ns()
        found: list[Extent] = await self.threads.call(
            "demand", what, self._data, directory, name, version, directory=directory
        )
        self.metrics.add("source_opens")
        return found, self.is_over(version, at_ns)

    def is_over(self, version: Version, at_ns: int) -> bool:
        """Whether the tick of its ctime was over at `at_ns` (time.monotonic_ns), for all that is known now."""
        return self.file_systems.clock(version.source_id).is_over(version.ctime_ns, at_ns)

    def _count_large(self, version: Version, extent: Extent) -> None:
        """How large our requests are and in which order they leave is what a parallel file system's disks see."""
        self.metrics.add("source_large_reads")
        self.metrics.add("source_large_read_bytes", extent.size)
        if extent.start >= self._last_ends.get(version, 0):
            self.metrics.add("source_large_reads_ordered")
        self._last_ends[version] = extent.end
        if len(self._last_ends) > _MAX_ORDERS:
            self._last_ends.popitem(last=False)

    def _read(self, directory: bytes, name: bytes, version: Version, extent: Extent, into: memoryview) -> Done:
        at_ns = time.monotonic_ns()
        is_over = self.is_over(version, at_ns)
        large = version.size > self.large_bytes
        fd, opened = self.idle_files.take(version), 0
        if fd is None:
            fd, opened = self._open(directory, name, version, direct=large and self.direct), 1
        keep = False
        try:
            self._check(fd, version)
            try:
                if large and self._is_hole(fd, version, extent, into):
                    into[: extent.size] = bytes(extent.size)
                    reads, more = 0, False
                else:
                    reads, more = self._fill(fd, extent, into)
            except OSError as error:
                if error.errno != errno.EINVAL or not self.direct:
                    raise
                self.direct = False  # the file system opens with O_DIRECT and then refuses the read
                buffered = self._open(directory, name, version, direct=False)
                os.close(fd)
                fd, opened = buffered, opened + 1
                self._check(fd, version)
                reads, more = self._fill(fd, extent, into)
            if extent.end == version.size and reads and not extent.end % _PAGE_BYTES:
                more = self._has_more(fd, version.size)  # else the last page has told
            self._check(fd, version)
            keep = large
            if not large or not self.direct:
                # Read once and staged: these pages would only push out others.
                os.posix_fadvise(fd, extent.start, extent.size, os.POSIX_FADV_DONTNEED)
            digest = None if is_over else xxhash.xxh3_64_intdigest(into[: extent.size])
            return Done(opened, reads, at_ns, digest, more and extent.end == version.size)
        finally:
            if keep:
                self.idle_files.keep(version, fd)
            else:
                os.close(fd)
                if large:
                    self.idle_files.release(version)  # they have the same fault; the next try opens a new one

    def _is_hole(self, fd: int, version: Version, extent: Extent, into: memoryview) -> bool:
        """Whether the file system says that there is nothing in it but zeros. Only files with far fewer blocks than
        bytes are asked about."""
        sparse = self._sparse
        if sparse is None or sparse[0] != version:
            self._sparse = sparse = version, os.fstat(fd).st_blocks * 512 < version.size - self.large_bytes
        if not sparse[1]:
            return False
        try:
            return os.lseek(fd, extent.start, os.SEEK_DATA) >= extent.end
        except OSError as error:
            # No data from there to the end, if it has as many bytes as it says; else it cannot tell.
            return error.errno == errno.ENXIO and self._reaches(fd, version.size, into)

    def _data(self, directory: bytes, name: bytes, version: Version) -> list[Extent]:
        found: list[Extent] = []
        fd = self._open(directory, name, version, direct=False)
        try:
            self._check(fd, version)
            end = 0
            while end < version.size:
                try:
                    start = os.lseek(fd, end, os.SEEK_DATA)
                    end = min(os.lseek(fd, start, os.SEEK_HOLE), version.size)
                except OSError as error:
                    page = memoryview(bytearray(_PAGE_BYTES))
                    if error.errno != errno.ENXIO or not self._reaches(fd, version.size, page):
                        return [Extent(0, version.size)]  # it cannot tell
                    break
                if found and start == found[-1].end:
                    start = found.pop().start
                if len(found) == _MAX_EXTENTS:
                    end = version.size
                found.append(Extent(start, end))
            self._check(fd, version)
        finally:
            os.close(fd)
        return found

    @staticmethod
    def _reaches(fd: int, size: int, into: memoryview) -> bool:
        """Whether the last byte of a file of this size is there."""
        start = (size - 1) // _PAGE_BYTES * _PAGE_BYTES
        return os.preadv(fd, [into[:_PAGE_BYTES]], start) >= size - start

    def _digest(self, directory: bytes, name: bytes, version: Version, extent: Extent) -> int:
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

    def _fill(self, fd: int, extent: Extent, into: memoryview) -> tuple[int, bool]:
        """How many reads it took, and whether the last page of it went on."""
        wanted, done, reads = extent.size, 0, 0
        length = -(-wanted // _PAGE_BYTES) * _PAGE_BYTES
        while done < wanted:
            got = os.preadv(fd, [into[done:length]], extent.start + done)
            reads += 1
            if got == 0:
                # The file ends before its size says so: it shrank, or the client's attributes are old. The next try
                # opens it anew and will see which.
                raise OSError(errno.EIO, "the file ends early")
            if done + got < wanted and (done + got) % _PAGE_BYTES and _is_direct(fd):
                got -= (done + got) % _PAGE_BYTES  # a short read must be taken up at a page
                if got <= 0:
                    raise OSError(errno.EINVAL, "the source gives less than a page at a time")
            done += got
        return reads, done > wanted

    def _has_more(self, fd: int, size: int) -> bool:
        """Whether there are bytes behind the end that the file says, where that is the end of a page."""
        if size + _PAGE_BYTES > _LAST_OFFSET:
            return False  # no file has, and the system call would be refused
        with mmap.mmap(-1, _PAGE_BYTES) as room:
            return os.preadv(fd, [room], size) > 0

    def _open(self, directory: bytes, name: bytes, version: Version, *, direct: bool) -> int:
        """A descriptor of a file on the file system of `version`: on another one, mounted there since, there may be a
        file of the same inode number, size and times."""
        where = self.directories.get(directory)
        try:
            fd = os.open(name, OPEN_TO_READ | (os.O_DIRECT if direct else 0), dir_fd=where.fd)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESTALE):
                self.directories.forget(directory)
                raise VersionChanged(f"{show(directory, name)} has gone from the source") from error
            if error.errno != errno.EINVAL or not direct:
                raise
            self.direct = False
            fd = os.open(name, OPEN_TO_READ, dir_fd=where.fd)
        try:
            same_device = place(fd).device == where.device
            file_system = where.file_system if same_device else self.file_systems.of(fd)[1]
            found = version._replace(source_id=file_system or self.file_systems.root.id)
            if self.second_looks.rewritten.name(found) != version.source_id:
                raise VersionChanged(f"{show(directory, name)} lies on another file system now, or was written twice")
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _check(self, fd: int, version: Version) -> None:
        mode, inode, size, mtime_ns, ctime_ns = identity(fd)
        if not stat.S_ISREG(mode) or (inode, size, mtime_ns, ctime_ns) != version[1:]:
            raise VersionChanged("the file has changed at the source")


def _is_direct(fd: int) -> bool:
    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)
