"""The source: the only file that opens, stats or lists anything below SOURCE.

Every path is reached from one directory descriptor taken before the mount was made (so MOUNTPOINT may lie on SOURCE,
and a file system that unmounts itself is an error, not an empty data set), beneath it and through no symlink: a
directory is opened by `beneath`, a name in it with O_NOFOLLOW. Callers name a file by its directory's path and its
name.

A read is one large request of one version (`source.reading`); small files are read many at a time (`source.small`).
Blocking work runs in `source.threads`. The source is never written to.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Literal

import xxhash

from mountd.base.attributes import Attributes
from mountd.base.errors import SourceTimeout, VersionChanged
from mountd.base.version import Version, stored_ns
from mountd.core.metrics import Metrics
from mountd.native.statx import InodePlace, stat_cached
from mountd.source import xattrs as source_xattrs
from mountd.source.directories import Directories, OpenDirectory
from mountd.source.doubts import Doubts, Seen
from mountd.source.file_systems import FileSystems
from mountd.source.identity import is_local
from mountd.source.kind import FileSystemSeen, look_at
from mountd.source.listing import Listing
from mountd.source.listings import DirectoryReader
from mountd.source.reading import Done, Reading, show
from mountd.source.small import BatchProgress, SmallRead, has_devices, read_files
from mountd.source.threads import SourceThreads
from policies.geometry import Extent

__all__ = ["Source"]

_MAX_ORDERS = 128
"""Files whose last read is remembered, to tell whether the next one is in order: as many as have idle descriptors."""

_MIN_STATS, _MAX_STATS = 4, 512
"""Names that one thread stats one after the other."""

_MAX_NAMED_LINKS = 20

_MEET_LIMIT_S = 2.0
"""As a stat that keeps somebody waiting."""


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
        open_files = threads.open_files
        self.path = path
        self.source_id = source_id
        self.threads = threads
        self.absolute_links: list[str] = []
        self.absolute_link_count = 0
        self.file_systems = FileSystems(root_fd, source_id, os.fsencode(path), immutable=ttl_s == math.inf)
        self._directories = Directories(root_fd, self.file_systems, ttl_s, open_files.shares.directories)
        self._root = self._directories.root
        self._has_devices = has_devices(root_fd)
        self._local_device = os.fstat(root_fd).st_dev if is_local(root_fd) else None
        self._metrics = metrics
        self._large_bytes = large_bytes
        self._stat_s = 0.001
        self.doubts = Doubts(metrics, ttl_s=ttl_s)
        self._reading = Reading(
            self._directories,
            self.file_systems,
            self.doubts.rewritten,
            direct=direct != "off",
            large_bytes=large_bytes,
            at_most=open_files.shares.idle_files,
        )
        open_files.add(self._directories.let_go)
        open_files.add(self._reading.let_go)
        self._last_ends: OrderedDict[Version, int] = OrderedDict()

    def close(self) -> None:
        """Close every descriptor that no stuck thread still uses."""
        self._reading.close()
        self._directories.close()
        self.file_systems.close()

    # -- metadata -----------------------------------------------------------------------------------------------------

    async def stat(self, directory: bytes, name: bytes, *, limit_s: float | None = None) -> Attributes:
        """Attributes of `name` in `directory`; symlinks are not followed; empty name: the directory itself.

        Raises SourceError (ENOENT and the rest as the source says), SourceTimeout after `limit_s` or the general limit.
        """
        self._metrics.add("source_stats")
        return await self.threads.call(
            "metadata",
            f"stat of {show(directory, name)}",
            self._stat,
            directory,
            name,
            directory=directory,
            limit_s=limit_s,
        )

    def stat_nowait(self, directory: bytes, name: bytes) -> Attributes | None:
        """As `stat`, where the source is a local file system and the kernel knows the answer; else None."""
        if self._local_device is None:
            return None
        where = self._directories.get_nowait(directory)
        if where is None:
            return None
        attributes = stat_cached(where.fd, name)
        if attributes is None or attributes.device != self._local_device:
            return None  # of a file system mounted below it nothing is known
        self._metrics.add("source_stats")
        return self._named(attributes)

    async def stats(self, directory: bytes, names: Sequence[bytes]) -> list[Attributes | None]:
        """Attributes of several names in one thread, one after the other; None for a name that has gone meanwhile."""
        self._metrics.add("source_stats", len(names))
        what = f"stat in {show(directory, b'')}"
        return await self.threads.call("metadata", what, self._stats, directory, names, directory=directory)

    @property
    def stats_at_once(self) -> int:
        """How many names one thread should stat: as many as take some 16 ms, a hundred times what a thread hop costs.

        A Lustre with 1 ms a stat gets 16 names a thread and many threads; a fast source one thread and no contention.
        """
        return max(_MIN_STATS, min(_MAX_STATS, int(0.016 / max(self._stat_s, 1e-6))))

    async def listing(self, directory: bytes, inode: int, listing: Listing, *, file_system: str = "") -> None:
        """Put the names in `directory`, without . and .., into `listing` as they come.

        Raises VersionChanged if it is no longer `inode` of `file_system` (see `Attributes`), and as `stat`; `listing`
        then has the names before.
        """
        self._metrics.add("source_listings")
        what = f"listing of {show(directory, b'')}"
        reader, records = await self.threads.call(
            "metadata", what, self._open_listing, directory, inode, file_system, directory=directory
        )
        listing.append(records)
        while not reader.ended:
            listing.append(await self.threads.call("metadata", what, reader.read, directory=directory))

    async def readlink(self, directory: bytes, name: bytes, *, limit_s: float | None = None) -> bytes:
        """The target of a symlink, as it stands. `limit_s`: as of `stat`."""
        self._metrics.add("source_stats")
        target = await self.threads.call(
            "metadata",
            f"readlink {show(directory, name)}",
            self._readlink,
            directory,
            name,
            directory=directory,
            limit_s=limit_s,
        )
        root = os.fsencode(self.path)
        if target == root or target.startswith(root.rstrip(b"/") + b"/"):
            shown = show(directory, name)
            if shown not in self.absolute_links:
                self.absolute_link_count += 1
                if len(self.absolute_links) < _MAX_NAMED_LINKS:
                    self.absolute_links.append(shown)
        return target

    async def xattr(
        self,
        directory: bytes,
        name: bytes,
        attribute: bytes,
        *,
        of: Attributes | None = None,
        limit_s: float | None = None,
    ) -> bytes:
        """One extended attribute; SourceError with ENODATA if it is not there. `limit_s`: as of `stat`.

        `of`: only if it is of the inode with these attributes, unchanged since; else VersionChanged.
        """
        self._metrics.add("source_stats")
        return await self.threads.call(
            "metadata",
            f"xattr of {show(directory, name)}",
            self._xattr,
            directory,
            name,
            attribute,
            of,
            directory=directory,
            limit_s=limit_s,
        )

    async def xattrs(self, directory: bytes, name: bytes) -> list[bytes]:
        """The names of all extended attributes."""
        self._metrics.add("source_stats")
        what = f"xattrs of {show(directory, name)}"
        return await self.threads.call("metadata", what, self._xattrs, directory, name, directory=directory)

    async def kind_of(self, directory: bytes, name: bytes, device: int) -> FileSystemSeen:
        """What kind of file system it lies on, which has this st_dev, else VersionChanged. Raises as `stat`."""
        what = f"file system of {show(directory, name)}"
        return await self.threads.call("metadata", what, self._kind_of, directory, name, device, directory=directory)

    @property
    def root_fd(self) -> int:
        """The open root."""
        return self._root.fd

    @property
    def root_inode(self) -> int:
        """st_ino of the root, the same on every node."""
        return os.fstat(self._root.fd).st_ino

    async def ids_below(self) -> set[str]:
        """The identities of all file systems that are mounted at or below SOURCE, or were since the daemon began."""
        what = "look at the file systems below the source"
        with contextlib.suppress(SourceTimeout):  # then those that were met
            await self.threads.call("metadata", what, self.file_systems.meet_all, self._root.fd, limit_s=_MEET_LIMIT_S)
        return {found.id for found in self.file_systems.met()}

    def is_passing(self, path: bytes) -> bool:
        """Whether `path` lies on a file system whose identity only this daemon knows."""
        return any(path == point or path.startswith(point + b"/") for point in self.file_systems.passing)

    async def statvfs(self) -> os.statvfs_result:
        """Size and room of the source."""
        self._metrics.add("source_stats")
        return await self.threads.call("metadata", "statvfs of the source", os.statvfs, self._root.fd)

    def forget_directory(self, path: bytes) -> None:
        """The directory at `path` is another one now: open it and all below it anew next time. Any thread."""
        self._directories.forget(path)

    def _stat(self, directory: bytes, name: bytes) -> Attributes:
        found = self._look_up(directory, name)
        self._saw((found,))
        return self._named(found)

    def _look_up(self, directory: bytes, name: bytes) -> Attributes:
        where = self._directories.get(directory)
        try:
            return self._look(where, name)
        except OSError as error:
            if not directory or not self._is_gone(where, error):
                raise
        # The directory that we have open was removed; another one may stand in its place.
        self.forget_directory(directory)
        return self._look(self._directories.get(directory), name)

    def _look(self, where: OpenDirectory, name: bytes) -> Attributes:
        if not name:
            return Attributes.of(os.fstat(where.fd), where.file_system)
        found = os.stat(name, dir_fd=where.fd, follow_symlinks=False)
        if found.st_dev == where.device:
            return Attributes.of(found, where.file_system)
        # Something is mounted there: what is said of it and which file system it is must be of one moment.
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=where.fd)
        try:
            return Attributes.of(os.fstat(fd), self.file_systems.of(fd)[1])
        finally:
            os.close(fd)

    def _is_another(self, directory: bytes) -> bool:
        """True if the path leads to a directory with links, which the one we had open has not; some sources never count
        them."""
        self.forget_directory(directory)
        return os.fstat(self._directories.get(directory).fd).st_nlink > 0

    def _is_gone(self, where: OpenDirectory, error: OSError) -> bool:
        try:
            return error.errno == errno.ESTALE or (error.errno == errno.ENOENT and os.fstat(where.fd).st_nlink == 0)
        except OSError:
            return True

    def _stats(self, directory: bytes, names: Sequence[bytes]) -> list[Attributes | None]:
        found: list[Attributes | None] = []
        start_s = time.monotonic()
        for name in names:
            try:
                found.append(self._look_up(directory, name))
            except FileNotFoundError:
                found.append(None)
        self._saw(found)
        each_s = (time.monotonic() - start_s) / max(1, len(names))
        self._stat_s += (each_s - self._stat_s) / 4  # threads may overwrite each other's: it is an estimate
        if self.doubts.rewritten:
            return [self._named(attributes) if attributes is not None else None for attributes in found]
        return found

    def _open_listing(self, directory: bytes, inode: int, file_system: str) -> tuple[DirectoryReader, bytes]:
        where = self._directories.get(directory)
        fd = os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=where.fd)
        reader = DirectoryReader(fd)
        found = os.fstat(fd)
        same = found.st_ino == inode and where.file_system == file_system
        if directory and (not same or (found.st_nlink == 0 and self._is_another(directory))):
            self.forget_directory(directory)
            raise VersionChanged(f"{show(directory, b'')}: another directory stands here now")
        return reader, reader.read()

    def _readlink(self, directory: bytes, name: bytes) -> bytes:
        return os.readlink(name, dir_fd=self._directories.get(directory).fd)

    def _kind_of(self, directory: bytes, name: bytes, device: int) -> FileSystemSeen:
        seen = look_at(self._directories.get(directory).fd, name)
        if seen.device != device:
            raise VersionChanged(f"{show(directory, name)} lies on another file system now")
        return seen

    def _xattr(self, directory: bytes, name: bytes, attribute: bytes, of: Attributes | None) -> bytes:
        where = self._directories.get(directory)
        return source_xattrs.value_of(where.fd, name, attribute, of)

    def _xattrs(self, directory: bytes, name: bytes) -> list[bytes]:
        where = self._directories.get(directory)
        return source_xattrs.names_of(where.fd, name)

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
        done: Done = await self.threads.call(
            "demand" if urgent else "prefetch",
            f"read of {show(directory, name)} at {extent.start}",
            self._reading.read,
            directory,
            name,
            version,
            extent,
            into,
            directory=directory,
        )
        if done.digest is not None:
            self.doubts.add(version, Seen(directory, name, extent, done.digest, done.at_ns))
        self._metrics.add("source_opens", done.opened)
        self._metrics.add("source_reads", done.reads)
        self._metrics.add("source_read_bytes", extent.size)

    def is_over(self, version: Version, at_ns: int) -> bool:
        """See `Rereader`."""
        return self.file_systems.clock(version.source_id).is_over(version.ctime_ns, at_ns)

    async def digest(self, directory: bytes, name: bytes, version: Version, extent: Extent) -> int:
        """See `Rereader`."""
        what = f"second read of {show(directory, name)} at {extent.start}"
        digest: int = await self.threads.call("prefetch", what, self._reading.digest, directory, name, version, extent)
        self._metrics.add("source_opens")
        self._metrics.add("source_reads")
        self._metrics.add("source_read_bytes", extent.size)
        return digest

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
        self,
        places: Sequence[tuple[bytes, bytes]],
        into: memoryview,
        progress: BatchProgress,
        *,
        limit_bytes: int,
        urgent: bool = False,
    ) -> list[SmallRead]:
        """Whole files of at most `limit_bytes`, one after the other, into `into`; see `source_small.read_files`.

        Without what earlier look-ups said: the attributes are those of the open file, and its bytes are of that one
        version. `places`: (directory, name). Fewer answers than places: `into` was full, or `progress` told it to
        hurry. What ails one file is in its answer. `urgent`: a reader waits. Raises SourceTimeout, SourceError.
        """
        found, doubts = await self.threads.call(
            "demand" if urgent else "prefetch",
            f"read of {len(places)} small files from {show(*places[0])} on",
            self._read_small,
            places,
            into,
            progress,
            limit_bytes,
            directory=places[0][0],
        )
        for version, seen in doubts:
            self.doubts.add(version, seen)
        whole = [read for read in found if read.data is not None]
        self._metrics.add("source_opens", len(found))
        self._metrics.add("source_reads", len(whole))
        self._metrics.add("source_read_bytes", sum(len(read.data) for read in whole if read.data is not None))
        return found

    def _read_small(
        self, places: Sequence[tuple[bytes, bytes]], into: memoryview, progress: BatchProgress, limit_bytes: int
    ) -> tuple[list[SmallRead], list[tuple[Version, Seen]]]:
        at_ns = time.monotonic_ns()
        held: dict[bytes, OpenDirectory] = {}  # they stay open until the end
        missing: set[bytes] = set()
        for directory in {directory for directory, _ in places}:
            try:
                held[directory] = self._directories.get(directory)
            except OSError:
                missing.add(directory)  # whoever looks a file of it up is told what ails it
        descriptors = [-1 if directory in missing else held[directory].fd for directory, _ in places]
        found = read_files(
            descriptors, [name for _, name in places], into, progress, limit_bytes, careful=self._has_devices
        )
        doubts: list[tuple[Version, Seen]] = []
        for i, read in enumerate(found):
            where = held.get(places[i][0])
            if read.attributes is None or where is None:
                continue
            if read.attributes.device != where.device:
                read = read.on(self.file_systems.known(InodePlace(read.attributes.device, read.mount)))
            elif where.file_system:
                read = read.on(where.file_system)
            found[i] = read = self._named_small(read)
            if read.attributes is None or read.data is None:
                continue
            clock = self.file_systems.clock(read.attributes.file_system)
            if not clock.is_over(stored_ns(read.attributes.ctime_ns), at_ns):
                digest, extent = xxhash.xxh3_64_intdigest(read.data), Extent(0, len(read.data))
                doubts.append((read.attributes.version(self.source_id), Seen(*places[i], extent, digest, at_ns)))
        self._saw(read.attributes for read in found)
        return found, doubts

    def _named_small(self, read: SmallRead) -> SmallRead:
        if not self.doubts.rewritten or read.attributes is None:
            return read
        return read._replace(attributes=self._named(read.attributes))

    def _named(self, attributes: Attributes) -> Attributes:
        """By the name that it has if it was written twice; see `source.doubts`."""
        rewritten = self.doubts.rewritten
        if not rewritten or not attributes.is_file:
            return attributes
        version = attributes.version(self.source_id)
        return attributes._replace(file_system=rewritten.name(version)) if version in rewritten else attributes

    def _saw(self, found: Iterable[Attributes | None]) -> None:
        """In a thread, just after these were asked for: their stamps say what time it is at the source."""
        newest: dict[str, int] = {}
        for attributes in found:
            if attributes is not None and attributes.ctime_ns > newest.get(attributes.file_system, 0):
                newest[attributes.file_system] = attributes.ctime_ns
        at_ns = time.monotonic_ns()
        for file_system, ctime_ns in newest.items():
            self.file_systems.clock(file_system).saw(stored_ns(ctime_ns), at_ns)

    def release(self, version: Version) -> None:
        """The last handle of `version` is closed: its idle source descriptors go. Any thread; never blocks: a close may
        ask the source (Lustre, NFS and FUSE do), which may hang, and this is called on the event loop."""
        self._reading.release(version)

    @property
    def idle_files(self) -> int:
        """Source descriptors kept open between reads."""
        return self._reading.idle_files

    @property
    def direct(self) -> bool:
        """Large files are read with O_DIRECT."""
        return self._reading.direct
