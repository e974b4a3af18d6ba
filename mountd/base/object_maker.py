"""Whoever makes objects of the cache without asking for each, as the cache knows it (`kernel.small_fetches`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol


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


class ObjectMaker(Protocol):
    """Never waits, but for answers under way."""

    def store_in(self, directory_fd: int, overhead_bytes: int) -> None:
        """Objects are made and read in this directory, and each takes so much room besides its blocks."""

    def grant(self, numbers: range) -> range:
        """Numbers of new objects, in place of those that were granted before. Those of them that were not used."""

    def grant_room(self, size_bytes: int) -> None:
        """So much more room for them."""

    def granted(self) -> tuple[int, int]:
        """How many numbers and how much room are left."""

    def know(self, objects: Iterable[KnownObject]) -> None:
        """These need not be fetched. Their bytes are compared with their checksum at first use."""
