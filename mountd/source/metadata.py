"""What the source says of a name: attributes, the target of a symlink, extended attributes, the kind of file system.

A name is looked up in the open descriptor of its directory, never by a path, and no symlink is followed. Where that
directory was removed and another one may stand in its place, it is opened anew once. Every answer's time stamps tell
the clock of its file system (`source.clock`), and a file that was written twice under one version is given the name
that it has since (`source.second_looks`).
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from hfs.mountd.core.attributes import Attributes, SeenNames, attributes_of, seen_names, stored_ns
from hfs.mountd.core.errors import VersionChanged
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.native.extension import EXTENSION
from hfs.mountd.native.statx import is_still, stat_cached
from hfs.mountd.source.descriptors import Directories, OpenDirectory, show
from hfs.mountd.source.file_systems import FileSystems
from hfs.mountd.source.identity import FileSystemSeen, is_local, look_at
from hfs.mountd.source.second_looks import SecondLooks
from hfs.mountd.source.threads import SourceThreads

Answer = TypeVar("Answer")

_MIN_STATS, _MAX_STATS = 4, 512
"""Names that one thread stats one after the other."""

_MAX_NAMED_LINKS = 20


def xattr_of(directory_fd: int, name: bytes, attribute: bytes, of: Attributes | None = None) -> bytes:
    """The value of one. `of`: only if it is of the inode with these attributes, unchanged since; else VersionChanged,
    also where there is none."""
    if of is None:
        return os.getxattr(_path(directory_fd, name), attribute, follow_symlinks=False)
    fd = os.open(name or b".", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory_fd)
    try:
        try:
            return os.getxattr(b"/proc/self/fd/%d" % fd, attribute)
        finally:  # afterwards: who gives it another one moves its ctime
            if not is_still(fd, of):
                raise VersionChanged("something else stands there now")
    finally:
        os.close(fd)


def xattrs_of(directory_fd: int, name: bytes) -> list[bytes]:
    """The names of all."""
    return [os.fsencode(one) for one in os.listxattr(_path(directory_fd, name), follow_symlinks=False)]


def _path(directory_fd: int, name: bytes) -> bytes:
    """A path whose only link is the kernel's own to our descriptor; xattr calls take no dir_fd."""
    return b"/proc/self/fd/%d/%s" % (directory_fd, name or b".")


