"""The data plane's pipeline of small files as Python sees it: see mountd/native/plane/fetch.h.

Python delegates directories to it, asks for files ahead, grants numbers and room for new objects, and hears of each
file. Where the extension was built without xxhash.h, it never starts. Event loop only; `replace_hanging`, `stop` wait.
"""

from __future__ import annotations

import logging
import struct
from array import array
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from hfs.mountd.core.caller import Credentials
from hfs.mountd.kernel.plane import News
from hfs.mountd.native.extension import EXTENSION

log = logging.getLogger(__name__)

_LONGEST_NS = 1 << 62

_AHEAD_AT_ONCE = 64
"""MOST_WANTED in mountd/native/plane/python_fetch.c."""

_ROW = struct.Struct("=QQQQQqqqq")
"""struct row in mountd/native/plane/python_fetch.c."""


class FetchKind(IntEnum):
    """What has become of a file: enum fetched_kind."""

    STORED = 0
    """It is in a new object."""
    UNSTORED = 1
    """It was read, and nothing was granted to store it."""
    NOTHING = 2
    """It is left to Python."""
    HERE = 3
    """It was known (its object has a number), has no bytes, or is no small file: nothing was read."""
    BROKEN = 4
    """It was read, and its object could not be written whole."""
    GIVEN = 5
    """It was read, and its bytes are given to us, who store them."""


class Fetched(NamedTuple):
    kind: FetchKind
    ahead: bool
    """It was asked for by `ahead`."""
    directory_id: int
    generation: int
    """Of the loan that it was begun in."""
    name: bytes
    seen: bytes
    """As in `core.attributes`; zeros where nothing was seen."""
    number: int
    """Of the object, which has this inode number and ctime, and its bytes this checksum (xxh3_64)."""
    inode: int
    ctime_ns: int
    checksum: int
    data: bytes | None = None
    """Of one that is `GIVEN`."""


class FetchFigures(NamedTuple):
    """For the status."""

    jobs: int = 0
    """Names that are being looked at or fetched, or are to be."""
    contents: int = 0
    """Slots whose bytes are here."""
    delegated: int = 0
    """Directories."""
    versions: int = 0
    """Objects that are known by their version."""
    buffer_bytes: int = 0
    unstored_bytes: int = 0
    """Of files that were fetched ahead, found no room in the cache, and were not read yet, and of those under way."""
    looks: int = 0
    """Stats of the source; and its opens, reads, and bytes that were read."""
    opens: int = 0
    reads: int = 0
    read_bytes: int = 0
    wait_ns: int = 0
    """Look-ups, opens and reads together have waited so long for the source."""


class ReaderWaits(NamedTuple):
    """How readers have waited for what the data plane has fetched."""

    waits: int = 0
    waited_ns: int = 0
    waiting: int = 0


class KnownObject(NamedTuple):
    """An object that holds all bytes of one version of a file, on the file system of the source's root."""

    number: int
    inode: int
    checksum: int
    """xxh3_64 of its bytes."""
    file_inode: int
    size: int
    ctime_ns: int
    """Of the object."""
    file_mtime_ns: int
    file_ctime_ns: int
    is_pythons: bool = False
    """It holds them in another form, which the data plane cannot read."""


