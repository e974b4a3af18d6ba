"""The source: the only file that opens, stats or lists anything below SOURCE.

Every path is reached from one directory descriptor taken before the mount was made (so MOUNTPOINT may lie on SOURCE,
and a file system that unmounts itself is an error, not an empty data set), beneath it and through no symlink: a
directory is opened by `beneath`, a name in it with O_NOFOLLOW. Callers name a file by its directory's path and its
name.

A read is one large request: page-aligned, O_DIRECT for files of several chunks where the source takes it, since a
buffered 8 MiB read reaches a FUSE or network source as 128 KiB requests (8 MiB: 64 requests buffered, 8 direct). Each
read checks the version before and after; bytes that may be of two versions are never returned. Blocking work runs in
`source_threads`. The source is never written to.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal

from mountd.attributes import Attributes
from mountd.beneath import open_directory
from mountd.errors import VersionChanged
from mountd.identity import is_local
from mountd.listing import Listing
from mountd.metrics import Metrics
from mountd.source_listing import DirectoryReader
from mountd.source_small import Progress, SmallRead, has_devices, read_files
from mountd.source_threads import SourceThreads
from mountd.statx import identity, stat_cached
from mountd.version import Version
from policies.geometry import Extent

__all__ = ["Source"]

_PAGE_BYTES = 4096
"""What O_DIRECT wants of offset, length and memory everywhere we know of."""

_MAX_DIRECTORIES = 1024
"""Directory descriptors kept: the 1 000 classes of ImageNet fit."""

_MAX_IDLE_FILES = 128
"""Source descriptors kept between the chunks of large files. An open costs 2 ms on a busy Lustre."""

_MAX_ORDERS = 128
"""Files whose last read is remembered, to tell whether the next one is in order: as many as have idle descriptors."""

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""O_NONBLOCK: a file that became a FIFO under our hands must not hang the thread; it means nothing for regular
files."""

_MIN_STATS, _MAX_STATS = 4, 512
"""Names that one thread stats one after the other."""

_MAX_NAMED_LINKS = 20


class _Directory:
    """An O_PATH descriptor, closed when nobody holds it any more: a thread in the middle of a call keeps it alive."""

    __slots__ = ("__weakref__", "expires_s", "fd")

    def __init__(self, fd: int, expires_s: float) -> None:
        self.fd = fd
        self.expires_s = expires_s

    def __del__(self) -> None:
        os.close(self.fd)


