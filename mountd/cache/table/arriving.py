"""Files whose objects are on the disk and will be in the index in a moment, and of which nothing is known here.

Whoever wants one waits until its row is there (`cache.arrivals`). Event loop only.
"""

from __future__ import annotations

from collections.abc import Iterable

import trio

from mountd.base.version import Version


class Arriving:
    def __init__(self) -> None:
        self._coming: dict[Version, trio.Event] = {}
        self.any_came = False
        """There was one: the index has rows that nobody has looked at."""

    def __contains__(self, version: Version) -> bool:
        return version in self._coming

    def add(self, version: Version) -> bool:
        """An object of it is there. False: another one is coming already."""
        if version in self._coming:
            return False
        self.any_came = True
        self._coming[version] = trio.Event()
        return True

    def landed(self, versions: Iterable[Version]) -> None:
        """They are in the index, or never will be."""
        for version in versions:
            self._coming.pop(version).set()

    async def wait(self, version: Version) -> None:
        """Until it is not coming any more."""
        while (coming := self._coming.get(version)) is not None:
            await coming.wait()
