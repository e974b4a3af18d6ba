"""The data plane as Python sees it: threads that answer requests without Python, and the table that they answer from.

What the table says is answered until it is taken out (mountd/native/plane/plane.h). So whoever changes what an entry
says takes it out first, and changes then. Event loop only; never waits, but for answers under way.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
import time
from collections import Counter
from itertools import starmap
from pathlib import Path
from typing import NamedTuple

import trio

from hfs.mountd.core.errors import MountError
from hfs.mountd.native.extension import EXTENSION
from hfs.policies.prefetch.yielding import Waits

log = logging.getLogger(__name__)

_KEEP_CACHE = 1 << 1
_PASSTHROUGH = 1 << 7
"""FOPEN_KEEP_CACHE and FOPEN_PASSTHROUGH, <linux/fuse.h>."""

_EVENTS_AT_MOST = 512
"""Of one `take_events`: MOST_EVENTS in mountd/native/plane/python.c."""

_LONGEST_NS = 86_400 * 10**9
"""Nothing is answered for longer without Python: 64 bits would be enough for 292 years."""


_BY_NUMBER = Path("/sys/dev/block")
_READS, _READ_MS = 0, 3
"""Places in `stat`: reads that have ended, and milliseconds that they have taken."""


class DiskReads:
    """How reads of a disk wait, as the kernel counts them: also those that no daemon sees, of files passed through.

    /sys/dev/block/MAJOR:MINOR/stat and `inflight` (Documentation/block/stat.rst, Documentation/ABI/stable/sysfs-block),
    of a partition or a whole disk. They say nothing of who reads, so they are looked at only while the kernel reads
    staged files by itself. Where a file system has no block device of its own (btrfs, ZFS, overlayfs) nothing is known.
    Two files of /sys are read, for some 20 us; nothing waits for the disk.

    Of the disk with this st_dev.
    """

    def __init__(self, device: int, by_number: Path = _BY_NUMBER) -> None:
        self._folder = by_number / f"{os.major(device)}:{os.minor(device)}"
        self._waits = Waits(0, 0, 0)
        self._before: tuple[int, int] | None = None
        """Reads and milliseconds at the last look, if they counted then."""

    def look(self, *, counts: bool) -> Waits:
        """What has waited since the first look, as long as it `counts`."""
        found = self._read() if counts else None
        if found is None:
            self._before, self._waits = None, self._waits._replace(waiting=0)
            return self._waits
        reads, spent_ms, waiting = found
        if self._before is not None:
            more, more_ms = max(0, reads - self._before[0]), max(0, spent_ms - self._before[1])
            self._waits = Waits(self._waits.waits + more, self._waits.waited_ns + more_ms * 1_000_000, waiting)
        self._before = reads, spent_ms
        return self._waits

    def _read(self) -> tuple[int, int, int] | None:
        try:
            stat = (self._folder / "stat").read_text().split()
            in_flight = (self._folder / "inflight").read_text().split()
            return int(stat[_READS]), int(stat[_READ_MS]), int(in_flight[0])
        except (OSError, ValueError, IndexError):
            return None


class News:
    """What wakes whoever takes what the data plane has done: an eventfd."""

    OPENS, FETCHED = 0, 1
    """enum news in mountd/native/plane/plane.h."""

    def __init__(self, kind: int) -> None:
        self._kind = kind

    async def wait(self) -> None:
        """Until something was done since this returned last, or `wake`."""
        await trio.lowlevel.wait_readable(EXTENSION.plane_news_fd(self._kind))
        EXTENSION.plane_news_read(self._kind)

    def wake(self) -> None:
        """Have whoever waits look."""
        EXTENSION.plane_news_tell(self._kind)


class StagedObject(NamedTuple):
    """A staged file, and what it must still be like whenever a read is answered from it."""

    fd: int
    """Of the file; only used while the call lasts: the table has descriptors of its own."""
    inode: int
    size: int
    ctime_ns: int


class Backing(NamedTuple):
    """What the kernel reads by itself, and what it must still be like whenever it is opened."""

    backing_id: int
    directory_fd: int
    """Where its name begins; open as long as anything is answered."""
    name: str
    inode: int
    size: int
    ctime_ns: int


_NO_BACKING = Backing(0, -1, "", 0, 0, 0)
"""With the file's size."""


