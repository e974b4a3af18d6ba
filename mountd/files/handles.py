"""Open files and open directories: what one file handle of the kernel stands for.

A file handle belongs to one version for as long as it is open. It keeps the node alive, the staged file pinned (never
evicted while open) and the pattern of its reads. A directory handle holds the listing it was opened with, so that a
directory that changes meanwhile is shown as one state. Handle numbers are never used twice in a mount's life.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.core.errors import SourceError, shown_path
from hfs.mountd.kernel import DataPlane
from hfs.mountd.namespace import Dentry, Journal, Namespace, Node
from hfs.mountd.source import Listing
from hfs.policies.iomode import SMALL_BYTES
from hfs.policies.prefetch.readahead import Pattern
from hfs.policies.schedule.successors import Trail

_RESENT = 1 << 63
"""In the number of a request that the kernel sends again."""

_DELEGATED = 1 << 62
"""In the number of a handle that the data plane gives out, to all who open its node."""

_GENERATION_BITS = 40
"""Handles that one daemon of a mount has: a thousand a second for 30 years."""

_MAX_STATELESS = 4096
"""Handles of files that are read without an open; each holds the pattern of its reads."""


@dataclass(eq=False, slots=True)
class FileHandle:
    """One open file, or all opens of one node that the data plane has answered."""

    node: Node
    file: StagedFile
    backing_id: int | None = None
    """The backing file that the kernel reads instead of asking us; None: through the page cache."""
    backing_inode: int = 0
    """Of the backing file."""
    pattern: Pattern = field(default_factory=Pattern)
    counter: int | None = None
    """Where the data plane counts how many have it open; None: one has."""
    trail: Trail | None = None
    """Made when its reads are neither sequential nor foreseen."""
    opener: int = 0
    """The thread that has opened it; 0: not known, or several have."""


@dataclass(eq=False, slots=True)
class DirectoryHandle:
    """One open directory. `listing` is None until the first readdir.

    `batch` holds what the names before position `batch_end` are, from the one on at which it was asked for; those that
    are not in it are slots. The kernel takes some thirty entries a call, the source is asked for hundreds at once.
    `whole`: its reader wants attributes, as far as is known.
    """

    node: Node
    listing: Listing | None = None
    batch: dict[bytes, Dentry] = field(default_factory=dict)
    batch_begin: int = 0
    batch_end: int = 0
    whole: bool = False
    expected: bool = False
    """The same of the first names only, as far as the source says it soon."""
    unique: int = 0
    """The kernel's number of the request that has opened it; 0: not known."""
    shown: int = 0
    """So many names at most were shown, as far as is noted; `digest` of an earlier daemon's."""
    digest: int | None = None
    """Of what an earlier daemon has shown: who goes on there must find the same names before it."""

    def begin(self, listing: Listing) -> None:
        """Show `listing` from its first name on: opened, or rewound."""
        self.listing, self.shown, self.digest = listing, 0, None
        self.batch, self.batch_end = {}, 0

    async def go_on(self, listing: Listing, position: int) -> None:
        """Show `listing` from `position` on, to a reader that an earlier daemon has shown what stands before.

        Raises SourceError(ESTALE) if that cannot be said of it: a name would be missing, or come twice.
        """
        if self.digest is not None:
            there = position <= self.shown and await listing.reaches(self.shown - 1)
            if not there or await listing.digest(self.shown) != self.digest:
                raise SourceError(errno.ESTALE, f"{shown_path(self.node.path)} has changed while it was listed")
        self.listing, self.digest = listing, None


class SlotHandles:
    """Handles that the data plane has given out for slots, once these are nodes: each has the id of its slot for a
    number.

    Such a handle has no staged file until somebody reads by it here: to find one may take a look at the index, and a
    slot becomes a node where nothing may wait. From then on it is a handle like all others.
    """

    def __init__(self, journal: Journal, attach: Callable[[int, Node, StagedFile, int], object]) -> None:
        """`attach(number, node, file, counter)`: it is a handle like all others from now on."""
        self._journal = journal
        self._attach = attach
        self._waiting: dict[int, tuple[Node, int]] = {}
        """Node and counter, by number."""

    def opened(self, node: Node, counter: int) -> None:
        """`node`, which is noted and was a slot until now, is open; how many have it open is counted in `counter`."""
        self._waiting[node.id] = node, counter
        self._journal.handles.opened(node.id, node.id, 0, 0, 0)

    async def attach(self, number: int, cache: Cache) -> None:
        """Somebody reads by this handle: have it be like all others. Nothing, if it is."""
        while (waiting := self._waiting.get(number)) is not None:
            node, counter = waiting
            assert node.version is not None
            file = cache.files.get_nowait(node.version, node.path) or await cache.files.get(node.version, node.path)
            if self._waiting.get(number) is waiting:
                del self._waiting[number]
                cache.files.pin(file)
                self._attach(number, node, file, counter)

    def close(self, number: int, namespace: Namespace, plane: DataPlane) -> bool:
        """One of those who have it has closed it. False: it is like all others."""
        waiting = self._waiting.get(number)
        if waiting is None:
            return False
        node, counter = waiting
        if (plane.closed(counter) if counter >= 0 else node.own_opens - 1) <= 0:  # -1: there was no counter
            del self._waiting[number]
            self._journal.handles.closed(number)
            if counter >= 0:
                plane.free_counter(counter)
        namespace.holds.closed(node, passed=False)
        return True


