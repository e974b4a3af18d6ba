"""Open files and open directories: what one file handle of the kernel stands for.

A file handle belongs to one version for as long as it is open. It keeps the node alive, the staged file pinned (never
evicted while open) and the pattern of its reads. A directory handle holds the listing it was opened with, so that a
directory that changes meanwhile is shown as one state. Handle numbers are never used twice in a daemon's life.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import count

from mountd.errors import SourceError
from mountd.listing import Listing
from mountd.node import Dentry, Node
from mountd.staging_file import StagedFile
from policies.iomode import SMALL_BYTES
from policies.readahead import Pattern
from policies.successors import Trail

__all__ = ["DirectoryHandle", "FileHandle", "Handles"]


_MAX_STATELESS = 4096
"""Handles of files that are read without an open; each holds the pattern of its reads."""


@dataclass(eq=False, slots=True)
class FileHandle:
    """One open file."""

    node: Node
    file: StagedFile
    backing_id: int | None = None
    """The backing file that the kernel reads instead of asking us; None: through the page cache."""
    pattern: Pattern = field(default_factory=Pattern)
    trail: Trail | None = None
    """Made when its reads are neither sequential nor foreseen."""


@dataclass(eq=False, slots=True)
class DirectoryHandle:
    """One open directory. `listing` is None until the first readdir.

    `batch` holds what the names from position `batch_start` on are: the kernel takes some thirty entries a call, the
    source is asked for hundreds at once. `whole`: its reader wants attributes, as far as is known.
    """

    node: Node
    listing: Listing | None = None
    batch: list[Dentry] = field(default_factory=list)
    batch_start: int = 0
    whole: bool = False

    def known(self, position: int) -> Dentry | None:
        """What the name at `position` is, if the batch reaches there."""
        ahead = position - self.batch_start
        return self.batch[ahead] if 0 <= ahead < len(self.batch) else None


class Handles:
    """The table of open handles, by number."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._files: dict[int, FileHandle] = {}
        self._directories: dict[int, DirectoryHandle] = {}
        self._stateless: OrderedDict[int, FileHandle] = OrderedDict()

    def add_file(self, handle: FileHandle) -> int:
        """Register an open file; its number."""
        number = next(self._numbers)
        self._files[number] = handle
        return number

    def add_directory(self, handle: DirectoryHandle) -> int:
        """Register an open directory; its number."""
        number = next(self._numbers)
        self._directories[number] = handle
        return number

    def file(self, number: int) -> FileHandle:
        """The open file `number`. Raises SourceError(EBADF)."""
        try:
            return self._files[number]
        except KeyError:
            raise SourceError(errno.EBADF, f"file handle {number}") from None

    def directory(self, number: int) -> DirectoryHandle:
        """The open directory `number`. Raises SourceError(EBADF)."""
        try:
            return self._directories[number]
        except KeyError:
            raise SourceError(errno.EBADF, f"directory handle {number}") from None

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

    def has_file(self, number: int) -> bool:
        """Whether the open file `number` is in the table."""
        return number in self._files

    def file_numbers(self) -> list[int]:
        """All open files."""
        return list(self._files)

    def remove_file(self, number: int) -> FileHandle:
        """Take the open file `number` out. Raises SourceError(EBADF)."""
        handle = self.file(number)
        del self._files[number]
        return handle

    def remove_directory(self, number: int) -> None:
        """Take the open directory `number` out. Raises SourceError(EBADF)."""
        self.directory(number)
        del self._directories[number]

    def statistics(self) -> dict[str, int]:
        """Open files and directories."""
        return {"files": len(self._files), "directories": len(self._directories)}

    def from_before_complete(self) -> int:
        """Handles of large files that are read through us although the kernel could: opened again they would not be."""
        return sum(
            handle.backing_id is None and handle.file.durable and handle.file.size > SMALL_BYTES
            for handle in self._files.values()
        )
