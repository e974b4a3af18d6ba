"""Objects as they were left, or not: what reads find out about them, and the sound ones, published to the kernel.

Right bytes in an object that is as we left it make a chunk verified; another stamp makes all its chunks unverified; a
fault makes chunks forgotten (`Findings`). So the caller goes to the source, now and the next time, and nothing damaged
is read twice.

An object is sound if it has the stamp with which all its chunks were found right (`cache.objects.changes`); that is
looked at whenever one is published: a descriptor of a complete, durable and sound one, for the kernel to read by
itself.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TypeVar

from hfs.mountd.cache.index import Stamp
from hfs.mountd.cache.objects.changes import ReclaimQueue, is_ours, stamp_of
from hfs.mountd.cache.objects.context import CacheContext
from hfs.mountd.cache.objects.disk import Descriptors, Disk, object_name, some_objects
from hfs.mountd.cache.objects.file import StagedFile
from hfs.mountd.cache.objects.io import Damaged
from hfs.mountd.cache.objects.reads import OUR_LIMITS, Changed, publish_object, publish_opened
from hfs.mountd.cache.told_objects import ExposedObjects
from hfs.mountd.core.errors import StagingError, shown_path
from hfs.policies.geometry import Extent, chunk_range

Value = TypeVar("Value")


class Findings:
    """`number` is always that of the object that was looked at: the file may have another one by now."""

    def __init__(
        self, context: CacheContext, descriptors: Descriptors, reclaim_queue: ReclaimQueue, telling: ExposedObjects
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
            self._descriptors.drop(number)
            self._telling.hear()
            if not self._telling.may_go(number):
                self._telling.want_move()  # newer ones are not told of it
        file.suspect()
        if found is None:
            self.failed(file, number, Extent(0, file.size), Damaged(errno.EIO, "it has another length"))
        return False

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


class ObjectPublisher:
    """Event loop only."""

    def __init__(self, context: CacheContext, findings: Findings) -> None:
        self._context = context
        self._findings = findings

    @property
    def directory_fd(self) -> int:
        """Where the names of objects begin; open as long as the cache."""
        return self._context.disk.directory

    @property
    def on_overlay(self) -> bool:
        """The cache directory lies on an overlay file system."""
        return self._context.disk.on_overlay()

    def is_sound_nowait(self, file: StagedFile) -> bool | None:
        """Whether the object of `file` is as it was left and all right; None: that cannot be said without the disk."""
        number = file.object_id
        if number is None or not file.sound:
            return False
        fd = self._context.disk.open_cached(number)
        if fd is None:
            return None
        try:
            return self._findings.is_as_left(file, number, stamp_of(fd, file.size))
        finally:
            self._context.disk.io.close(fd)

    async def is_sound(self, file: StagedFile) -> bool:
        """Whether the object of `file` is as it was left, and all its chunks were right then. Looks at the object."""
        sound = self.is_sound_nowait(file)
        if sound is None:
            try:
                await self.publish(file, int)
            except (StagingError, OSError):  # it cannot even be opened: who reads it through us meets that again
                return False
        return sound is not False

    def place(self, file: StagedFile) -> tuple[int, str] | None:
        """Where the complete, durable and sound object of `file` is: a directory that stays open, and a name there."""
        if file.object_id is None or not (file.durable and file.sound):
            return None
        return self._context.disk.directory, object_name(file.object_id)

    def publish_nowait(self, file: StagedFile, use: Callable[[int], Value]) -> Value | None:
        """Publish it if the object can be opened without waiting for the disk; else None."""
        number = file.object_id
        fd = self._context.disk.open_cached(number) if number is not None and file.durable and file.sound else None
        if fd is None or number is None:
            return None
        try:
            return publish_opened(self._context.disk, fd, file.size, file.stamp, use)
        except Changed as changed:
            self._findings.is_as_left(file, number, changed.found)
            return None

    async def publish(self, file: StagedFile, use: Callable[[int], Value]) -> Value:
        """`use(descriptor)`, which does not wait, of the complete, durable and sound object of `file`, which is pinned.

        The descriptor is closed afterwards. Raises StagingError if there is no such object, and what `use` raises.
        """
        number, stamp = file.object_id, file.stamp
        if number is None or not (file.durable and file.sound):
            raise StagingError("not staged as a whole, or not known to be right")
        try:
            return await self._context.threads.read(publish_object, self._context.disk, number, file.size, stamp, use)
        except Changed as changed:
            if file.object_id == number and file.stamp == stamp:
                self._findings.is_as_left(file, number, changed.found)
            raise StagingError(str(changed)) from None
        except FileNotFoundError as error:
            self._findings.failed(file, number, Extent(0, file.size), error)
            raise StagingError(f"a staged file cannot be read: {error}") from error

    async def publish_some(self, at_most: int, use: Callable[[int], Value]) -> list[Value]:
        """`use(descriptor)`, in a thread, of so many objects, taken by chance, whatever has become of them. Raises
        OSError, and what `use` raises."""
        return await self._context.threads.look(_of_some, self._context.disk, at_most, use)

    async def publish_empty(self, use: Callable[[int], Value]) -> Value:
        """`use(descriptor)`, in a thread, of an empty file on the cache's disk: to see whether it would work.

        Raises StagingError if there can be none, and what `use` raises.
        """
        try:
            fd = await self._context.threads.read(self._context.disk.open_empty)
        except OSError as error:
            raise StagingError(str(error)) from error
        try:
            return await self._context.threads.read(use, fd)
        finally:
            self._context.disk.io.close(fd)


def _of_some(disk: Disk, at_most: int, use: Callable[[int], Value]) -> list[Value]:
    found = []
    for number in some_objects(disk.directory, at_most):
        try:
            fd = disk.open_read(number)
        except FileNotFoundError:
            continue  # gone meanwhile
        try:
            found.append(use(fd))
        finally:
            disk.io.close(fd)
    return found
