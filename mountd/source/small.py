"""Small files of the source, many in one call of a thread: open, look, read all of it, look again, close.

One small file at a time costs some 0.2 ms of CPU in hops to threads and in the interpreter's lock, which each system
call gives away and gets back late; so a batch is read in one call, by `_small_files.c` where that was built, else here.
The fault of one file is in its answer and does not stop the others. A reader who needs one of the files now tells the
thread to hurry: it ends after the file it is at.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import NamedTuple

import xxhash

from hfs.mountd.base.attributes import Attributes
from hfs.mountd.base.version import Version, stored_ns
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.native import small_files as small_native
from hfs.mountd.native.statx import InodePlace, identity
from hfs.mountd.source.descriptors import OPEN_TO_READ, Directories, OpenDirectory, show
from hfs.mountd.source.doubts import Doubts, Seen
from hfs.mountd.source.file_systems import FileSystems
from hfs.mountd.source.threads import SourceThreads
from hfs.policies.geometry import Extent

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
    """As in `statx.InodePlace`, beside the attributes' `device`; 0 where it was not asked for."""


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


class SmallFileReader:
    """Event loop only; what blocks runs in a thread."""

    def __init__(
        self,
        directories: Directories,
        file_systems: FileSystems,
        doubts: Doubts,
        threads: SourceThreads,
        metrics: Metrics,
    ) -> None:
        self._directories = directories
        self._file_systems = file_systems
        self._doubts = doubts
        self._threads = threads
        self._metrics = metrics
        self.has_devices = not os.fstatvfs(directories.root.fd).f_flag & os.ST_NODEV
        """Opening a name blindly could open a device, and do something there."""

    async def read_batch(
        self,
        places: Sequence[tuple[bytes, bytes]],
        into: memoryview,
        progress: BatchProgress,
        *,
        limit_bytes: int,
        urgent: bool = False,
    ) -> list[SmallRead]:
        """Whole files of at most `limit_bytes`, one after the other, into `into`; see `read_files`.

        Without what earlier look-ups said: the attributes are those of the open file, and its bytes are of that one
        version. `places`: (directory, name). Fewer answers than places: `into` was full, or `progress` told it to
        hurry. The fault of one file is in its answer. `urgent`: a reader waits. Raises SourceTimeout, SourceError.
        """
        found, doubts = await self._threads.call(
            "demand" if urgent else "prefetch",
            f"read of {len(places)} small files from {show(*places[0])} on",
            self._read,
            places,
            into,
            progress,
            limit_bytes,
            directory=places[0][0],
        )
        for version, seen in doubts:
            self._doubts.add(version, seen)
        whole = [read.data for read in found if read.data is not None]
        self._metrics.add("source_opens", len(found))
        self._metrics.add("source_reads", len(whole))
        self._metrics.add("source_read_bytes", sum(map(len, whole)))
        return found

    def _read(
        self, places: Sequence[tuple[bytes, bytes]], into: memoryview, progress: BatchProgress, limit_bytes: int
    ) -> tuple[list[SmallRead], list[tuple[Version, Seen]]]:
        at_ns = time.monotonic_ns()
        held: dict[bytes, OpenDirectory] = {}  # they stay open until the end
        for directory in {directory for directory, _ in places}:
            try:
                held[directory] = self._directories.get(directory)
            except OSError:
                pass  # its files are answered as unreadable; the look-up of each finds the fault
        descriptors = [held[directory].fd if directory in held else -1 for directory, _ in places]
        names = [name for _, name in places]
        found = read_files(descriptors, names, into, progress, limit_bytes, careful=self.has_devices)
        doubts: list[tuple[Version, Seen]] = []
        for i, (place, read) in enumerate(zip(places, found, strict=False)):  # of the last there may be no answer
            if place[0] not in held:
                continue
            found[i] = read = self._of_its_file_system(read, held[place[0]])
            if read.attributes is None or read.data is None:
                continue
            clock = self._file_systems.clock(read.attributes.file_system)
            if not clock.is_over(stored_ns(read.attributes.ctime_ns), at_ns):
                digest, extent = xxhash.xxh3_64_intdigest(read.data), Extent(0, len(read.data))
                version = read.attributes.version(self._file_systems.root.id)
                doubts.append((version, Seen(*place, extent, digest, at_ns)))
        self._file_systems.saw(read.attributes for read in found)
        return found, doubts

    def _of_its_file_system(self, read: SmallRead, where: OpenDirectory) -> SmallRead:
        """`read` with the file system that its file, found in `where`, lies on, or has been given; nothing if that is
        not known, so that the file is asked for by itself."""
        attributes = read.attributes
        if attributes is None:
            return read
        file_system: str | None = where.file_system
        if attributes.device != where.device:
            file_system = self._file_systems.known(InodePlace(attributes.device, read.mount))
        if file_system is None:
            return SmallRead(None, None)
        attributes = attributes._replace(file_system=file_system)
        return read._replace(attributes=self._doubts.rewritten.named(attributes, self._file_systems.root.id))


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

    `directories[i]`: descriptor of the directory of `names[i]`, -1 if it has none. `careful`: nothing is opened before
    a stat says that it is a regular file. Raises ValueError for what is not a name.
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
    fd = os.open(name, OPEN_TO_READ, dir_fd=directory)
    try:
        attributes = Attributes.of(os.fstat(fd))
        if not attributes.is_file or attributes.size > limit_bytes:
            return -1, attributes
        if attributes.size > len(into):
            return None
        done, behind = 0, bytearray(1)
        while got := os.preadv(fd, [into[done : attributes.size], behind], done):  # to the end, wherever that is
            done += got
            if done > attributes.size:
                break
        if done != attributes.size:
            return -2, attributes
        before = (attributes.mode, attributes.inode, attributes.size, attributes.mtime_ns, attributes.ctime_ns)
        same = identity(fd) == before  # a time that no version can hold is never the same
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return (_WHOLE if same else -2), attributes
    finally:
        os.close(fd)