class Source:
    """The shared file system below one directory. Async methods belong to the event loop."""

    def __init__(
        self,
        root_fd: int,
        path: str,
        source_id: str,
        threads: SourceThreads,
        metrics: Metrics,
        *,
        ttl_s: float,
        direct: Literal["auto", "on", "off"] = "auto",
        large_bytes: int,
    ) -> None:
        """`root_fd`: descriptor of SOURCE, owned from now on. Files above `large_bytes` are read with O_DIRECT."""
        self.path = path
        self.source_id = source_id
        self.threads = threads
        self.direct = direct != "off"
        self.absolute_links: list[str] = []
        self.absolute_link_count = 0
        self._root = _Directory(root_fd, float("inf"))
        self._has_devices = has_devices(root_fd)
        self._local_device = os.fstat(root_fd).st_dev if is_local(root_fd) else None
        self._metrics = metrics
        self._ttl_s = ttl_s
        self._large_bytes = large_bytes
        self._lock = threading.Lock()
        self._directories: OrderedDict[bytes, _Directory] = OrderedDict()
        self._stat_s = 0.001
        self._idle: OrderedDict[tuple[Version, int], None] = OrderedDict()
        self._last_ends: OrderedDict[Version, int] = OrderedDict()

    def close(self) -> None:
        """Close every descriptor that no stuck thread still uses."""
        with self._lock:
            idle, self._idle = list(self._idle), OrderedDict()
            self._directories.clear()
        for _, fd in idle:
            os.close(fd)

    # -- metadata -----------------------------------------------------------------------------------------------------

    async def stat(self, directory: bytes, name: bytes, *, limit_s: float | None = None) -> Attributes:
        """Attributes of `name` in `directory`; symlinks are not followed; empty name: the directory itself.

        Raises SourceError (ENOENT and the rest as the source says), SourceTimeout after `limit_s` or the general limit.
        """
        self._metrics.add("source_stats")
        return await self.threads.call(
            "metadata", f"stat of {_show(directory, name)}", self._stat, directory, name, limit_s=limit_s
        )

    def stat_nowait(self, directory: bytes, name: bytes) -> Attributes | None:
        """As `stat`, where the source is a local file system and the kernel knows the answer; else None."""
        if self._local_device is None:
            return None
        where = self._root if not directory else self._directories.get(directory)
        if where is None or where.expires_s <= time.monotonic():
            return None
        attributes = stat_cached(where.fd, name)
        if attributes is None or attributes.device != self._local_device:
            return None  # of a file system mounted below it nothing is known
        self._metrics.add("source_stats")
        return attributes

    async def stats(self, directory: bytes, names: Sequence[bytes]) -> list[Attributes | None]:
        """Attributes of several names in one thread, one after the other; None for a name that has gone meanwhile."""
        self._metrics.add("source_stats", len(names))
        return await self.threads.call("metadata", f"stat in {_show(directory, b'')}", self._stats, directory, names)

    @property
    def stats_at_once(self) -> int:
        """How many names one thread should stat: as many as take some 16 ms, a hundred times what a thread hop costs.

        A Lustre with 1 ms a stat gets 16 names a thread and many threads; a fast source one thread and no contention.
        """
        return max(_MIN_STATS, min(_MAX_STATS, int(0.016 / max(self._stat_s, 1e-6))))

    async def listing(self, directory: bytes, inode: int, listing: Listing) -> None:
        """Put the names in `directory`, without . and .., into `listing` as they come.

        Raises VersionChanged if its inode is no longer `inode`, and as `stat`; `listing` then has the names before.
        """
        self._metrics.add("source_listings")
        what = f"listing of {_show(directory, b'')}"
        reader, records = await self.threads.call("metadata", what, self._open_listing, directory, inode)
        listing.append(records)
        while not reader.ended:
            listing.append(await self.threads.call("metadata", what, reader.read))

    async def readlink(self, directory: bytes, name: bytes) -> bytes:
        """The target of a symlink, as it stands."""
        self._metrics.add("source_stats")
        target = await self.threads.call(
            "metadata", f"readlink {_show(directory, name)}", self._readlink, directory, name
        )
        root = os.fsencode(self.path)
        if target == root or target.startswith(root.rstrip(b"/") + b"/"):
            shown = _show(directory, name)
            if shown not in self.absolute_links:
                self.absolute_link_count += 1
                if len(self.absolute_links) < _MAX_NAMED_LINKS:
                    self.absolute_links.append(shown)
        return target

    async def xattr(self, directory: bytes, name: bytes, attribute: bytes) -> bytes:
        """One extended attribute; SourceError with ENODATA if it is not there."""
        self._metrics.add("source_stats")
        return await self.threads.call(
            "metadata", f"xattr of {_show(directory, name)}", self._xattr, directory, name, attribute
        )

    async def xattrs(self, directory: bytes, name: bytes) -> list[bytes]:
        """The names of all extended attributes."""
        self._metrics.add("source_stats")
        return await self.threads.call("metadata", f"xattrs of {_show(directory, name)}", self._xattrs, directory, name)

    @property
    def root_fd(self) -> int:
        """The open root."""
        return self._root.fd

    @property
    def root_inode(self) -> int:
        """st_ino of the root, the same on every node."""
        return os.fstat(self._root.fd).st_ino

    async def statvfs(self) -> os.statvfs_result:
        """Size and room of the source."""
        self._metrics.add("source_stats")
        return await self.threads.call("metadata", "statvfs of the source", os.statvfs, self._root.fd)

    def _directory(self, path: bytes) -> _Directory:
        """In a thread: the descriptor of a directory, kept for the time-to-live of attributes."""
        if not path:
            return self._root
        now_s = time.monotonic()
        with self._lock:
            held = self._directories.get(path)
            if held is not None and held.expires_s > now_s:
                self._directories.move_to_end(path)
                return held
        fresh = _Directory(open_directory(self._root.fd, path), now_s + self._ttl_s)
        with self._lock:
            self._directories[path] = fresh
            while len(self._directories) > _MAX_DIRECTORIES:
                self._directories.popitem(last=False)
        return fresh

    def forget_directory(self, path: bytes) -> None:
        """The directory at `path` is another one now: open it and all below it anew next time. Any thread."""
        below = path + b"/"
        with self._lock:
            self._directories.pop(path, None)
            for known in [known for known in self._directories if known.startswith(below)]:
                del self._directories[known]

    def _stat(self, directory: bytes, name: bytes) -> Attributes:
        where = self._directory(directory)
        try:
            if not name:
                return Attributes.of(os.fstat(where.fd))
            return Attributes.of(os.stat(name, dir_fd=where.fd, follow_symlinks=False))
        except OSError as error:
            if not directory or not self._is_gone(where, error):
                raise
        # The directory that we have open was removed; another one may stand in its place.
        self.forget_directory(directory)
        return Attributes.of(os.stat(name or b".", dir_fd=self._directory(directory).fd, follow_symlinks=False))

    def _is_another(self, directory: bytes) -> bool:
        """True if the path leads to a directory with links, which the one we had open has not; some sources never count
        them."""
        self.forget_directory(directory)
        return os.fstat(self._directory(directory).fd).st_nlink > 0

    def _is_gone(self, where: _Directory, error: OSError) -> bool:
        try:
            return error.errno == errno.ESTALE or (error.errno == errno.ENOENT and os.fstat(where.fd).st_nlink == 0)
        except OSError:
            return True

    def _stats(self, directory: bytes, names: Sequence[bytes]) -> list[Attributes | None]:
        found: list[Attributes | None] = []
        start_s = time.monotonic()
        for name in names:
            try:
                found.append(self._stat(directory, name))
            except FileNotFoundError:
                found.append(None)
        each_s = (time.monotonic() - start_s) / max(1, len(names))
        self._stat_s += (each_s - self._stat_s) / 4  # threads may overwrite each other's: it is an estimate
        return found

    def _open_listing(self, directory: bytes, inode: int) -> tuple[DirectoryReader, bytes]:
        where = self._directory(directory)
        fd = os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=where.fd)
        reader = DirectoryReader(fd)
        found = os.fstat(fd)
        if directory and (found.st_ino != inode or (found.st_nlink == 0 and self._is_another(directory))):
            self.forget_directory(directory)
            raise VersionChanged(f"{_show(directory, b'')}: another directory stands here now")
        return reader, reader.read()

    def _readlink(self, directory: bytes, name: bytes) -> bytes:
        return os.readlink(name, dir_fd=self._directory(directory).fd)

    def _by_descriptor(self, where: _Directory, name: bytes) -> bytes:
        """A path whose only link is the kernel's own to our descriptor; xattr calls take no dir_fd."""
        return b"/proc/self/fd/%d/%s" % (where.fd, name or b".")

    def _xattr(self, directory: bytes, name: bytes, attribute: bytes) -> bytes:
        where = self._directory(directory)
        return os.getxattr(self._by_descriptor(where, name), attribute, follow_symlinks=False)

    def _xattrs(self, directory: bytes, name: bytes) -> list[bytes]:
        where = self._directory(directory)
        return [os.fsencode(a) for a in os.listxattr(self._by_descriptor(where, name), follow_symlinks=False)]

    # -- data ---------------------------------------------------------------------------------------------------------

    async def read(
        self, directory: bytes, name: bytes, version: Version, extent: Extent, into: memoryview, *, urgent: bool
    ) -> None:
        """Fill `into[:extent.size]` with the bytes of `extent`, all of `version`.

        `into` is page-aligned and holds `extent.size` rounded up to whole pages (the rest is scratch); `extent` starts
        at a page. Raises VersionChanged, SourceError, SourceTimeout; then the contents of `into` mean nothing.
        """
        if version.size > self._large_bytes:
            self._count_large(version, extent)
        calls = await self.threads.call(
            "demand" if urgent else "prefetch",
            f"read of {_show(directory, name)} at {extent.start}",
            self._read,
            directory,
            name,
            version,
            extent,
            into,
        )
        opened, reads = calls
        self._metrics.add("source_opens", opened)
        self._metrics.add("source_reads", reads)
        self._metrics.add("source_read_bytes", extent.size)

    def _count_large(self, version: Version, extent: Extent) -> None:
        """How large our requests are and in which order they leave is what a parallel file system's disks see."""
        self._metrics.add("source_large_reads")
        self._metrics.add("source_large_read_bytes", extent.size)
        if extent.start >= self._last_ends.get(version, 0):
            self._metrics.add("source_large_reads_ordered")
        self._last_ends[version] = extent.end
        if len(self._last_ends) > _MAX_ORDERS:
            self._last_ends.popitem(last=False)

    async def read_small(
        self, places: Sequence[tuple[bytes, bytes]], into: memoryview, progress: Progress, *, limit_bytes: int
    ) -> list[SmallRead]:
        """Whole files of at most `limit_bytes`, one after the other, into `into`; see `source_small.read_files`.

        Without what earlier look-ups said: the attributes are those of the open file, and its bytes are of that one
        version. `places`: (directory, name). Fewer answers than places: `into` was full, or `progress` told it to
        hurry. What ails one file is in its answer. Raises SourceTimeout, SourceError.
        """
        found = await self.threads.call(
            "prefetch",
            f"read of {len(places)} small files from {_show(*places[0])} on",
            self._read_small,
            places,
            into,
            progress,
            limit_bytes,
        )
        whole = [read for read in found if read.data is not None]
        self._metrics.add("source_opens", len(found))
        self._metrics.add("source_reads", len(whole))
        self._metrics.add("source_read_bytes", sum(len(read.data) for read in whole if read.data is not None))
        return found

    def _read_small(
        self, places: Sequence[tuple[bytes, bytes]], into: memoryview, progress: Progress, limit_bytes: int
    ) -> list[SmallRead]:
        held: dict[bytes, _Directory] = {}  # they stay open until the end
        missing: set[bytes] = set()
        for directory in {directory for directory, _ in places}:
            try:
                held[directory] = self._directory(directory)
            except OSError:
                missing.add(directory)  # whoever looks a file of it up is told what ails it
        descriptors = [-1 if directory in missing else held[directory].fd for directory, _ in places]
        return read_files(
            descriptors, [name for _, name in places], into, progress, limit_bytes, careful=self._has_devices
        )

    def release(self, version: Version) -> None:
        """The last handle of `version` is closed: its idle source descriptors go. Any thread; never blocks: a close may
        ask the source (Lustre, NFS and FUSE do), which may hang, and this is called on the event loop."""
        with self._lock:
            mine = [key for key in self._idle if key[0] == version]
            for key in mine:
                del self._idle[key]
        if mine:
            threading.Thread(target=_close_all, args=([fd for _, fd in mine],), daemon=True).start()

    @property
    def idle_files(self) -> int:
        """Source descriptors kept open between reads."""
        return len(self._idle)

    def _read(
        self, directory: bytes, name: bytes, version: Version, extent: Extent, into: memoryview
    ) -> tuple[int, int]:
        large = version.size > self._large_bytes
        fd, opened = self._take(version), 0
        if fd is None:
            fd, opened = self._open(directory, name, direct=large and self.direct), 1
        keep = False
        try:
            self._check(fd, version)
            try:
                reads = self._fill(fd, extent, into)
            except OSError as error:
                if error.errno != errno.EINVAL or not self.direct:
                    raise
                self.direct = False  # the file system opens with O_DIRECT and then refuses the read
                buffered = self._open(directory, name, direct=False)
                os.close(fd)
                fd, opened = buffered, opened + 1
                self._check(fd, version)
                reads = self._fill(fd, extent, into)
            self._check(fd, version)
            keep = large
            if not large or not self.direct:
                # Read once and staged: these pages would only push out others.
                os.posix_fadvise(fd, extent.start, extent.size, os.POSIX_FADV_DONTNEED)
            return opened, reads
        finally:
            if keep:
                self._keep(version, fd)
            else:
                os.close(fd)
                if large:
                    self.release(version)  # what ails this descriptor ails its brothers; the next try opens a new one

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

    def _open(self, directory: bytes, name: bytes, *, direct: bool) -> int:
        where = self._directory(directory)
        try:
            return os.open(name, _OPEN | (os.O_DIRECT if direct else 0), dir_fd=where.fd)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESTALE):
                self.forget_directory(directory)
                raise VersionChanged(f"{_show(directory, name)} has gone from the source") from error
            if error.errno != errno.EINVAL or not direct:
                raise
        self.direct = False
        return os.open(name, _OPEN, dir_fd=where.fd)

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
            out = [self._idle.popitem(last=False)[0][1] for _ in range(len(self._idle) - _MAX_IDLE_FILES)]
        for old in out:
            os.close(old)


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


def _show(directory: bytes, name: bytes) -> str:
    """A path for a message: below the source, undecodable bytes escaped."""
    joined = b"/".join(part for part in (directory, name) if part) or b"."
    return joined.decode("utf-8", "backslashreplace")
