"""Findings: what reads find out about objects, and what follows from it.

Right bytes in an object that is as we left it make a chunk verified; another stamp makes all its chunks unverified; a
fault makes chunks forgotten. So the caller goes to the source, now and the next time, and nothing damaged is read
twice. Plain state on the event loop.
"""

from __future__ import annotations

import errno
from typing import Protocol

from hfs.mountd.base.printable import shown_path
from hfs.mountd.cache.index import Stamp
from hfs.mountd.cache.objects import (
    OUR_LIMITS,
    CacheContext,
    Damaged,
    Descriptors,
    StagedFile,
    is_ours,
)
from hfs.mountd.cache.objects.reclaim_queue import ReclaimQueue
from hfs.policies.geometry import Extent, chunk_range


class DoubtedObjects(Protocol):
    """Of overlays, which open objects by themselves."""

    sound_again_bytes: int
    """Of whole files of which nobody knew whether they are right, and that were found so."""

    def hear(self) -> None:
        """What others have told."""

    def may_go(self, number: int) -> bool:
        """Whether no generation may have this object open."""

    def want_move(self) -> None:
        """New generations are needed, in a moment."""


class Findings:
    """`number` is always that of the object that was looked at: the file may have another one by now."""

    def __init__(
        self, context: CacheContext, descriptors: Descriptors, reclaim_queue: ReclaimQueue, telling: DoubtedObjects
    ) -> None:
        self._context = context
        self._telling = telling
        self._descriptors = descriptors
        self._reclaim_queue = reclaim_queue

    def right(
        self, file: StagedFile, number: int, index: int, found: Stamp | None, *, steady: bool, by_name: bool
    ) -> None:
        """Chunk `index` was found right, in an object that then had the stamp `found`.

        `steady`: nobody else has changed it since it was read. `by_name`: it was opened just now.
        """
        as_left = self.is_as_left(file, number, found)
        if file.stamp is None and file.changing is None and steady and by_name:
            file.stamp, as_left = found, True  # what is known of it begins here
        if as_left and steady and file.stamp is not None and index in file.present:
            if index not in file.verified:
                self._context.metrics.add("staged_verified_bytes", file.chunk(index).size)
            was_sound = file.sound
            file.verify(index)
            if not was_sound and file.sound:
                self._telling.sound_again_bytes += file.size

    def is_as_left(self, file: StagedFile, number: int, found: Stamp | None) -> bool:
        """Whether an object that was found with this stamp is as we left it. If not, its chunks are verified anew."""
        if is_ours(file, found):
            return True
        if file.stamp is not None:
            self._context.metrics.add("staged_changed")
            self.close(number)
            self._telling.hear()
            if not self._telling.may_go(number):
                self._telling.want_move()  # newer ones are not told of it
        file.doubt()
        if found is None:
            self.failed(file, number, Extent(0, file.size), Damaged(errno.EIO, "it has another length"))
        return False

    def close(self, number: int) -> None:
        """By its name the object may be another one now: it is opened again for the next read."""
        fd = self._descriptors.discard(number)
        if fd is not None:
            self._context.disk.io.close(fd)

    def failed(self, file: StagedFile, number: int, extent: Extent, error: OSError | None) -> None:
        """`extent` could not be read, or is not what was staged: its chunks are forgotten, if it is the object's
        fault."""
        if file.object_id != number:
            return
        if error is not None and error.errno in OUR_LIMITS:
            self._context.health.broken(f"reading staged files: {error}")
            return
        name = f"{shown_path(file.path)} (object {number})"
        self._context.health.broken(f"staged bytes of {name} cannot be read: {error}")
        if isinstance(error, FileNotFoundError):
            self._reclaim_queue.lost(file)
            return
        if isinstance(error, Damaged):
            self._context.metrics.add("staged_checksum_failures")
        self._reclaim_queue.give_up(file, list(chunk_range(extent, file.chunk_bytes)))
