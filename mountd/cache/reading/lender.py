"""Lending objects: descriptors of complete, durable and sound ones, for the kernel to read by itself.

An object is sound if it has the stamp with which all its chunks were found right (`cache.objects.stamps`); that is
looked at whenever one is lent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hfs.mountd.base.errors import StagingError
from hfs.mountd.cache.objects import (
    CacheContext,
    Changed,
    Disk,
    StagedFile,
    lend_object,
    lend_opened,
    object_name,
    some_objects,
    stamp_of,
)
from hfs.mountd.cache.reading.findings import Findings
from hfs.policies.geometry import Extent

Value = TypeVar("Value")


class ObjectLender:
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
        """As `is_sound`, if that needs no disk; else None."""
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
                await self.lend(file, int)
            except (StagingError, OSError):  # it cannot even be opened: who reads it through us meets that again
                return False
        return sound is not False

    def place(self, file: StagedFile) -> tuple[int, str] | None:
        """Where the complete, durable and sound object of `file` is: a directory that stays open, and a name there."""
        if file.object_id is None or not (file.durable and file.sound):
            return None
        return self._context.disk.directory, object_name(file.object_id)

    def lend_nowait(self, file: StagedFile, use: Callable[[int], Value]) -> Value | None:
        """As `lend`, if the object can be opened without waiting for the disk; else None."""
        number = file.object_id
        fd = self._context.disk.open_cached(number) if number is not None and file.durable and file.sound else None
        if fd is None or number is None:
            return None
        try:
            return lend_opened(self._context.disk, fd, file.size, file.stamp, use)
        except Changed as changed:
            self._findings.is_as_left(file, number, changed.found)
            return None

    async def lend(self, file: StagedFile, use: Callable[[int], Value]) -> Value:
        """`use(descriptor)`, which does not wait, of the complete, durable and sound object of `file`, which is pinned.

        The descriptor is closed afterwards. Raises StagingError if there is no such object, and what `use` raises.
        """
        number, stamp = file.object_id, file.stamp
        if number is None or not (file.durable and file.sound):
            raise StagingError("not staged as a whole, or not known to be right")
        try:
            return await self._context.threads.read(lend_object, self._context.disk, number, file.size, stamp, use)
        except Changed as changed:
            if file.object_id == number and file.stamp == stamp:
                self._findings.is_as_left(file, number, changed.found)
            raise StagingError(str(changed)) from None
        except FileNotFoundError as error:
            self._findings.failed(file, number, Extent(0, file.size), error)
            raise StagingError(f"a staged file cannot be read: {error}") from error

    async def lend_some(self, at_most: int, use: Callable[[int], Value]) -> list[Value]:
        """`use(descriptor)`, in a thread, of so many objects, taken by chance, whatever has become of them. Raises
        OSError, and what `use` raises."""
        return await self._context.threads.look(_of_some, self._context.disk, at_most, use)

    async def lend_empty(self, use: Callable[[int], Value]) -> Value:
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