class Counted(NamedTuple):
    """A handle that an earlier daemon's data plane has given out."""

    counter: int
    open: int
    """How many have it open."""


class Attached(NamedTuple):
    """What an earlier daemon of the mount has left."""

    handles: dict[int, Counted]
    directories: Counter[int]
    """Slots in each directory, by its node id."""


class OpenCounts(NamedTuple):
    """What has become of an entry."""

    open: int
    """How many have its handle open now."""
    opened: int
    """Opens that were answered since it was put."""
    last_ns: int
    """`time.monotonic_ns()` of the last of them; 0: none."""


class Opened(NamedTuple):
    """An open that was answered."""

    node_id: int
    thread_id: int
    object_id: int = 0
    """Of the staged file whose use is to be noted; 0: of none."""
    at_ns: int = 0
    """`time.monotonic_ns()`."""


class ReadProgress(NamedTuple):
    """Of a node whose reads are answered."""

    size_bytes: int
    """What was given so far to reads that did not begin where the one before ended."""
    end: int
    """Of the last read."""


class Served(NamedTuple):
    """A thread whose reads were answered."""

    thread_id: int
    reads: int
    bytes: int


class PlaneFigures(NamedTuple):
    """For the status."""

    threads: int = 0
    opens_of: int = 0
    """Nodes whose opens are answered."""
    reads_of: int = 0
    """Nodes whose reads are answered, and objects."""
    opens_cached: int = 0
    opens_passed: int = 0
    releases: int = 0
    reads: int = 0
    read_bytes: int = 0
    spliced: int = 0
    """Of the reads those whose bytes were copied once."""
    lock_wait_ns: int = 0
    """For how long its threads have waited for the tables' locks."""
    cached_bytes: int = 0
    """Of files that are taken to be read whole (`policies.traffic`), once for each open through the page cache."""
    passed_bytes: int = 0
    """The same of opens that were passed through."""
    large_passed: int = 0
    """Opens of larger files that were passed through."""
    large_read_bytes: int = 0
    """Of `read_bytes` those of larger files."""
    overlay_look_ups: int = 0
    """Files of which an overlay was told where what is staged lies."""
    overlay_look_up_bytes: int = 0
    """Their sizes, once for each."""