class MetadataReader:
    """Event loop only; what blocks runs in a thread.

    `limit_s`: after so long the answer is SourceTimeout, as after the general limit. `directory` is a path below the
    root, empty for the root itself; an empty `name` is the directory itself. All raise SourceError (ENOENT and the rest
    as the source says) and SourceTimeout.
    """

    def __init__(
        self,
        root: bytes,
        directories: Directories,
        file_systems: FileSystems,
        second_looks: SecondLooks,
        threads: SourceThreads,
        metrics: Metrics,
        *,
        at_once: bool = True,
    ) -> None:
        """`root`: SOURCE as users name it. `at_once`: the event loop may ask a local source too."""
        self.absolute_links: list[str] = []
        """Symlinks by which programs leave the mount for SOURCE itself, as they were met: the first of them."""
        self.absolute_link_count = 0
        self._root = root
        self._directories = directories
        self._file_systems = file_systems
        self._second_looks = second_looks
        self._threads = threads
        self._metrics = metrics
        root_fd = directories.root.fd
        self._local_device = directories.root.device if at_once and is_local(root_fd) else None
        self._stat_s = 0.001

    async def stat(self, directory: bytes, name: bytes, *, limit_s: float | None = None) -> Attributes:
        """Attributes of `name` in `directory`; symlinks are not followed."""
        return await self._ask("stat of", self._stat, directory, name, limit_s)

    def stat_nowait(self, directory: bytes, name: bytes) -> Attributes | None:
        """Attributes of `name`, where the source is a local file system and the kernel knows them; else None."""
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
        return await self._threads.call("metadata", what, self._stats, directory, names, directory=directory)

    async def look(self, directory: bytes, names: Sequence[bytes]) -> SeenNames:
        """Attributes of many names, in one thread and without an object for each."""
        self._metrics.add("source_stats", len(names))
        what = f"stat in {show(directory, b'')}"
        return await self._threads.call("metadata", what, self._look_at, directory, names, directory=directory)

    @property
    def stats_at_once(self) -> int:
        """How many names one thread should stat: as many as take some 16 ms, a hundred times what a thread hop costs.

        A Lustre with 1 ms a stat gets 16 names a thread and many threads; a fast source one thread and no contention.
        """
        return max(_MIN_STATS, min(_MAX_STATS, int(0.016 / max(self._stat_s, 1e-6))))

    @property
    def stats_worth_a_thread(self) -> int:
        """How many names a thread should stat at least: as many as take 1 ms, ten times what a thread hop costs."""
        return max(_MIN_STATS, min(_MAX_STATS, int(0.001 / max(self._stat_s, 1e-6))))

    async def readlink(self, directory: bytes, name: bytes, *, limit_s: float | None = None) -> bytes:
        """The target of a symlink, as it stands."""

        def read(directory: bytes, name: bytes) -> bytes:
            return os.readlink(name, dir_fd=self._directories.get(directory).fd)

        target = await self._ask("readlink", read, directory, name, limit_s)
        if target == self._root or target.startswith(self._root.rstrip(b"/") + b"/"):
            self._note_absolute(show(directory, name))
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
        """One extended attribute; SourceError with ENODATA if it is not there.

        `of`: only if it is of the inode with these attributes, unchanged since; else VersionChanged.
        """

        def read(directory: bytes, name: bytes) -> bytes:
            return xattr_of(self._directories.get(directory).fd, name, attribute, of)

        return await self._ask("xattr of", read, directory, name, limit_s)

    async def xattrs(self, directory: bytes, name: bytes) -> list[bytes]:
        """The names of all extended attributes."""

        def read(directory: bytes, name: bytes) -> list[bytes]:
            return xattrs_of(self._directories.get(directory).fd, name)

        return await self._ask("xattrs of", read, directory, name, None)

    async def kind_of(self, directory: bytes, name: bytes, device: int) -> FileSystemSeen:
        """What kind of file system it lies on, which has this st_dev, else VersionChanged."""

        def look(directory: bytes, name: bytes) -> FileSystemSeen:
            seen = look_at(self._directories.get(directory).fd, name)
            if seen.device != device:
                raise VersionChanged(f"{show(directory, name)} lies on another file system now")
            return seen

        return await self._ask("file system of", look, directory, name, None)

    async def _ask(
        self,
        what: str,
        function: Callable[[bytes, bytes], Answer],
        directory: bytes,
        name: bytes,
        limit_s: float | None,
    ) -> Answer:
        self._metrics.add("source_stats")
        what = f"{what} {show(directory, name)}"
        return await self._threads.call(
            "metadata", what, function, directory, name, directory=directory, limit_s=limit_s
        )

    def _note_absolute(self, link: str) -> None:
        if link not in self.absolute_links:
            self.absolute_link_count += 1
            if len(self.absolute_links) < _MAX_NAMED_LINKS:
                self.absolute_links.append(link)

    # -- in a thread --------------------------------------------------------------------------------------------------

    def _stat(self, directory: bytes, name: bytes) -> Attributes:
        found = self._look_up(directory, name)
        self._file_systems.saw((found,))
        return self._named(found)

    def _stats(self, directory: bytes, names: Sequence[bytes]) -> list[Attributes | None]:
        found: list[Attributes | None] = []
        start_s = time.monotonic()
        for name in names:
            try:
                found.append(self._look_up(directory, name))
            except FileNotFoundError:
                found.append(None)
        self._file_systems.saw(found)
        self._took(start_s, len(names))
        return [self._named(attributes) if attributes is not None else None for attributes in found]

    def _took(self, start_s: float, count: int) -> None:
        each_s = (time.monotonic() - start_s) / max(1, count)
        self._stat_s += (each_s - self._stat_s) / 4  # threads may overwrite each other's: it is an estimate

    def _look_at(self, directory: bytes, names: Sequence[bytes]) -> SeenNames:
        where = self._directories.get(directory)
        device = self._directories.root.device
        if where.device != device or len(self._second_looks.rewritten):
            return seen_names(names, self._stats(directory, names), device)
        start_s = time.monotonic()
        found: tuple[bytes, bytearray, int, int] = EXTENSION.look(where.fd, list(names), device)
        seen, plain, seconds, part = found
        if seconds > 0:
            self._file_systems.clock("").saw(stored_ns(seconds * 10**9 + part), time.monotonic_ns())
        self._took(start_s, len(names))
        others = {index: _on_device(seen, index, device) for index, is_plain in enumerate(plain) if not is_plain}
        again = [index for index, attributes in others.items() if attributes is None]
        if again:
            # On another file system; or gone, perhaps with the directory, in whose place another one may stand.
            self._metrics.add("source_stats", len(again))
            others.update(zip(again, self._stats(directory, [names[index] for index in again]), strict=True))
        return SeenNames(list(names), seen, plain, others)

    def _look_up(self, directory: bytes, name: bytes) -> Attributes:
        where = self._directories.get(directory)
        try:
            return self._look(where, name)
        except OSError as error:
            if not directory or not _is_gone(where, error):
                raise
        # The directory that we have open was removed; another one may stand in its place.
        self._directories.forget(directory)
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
            return Attributes.of(os.fstat(fd), self._file_systems.of(fd)[1])
        finally:
            os.close(fd)

    def _named(self, attributes: Attributes) -> Attributes:
        return self._second_looks.rewritten.named(attributes, self._file_systems.root.id)


def _on_device(seen: bytes, index: int, device: int) -> Attributes | None:
    """What was seen, if it lies on this device."""
    try:
        attributes = attributes_of(seen, index)
    except OSError:
        return None  # the next stat says it again
    return attributes if attributes is not None and attributes.device == device else None


def _is_gone(where: OpenDirectory, error: OSError) -> bool:
    try:
        return error.errno == errno.ESTALE or (error.errno == errno.ENOENT and os.fstat(where.fd).st_nlink == 0)
    except OSError:
        return True
