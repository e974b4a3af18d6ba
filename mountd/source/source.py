"""The source: the shared file system below SOURCE, and everything that reads it.

Every path is reached from one directory descriptor taken before the mount was made (so MOUNTPOINT may lie on SOURCE,
and a file system that unmounts itself is an error, not an empty data set), beneath it and through no symlink: a
directory is opened by `beneath`, a name in it with O_NOFOLLOW. A file is named by its directory's path and its name.

    metadata       what the source says of a name
    listings       the names in a directory
    files          one file, a large request of one version at a time
    file_systems   which ones are mounted at and below SOURCE
    second_looks   what was read too soon after it was written

Blocking work runs in `threads`. The source is never written to.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from typing import Literal, NamedTuple

from hfs.mountd.core.errors import SourceTimeout
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.source.descriptors import Directories, IdleFiles, OpenDirectory, show
from hfs.mountd.source.file_systems import FileSystems
from hfs.mountd.source.listing import Lister
from hfs.mountd.source.metadata import MetadataReader
from hfs.mountd.source.reading import FileReader
from hfs.mountd.source.second_looks import SecondLooks, Settled
from hfs.mountd.source.threads import SourceThreads
from hfs.policies.cache.admission import blocks_bytes, object_overhead_bytes

_MEET_LIMIT_S = 2.0
"""So long a stat may take that keeps somebody waiting."""


class DelegatedDirectory(NamedTuple):
    """A directory that somebody may read small files of."""

    directory: OpenDirectory
    """Held as long as its descriptor is used."""
    settled: Settled
    """The newest ctimes that no later change of a file in it can have."""
    is_careful: bool
    """Opening a name could do something: it is to be looked at before."""


class Source:
    """The parts that read the source, made of one descriptor. Async methods belong to the event loop."""

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
        """`root_fd`: descriptor of SOURCE, owned from now on. Files above `large_bytes` are read with O_DIRECT.

        May block. If the threads have become another user, so has the one that calls this.
        """
        self.path = path
        self.source_id = source_id
        self.threads = threads
        self._metrics = metrics
        root, open_files = os.fsencode(path), threads.open_files
        self.file_systems = FileSystems(root_fd, source_id, root, immutable=ttl_s == math.inf)
        self.directories = Directories(root_fd, self.file_systems, ttl_s, open_files.shares.directories)
        self.idle_files = IdleFiles(open_files.shares.idle_files)
        self.second_looks = SecondLooks(metrics, ttl_s=ttl_s)
        self.metadata = MetadataReader(
            root, self.directories, self.file_systems, self.second_looks, threads, metrics, at_once=threads.user is None
        )
        self.listings = Lister(self.directories, threads, metrics)
        self.files = FileReader(
            self.directories,
            self.file_systems,
            self.second_looks,
            self.idle_files,
            threads,
            metrics,
            direct=direct != "off",
            large_bytes=large_bytes,
        )
        self._has_devices = not os.fstatvfs(root_fd).f_flag & os.ST_NODEV  # opening one could do something there
        self._root_inode = os.fstat(root_fd).st_ino
        open_files.add(self.directories.let_go)
        open_files.add(self.idle_files.let_go)

    def close(self) -> None:
        """Close every descriptor that no stuck thread still uses."""
        self.idle_files.close()
        self.directories.close()
        self.file_systems.close()

    @property
    def root_fd(self) -> int:
        """The open root."""
        return self.directories.root.fd

    @property
    def root_inode(self) -> int:
        """st_ino of the root, the same on every node."""
        return self._root_inode

    @property
    def root_device(self) -> int:
        """st_dev of the root."""
        return self.directories.root.device

    async def delegate(self, directory: bytes) -> DelegatedDirectory | None:
        """The directory at this path, for somebody who reads small files in it; None if it does not lie on the file
        system of the root. Raises SourceError, SourceTimeout."""
        what = f"open {show(directory, b'')}"
        held = await self.threads.call("metadata", what, self.directories.get, directory, directory=directory)
        if held.file_system:
            return None
        settled = self.file_systems.clock("").settled()
        return DelegatedDirectory(held, settled, is_careful=self._has_devices)

    async def statvfs(self) -> os.statvfs_result:
        """Size and room of the source. Raises SourceError, SourceTimeout."""
        self._metrics.add("source_stats")
        return await self.threads.call("metadata", "statvfs of the source", os.statvfs, self.root_fd)

    async def ids_below(self) -> set[str]:
        """The identities of all file systems that are mounted at or below SOURCE, or were since the daemon began."""
        what = "look at the file systems below the source"
        with contextlib.suppress(SourceTimeout):  # then those that were met
            await self.threads.call("metadata", what, self.file_systems.meet_all, self.root_fd, limit_s=_MEET_LIMIT_S)
        return {found.id for found in self.file_systems.met()}

    async def data_bytes(self, at_most: float, limit_s: float) -> int | None:
        """What all files take in a cache; None if more than `at_most`, or not told in `limit_s` seconds."""
        what = "look at all files of the source"
        try:
            return await self.threads.call("prefetch", what, self._data_bytes, at_most, limit_s, limit_s=2 * limit_s)
        except SourceTimeout:
            return None

    def _data_bytes(self, at_most: float, limit_s: float) -> int | None:
        end_s = time.monotonic() + limit_s
        total = 0
        for _, _, files, directory_fd in os.fwalk(".", dir_fd=self.root_fd):
            for name in files:
                try:
                    found = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
                except OSError:
                    continue  # gone meanwhile
                total += blocks_bytes(found.st_size) + object_overhead_bytes(1)
                if total > at_most or time.monotonic() > end_s:
                    return None
        return total
