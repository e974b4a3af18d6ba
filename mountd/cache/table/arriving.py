"""Files whose objects are on the disk and will be in the index in a moment, and of which nothing is known here.

Whoever wants one has its object from then on, without waiting for the index (`cache.arrivals`). Event loop only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hfs.mountd.base.version import Version
from hfs.mountd.cache.objects import StagedFile


class Arriving:
    def __init__(self) -> None:
        self._coming: dict[Version, Callable[[StagedFile], object]] = {}
        self.any_came = False
        """There was one: the index has rows that nobody has looked at."""

    def __contains__(self, version: Version) -> bool:
        return version in self._coming

    def add(self, version: Version, give: Callable[[StagedFile], object]) -> bool:
        """An object of it is there, which `give` makes the object of a file. False: another one is coming already."""
        if version in self._coming:
            return False
        self.any_came = True
        self._coming[version] = give
        return True

    def take(self, version: Version, file: StagedFile) -> None:
        """Somebody wants it: the object is the file's."""
        self._coming.pop(version)(file)

    def landed(self, versions: Iterable[Version]) -> None:
        """They are in the index, or never will be."""
        for version in versions:
            del self._coming[version]
