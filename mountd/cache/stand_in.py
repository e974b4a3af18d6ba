"""What a cache is opened on where none can be had: an index in memory that names nothing, a disk that takes nothing.

So all that asks a cache has one to ask, which is empty and stays so; no call of it reaches a disk. Nothing here blocks.
"""

from __future__ import annotations

import errno
import os

from hfs.mountd.cache.index import Index, in_memory
from hfs.mountd.cache.objects import Disk, DiskSpace
from hfs.mountd.core.cache_directory import CacheDirectory


class NoDirectory(CacheDirectory):
    """In the place of one that cannot be used. Nothing is in it."""

    def __init__(self, path: str) -> None:
        super().__init__(path, path, -1)

    def open(self, name: str, flags: int) -> int:  # noqa: ARG002 - as of any directory
        """A descriptor of a file that keeps nothing."""
        return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)

    def exists(self, name: str) -> bool:  # noqa: ARG002 - as of any directory
        """Nothing does."""
        return False

    def check_opened(self, name: str, times: int) -> None:
        """What is opened lies in memory."""


class NoDisk(Disk):
    """Every object is gone, and none can be made."""

    def open(self, cache: CacheDirectory) -> None:
        """Nothing to open."""

    def open_empty(self) -> int:
        """None can be made."""
        raise OSError(errno.ENODEV, "there is none")

    def sync_all(self) -> None:
        """Nothing was written."""

    def space(self) -> DiskSpace:
        """None."""
        return DiskSpace(0, 0)

    def in_memory(self) -> bool:
        """It lies nowhere."""
        return False

    def on_overlay(self) -> bool:
        """It lies nowhere."""
        return False

    def remove_set_aside(self) -> None:
        """Nothing was."""


def index_in_memory(directory: NoDirectory) -> Index:
    """An index that names nothing, and goes with its last connection, which all of its users share."""
    return Index(directory, connect=in_memory())