class DataPlane:
    """The one table of this process."""

    events_at_most = _EVENTS_AT_MOST
    """If `take_events` gives so many there may be more."""

    def __init__(self) -> None:
        self.news = News(News.OPENS)
        """That something was answered."""
        self._runs = False

    @property
    def runs(self) -> bool:
        """Its threads answer."""
        return self._runs

    def start(self, connection_fd: int, threads: int, beats_fd: int = -1) -> None:
        """Have so many threads read requests from the mount's descriptor of /dev/fuse. `beats_fd`: where the keeper
        sees that they go on; -1: nowhere. Raises MountError."""
        try:
            EXTENSION.plane_start(connection_fd, threads, beats_fd)
        except OSError as error:
            raise MountError(f"the threads that read requests cannot be started: {error}") from error
        self._runs = True

    def stop(self) -> None:
        """When it returns no thread reads or answers. Requests that were read and not answered stay so: they are for
        the daemon that comes next, if one does."""
        if self._runs:
            self._runs = False
            EXTENSION.plane_stop()

    def attach(self, table_fd: int, terms: int = 0) -> Attached | None:
        """Count handles and keep slots in this memfd, which outlives us, or in memory of our own (-1), before anything
        is put. In a thread: half a second for a million slots. None: what is there is not known, and nothing can be
        put.

        `terms`: 64 bits that stand for what decides until when an answer is good. Where they were others, no answer of
        before is good any more.
        """
        try:
            handles, runs = EXTENSION.plane_attach(table_fd, terms)
        except OSError as error:
            log.warning("every open comes to Python: there is no memory to count handles in: %s", error)
            return None
        directories: Counter[int] = Counter()
        for directory_id, count in struct.iter_unpack("=QQ", runs):
            directories[directory_id] += count
        return Attached({handle: Counted(counter, opened) for handle, counter, opened in handles}, directories)

    def put_opens(self, node_id: int, handle: int, *, size: int, valid_s: float, backing: Backing | None) -> int | None:
        """Answer opens of a node of `size` bytes, which nobody has open, with this handle from now on, for `valid_s`
        seconds: through the page cache, whose pages are kept, or with a backing file.

        The counter in which it is counted, which is to be freed by `free_counter`; None: impossible now.
        """
        if not self._runs or valid_s <= 0:
            return None
        until_ns = time.monotonic_ns() + int(min(valid_s * 1e9, _LONGEST_NS))
        flags = _KEEP_CACHE if backing is None else _PASSTHROUGH
        try:
            counter: int = EXTENSION.plane_put(
                node_id, handle, flags, *(backing or _NO_BACKING._replace(size=size)), until_ns
            )
        except OSError as error:
            if error.errno == errno.EEXIST:
                raise  # a fault of ours
            return None  # no memory, no descriptor, no counter: its opens come to us
        return counter

    def take_opens(self, node_id: int) -> OpenCounts:
        """Its opens come to us from now on. KeyError if they do already."""
        taken = EXTENSION.plane_take(node_id)
        if taken is None:
            raise KeyError(node_id)
        return OpenCounts(*taken)

    def put_reads(self, node_id: int, staged: StagedObject) -> bool:
        """Answer reads of a node from this object from now on, as far as it is in memory. False: impossible now."""
        if not self._runs:
            return False
        try:
            EXTENSION.plane_put_reads(node_id, *staged)
        except OSError as error:
            if error.errno == errno.EEXIST:
                raise  # a fault of ours
            return False
        return True

    def take_reads(self, node_id: int) -> None:
        """Its reads come to us from now on. KeyError if they do already."""
        if not EXTENSION.plane_take_reads(node_id):
            raise KeyError(node_id)

    def progress(self, node_id: int) -> ReadProgress | None:
        """Of a node whose reads are answered."""
        found = EXTENSION.plane_progress(node_id)
        return ReadProgress(*found) if found is not None else None

    def read_staged(self, directory_fd: int) -> None:
        """In a stateless mount: answer reads of slots from their objects in this directory; -1: not any more."""
        EXTENSION.plane_staged_in(directory_fd)

    def put_object(self, number: int, inode: int, ctime_ns: int, size: int) -> bool:
        """This object, one that is a file byte for byte, was found right and is so as long as it has these: reads of
        slots that were put with this number are answered from it. False: not now."""
        if not self._runs:
            return False
        return bool(EXTENSION.plane_put_object(number, inode, ctime_ns, size))

    def distrust(self, inode: int) -> None:
        """Files of this number, of which two states had one version, are fetched by us from now on."""
        EXTENSION.plane_distrust(inode)

    def take_object(self, number: int) -> None:
        """It is about to change or go: nobody is answered from it any more when this returns."""
        EXTENSION.plane_take_object(number)

    def take_served(self) -> list[Served]:
        """Whose reads were answered since the last call, some hundreds at most."""
        return list(starmap(Served, struct.iter_unpack("=QQQ", EXTENSION.plane_served())))

    def count(self, counter: int) -> int:
        """How many have the handle of this counter open."""
        count: int = EXTENSION.plane_count(counter)
        return count

    def closed(self, counter: int) -> int:
        """One of those whose close has come to us; how many are left."""
        left: int = EXTENSION.plane_closed(counter)
        return left

    def free_counter(self, counter: int) -> None:
        """Nobody has its handle open, and it is not given out any more."""
        EXTENSION.plane_free(counter)

    def take_events(self) -> tuple[list[Opened], int]:
        """Opens that were answered and not told yet, some thousands at most, in their order; how many were lost before
        them since nobody asked."""
        found, lost = EXTENSION.plane_events()
        return list(starmap(Opened, struct.iter_unpack("=QQQq", found))), lost

    def figures(self) -> PlaneFigures:
        """What it has done so far."""
        return PlaneFigures(*EXTENSION.plane_figures())