class Handles:
    """The table of open handles, by number."""

    def __init__(self, journal: Journal) -> None:
        """`journal`: notes each handle, and what is shown of directories; the kernel may still hold handles of daemons
        that have served the mount before."""
        self.journal = journal
        self._numbers = count((journal.generation << _GENERATION_BITS) + 1)
        self._files: dict[int, FileHandle] = {}
        self._directories: dict[int, DirectoryHandle] = {}
        self.slots = SlotHandles(journal, self._attach)
        """Those of them that have no file yet."""
        self._stateless: OrderedDict[int, FileHandle] = OrderedDict()
        self._answered: dict[int, int] = {}
        """Handles of earlier daemons by the request that they were the answer to, which may not have left."""

    def add_file(self, handle: FileHandle, unique: int = 0, *, delegated: bool = False) -> int:
        """Register an open file, whose node is noted; its number. `unique`: of the request that opens it. `delegated`:
        the data plane gives it out."""
        number = next(self._numbers) | (_DELEGATED if delegated else 0)
        self._files[number] = handle
        self.journal.handles.opened(number, handle.node.id, handle.backing_id or 0, handle.backing_inode, unique)
        return number

    def add_directory(self, handle: DirectoryHandle) -> int:
        """Register an open directory; its number."""
        number = next(self._numbers)
        self._directories[number] = handle
        self.journal.handles.opened_directory(number, handle.node.id, handle.unique)
        return number

    def inherit_file(self, number: int, handle: FileHandle, unique: int) -> None:
        """Take over an open file from an earlier daemon."""
        self._files[number] = handle
        self._answered[unique] = number

    def _attach(self, number: int, node: Node, file: StagedFile, counter: int) -> None:
        self._files[number] = FileHandle(node, file, counter=counter if counter >= 0 else None)

    def inherit_directory(self, number: int, handle: DirectoryHandle) -> None:
        """Take over an open directory from an earlier daemon."""
        self._directories[number] = handle
        self._answered[handle.unique] = number

    def answered(self, unique: int) -> int | None:
        """The handle that request `unique`, which the kernel has sent again, was about to be answered with."""
        return self._answered.get(unique & ~_RESENT) if unique & _RESENT else None

    def show(self, number: int, position: int) -> None:
        """The reader of directory `number` is shown names before `position` now."""
        handle = self._directories.get(number)
        if handle is None or handle.listing is None or position <= handle.shown or not self.journal.on:
            return
        handle.shown, digest = handle.listing.marked(position)
        self.journal.handles.shown(number, handle.unique, handle.shown, digest)

    def file(self, number: int) -> FileHandle:
        """The open file `number`. Raises SourceError(ESTALE): opened when another daemon served the mount."""
        try:
            return self._files[number]
        except KeyError:
            raise SourceError(errno.ESTALE, f"file handle {number}") from None

    def directory(self, number: int) -> DirectoryHandle:
        """The open directory `number`. Raises SourceError(ESTALE), as `file`."""
        try:
            return self._directories[number]
        except KeyError:
            raise SourceError(errno.ESTALE, f"directory handle {number}") from None

    def without_open(self, node_id: int) -> FileHandle | None:
        """The handle of a node that the kernel reads without having opened it."""
        handle = self._stateless.get(node_id)
        if handle is None or handle.node.id != node_id:  # the id may be another node's now
            return None
        self._stateless.move_to_end(node_id)
        return handle

    def keep_without_open(self, handle: FileHandle) -> None:
        """Remember `handle` for its node; the least recently used goes. It is no open: nothing is pinned."""
        self._stateless[handle.node.id] = handle
        while len(self._stateless) > _MAX_STATELESS:
            self._stateless.popitem(last=False)

    @staticmethod
    def is_delegated(number: int) -> bool:
        """The data plane gives this handle out, or has."""
        return bool(number & _DELEGATED)

    def has_file(self, number: int) -> bool:
        """Whether the open file `number` is in the table."""
        return number in self._files

    def file_numbers(self) -> list[int]:
        """All open files."""
        return list(self._files)

    def remove_file(self, number: int) -> FileHandle:
        """Take the open file `number` out. Raises SourceError(ESTALE)."""
        handle = self.file(number)
        del self._files[number]
        self.journal.handles.closed(number)
        return handle

    def remove_directory(self, number: int) -> None:
        """Take the open directory `number` out, if it is there."""
        if self._directories.pop(number, None) is not None:
            self.journal.handles.closed_directory(number)

    def statistics(self) -> dict[str, int]:
        """Open files and directories."""
        return {
            "files": sum(handle.node.opens > 0 for handle in self._files.values()),
            "directories": len(self._directories),
        }

    def reading_by_itself(self, file: StagedFile) -> Node | None:
        """A node of which the kernel reads `file` without asking us; None: there is none."""
        found = (handle for handle in self._files.values() if handle.file is file and handle.backing_id is not None)
        handle = next(found, None)
        return handle.node if handle is not None else None

    def from_before_complete(self) -> int:
        """Handles of large files that are read through us although the kernel could: opened again they would not be."""
        return sum(
            handle.backing_id is None and handle.file.durable and handle.file.size > SMALL_BYTES
            for handle in self._files.values()
        )