class SmallFetches:
    """The one pipeline of this process. Never waits, but for answers under way."""

    def __init__(self, reader: Credentials | None = None, *, wholly: bool = False) -> None:
        """`reader`: as whom the source is asked, if that is another user. `wholly`: see mountd/source/threads.py,
        which says what is to be done before."""
        self.news = News(News.FETCHED)
        """That something has become of files."""
        self._reader = reader
        self._wholly = wholly
        self.runs = False
        """Its threads run, or have been told to."""

    def start(self, device_fd: int, threads: int, *, ahead_threads: int, ahead_bytes: int) -> None:
        """Fetch with so many threads; `ahead_threads` of them, and `ahead_bytes`, for what nobody waits for."""
        if self.runs:
            return
        try:
            if self._reader is not None:
                groups = array("I", self._reader.groups).tobytes()
                EXTENSION.plane_fetch_as(self._reader.uid, self._reader.gid, groups, self._wholly)
            EXTENSION.plane_fetch_start(device_fd, threads, ahead_threads, ahead_bytes)
        except OSError as error:
            if self._reader is not None:
                log.warning("small files are fetched by Python: no thread becomes user %d: %s", self._reader.uid, error)
            return  # no threads, or built without the checksum: Python fetches
        self.runs = True

    def stop(self, patience_s: float) -> None:
        """In a thread: end it. One that the source does not answer is waited for so long, and left behind then."""
        if self.runs:
            self.runs = False
            EXTENSION.plane_fetch_stop(int(patience_s * 1e9))

    def replace_hanging(self, limit_s: float) -> list[int]:
        """In a thread: give up what waits for the source for longer; who waits for it comes to us. The directories of
        threads that did."""
        if not self.runs:
            return []
        return array("Q", EXTENSION.plane_fetch_replace(int(limit_s * 1e9))).tolist()

    def delegate(
        self,
        directory_id: int,
        fd: int,
        device: int,
        *,
        generation: int,
        largest_bytes: int,
        settled_ns: tuple[int, int],
        until_ns: int,
        valid_s: float,
        careful: bool,
        prefix: bytes,
    ) -> bool:
        """Look at and fetch the small files of a directory, open as `fd`, until `until_ns` (CLOCK_MONOTONIC).

        `generation`: what was begun in a loan of another one is not entered in this one, and nobody waits for it.
        `settled_ns`: files with a younger ctime are ours: of whole seconds, and others. `valid_s`: for how long what is
        said of a name is good.
        `careful`: a file is looked at before it is opened. `prefix`: of the paths of its files. False: it could not be
        delegated.
        """
        if not self.runs:
            return False
        until_ns, valid_ns = min(until_ns, _LONGEST_NS), int(min(valid_s * 1e9, _LONGEST_NS // 4))
        try:
            EXTENSION.plane_delegate(
                directory_id, generation, fd, device, largest_bytes, settled_ns, until_ns, valid_ns, careful, prefix
            )
        except OSError:
            return False
        return True

    def ahead(self, places: Sequence[tuple[int, bytes]]) -> bytearray:
        """Fetch these, each by directory and name, before anybody asks. For each 0, or an errno.

        EEXIST: it is here, or on its way; EPERM: its name is ours; ENOENT: the directory is not delegated; EAGAIN:
        later.
        """
        errors = bytearray()
        for begin in range(0, len(places), _AHEAD_AT_ONCE):
            part = places[begin : begin + _AHEAD_AT_ONCE]
            errors += EXTENSION.plane_fetch_ahead([where for where, _ in part], [name for _, name in part])
        return errors

    def is_busy(self, directory_id: int, name: bytes) -> bool:
        """This file is being looked at, fetched or stored."""
        return bool(EXTENSION.plane_is_busy(directory_id, name))

    def set_terms(self, *, pushes: bool, passes: bool, stores: bool) -> None:
        """`pushes`: opens have all bytes put into the page cache. `passes`: opens of objects whose pages are not there
        come to us. `stores`: it makes objects; else bytes are given to us."""
        EXTENSION.plane_fetch_terms(pushes, passes, stores)

    def place(self, owners: bytes, own: int) -> None:
        """Files that another node of the job owns are ours: `owners` is a table of `policies.cluster.placement`."""
        EXTENSION.plane_placement(owners, own)

    def take_fetched(self) -> list[Fetched]:
        """What has become of files since the last call, some hundreds at most, in their order."""
        return [Fetched(FetchKind(one[0]), bool(one[1]), *one[2:]) for one in EXTENSION.plane_fetched()]

    def store_in(self, directory_fd: int, overhead_bytes: int) -> None:
        """Objects are made and read in this directory, and each takes so much room besides its blocks."""
        EXTENSION.plane_store_in(directory_fd, overhead_bytes)

    def grant(self, numbers: range) -> range:
        """Numbers of new objects, in place of those that were granted before. Those of them that were not used."""
        return range(*EXTENSION.plane_grant(numbers.start, numbers.stop))

    def grant_room(self, size_bytes: int) -> None:
        """So much more room for them."""
        EXTENSION.plane_grant_room(size_bytes)

    def granted(self) -> tuple[int, int]:
        """How many numbers and how much room are left."""
        left: tuple[int, int] = EXTENSION.plane_granted()
        return left

    def know(self, objects: Iterable[KnownObject]) -> None:
        """These need not be fetched. Their bytes are compared with their checksum at first use."""
        EXTENSION.plane_put_versions(b"".join(_ROW.pack(*known) for known in objects))

    def slot(self, node_id: int) -> tuple[int, bytes, int] | None:
        """Directory, name and size of a slot."""
        slot: tuple[int, bytes, int] | None = EXTENSION.plane_slot(node_id)
        return slot

    def set_ahead_threads(self, count: int) -> None:
        """So many of the threads fetch ahead from now on, at least one; those that do go on."""
        EXTENSION.plane_fetch_ahead_at_most(count)

    def store_at_once(self, at_once: bool) -> None:
        """Whether what is fetched ahead is written to the disk of the cache at once from now on, not in a burst when it
        is synced."""
        EXTENSION.plane_store_at_once(at_once)

    def reader_waits(self) -> ReaderWaits:
        """Since the data plane was loaded."""
        return ReaderWaits(*EXTENSION.plane_reader_waits())

    def figures(self) -> FetchFigures:
        """What it has now."""
        return FetchFigures(*EXTENSION.plane_fetch_figures())


def let_go_of_staged_bytes() -> None:
    """What was fetched ahead and stored is kept in memory no longer: nobody is about to read it."""
    EXTENSION.plane_trim()
