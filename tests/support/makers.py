"""Whoever makes overlays, as far as a cache knows of it: a locked file in its directory `overlays`."""

import fcntl
import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.cache.generation import Makers
from hfs.mountd.core.attributes import Attributes
from tests.support.faults import CHUNK_BYTES, healthy_staging

NOBODY = Makers()
ROOM = CHUNK_BYTES + 4096
"""In a cache for one file, and not for two."""
SOON_S, LATER_S = 0.5, 3.0
"""What leaves is looked at every 20 ms, and a number that is to be moved is within a second."""
ROOT = Attributes(0o40755, 1, 2, os.geteuid(), os.getegid(), 0, 4096, 8, 4096, 1, 2, 3)
"""Of a mount."""


class FakeMaker:
    """Its generations are said to be; none is made."""

    def __init__(self, cache: Path, name: str = "maker-17-0123abcd") -> None:
        self._folder = cache / "overlays"
        self._file = self._folder / name
        self._fd = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def number(self) -> int:
        return int((self._folder / "number").read_text())

    def tell(self, oldest: int, shown: int) -> None:
        os.pwrite(self._fd, struct.pack("<QQ", oldest, shown), 0)

    def renew(self) -> None:
        """The newest alone is in use."""
        self.tell(self.number(), self.number())

    def kill(self) -> None:
        os.close(self._fd)

    def end(self) -> None:
        self._file.unlink()
        os.close(self._fd)


@asynccontextmanager
async def offering(cache: Path, **how: Any) -> AsyncIterator[tuple[Cache, FakeMaker]]:
    """A cache that offers overlays, and a maker of which the newest alone is in use."""
    async with healthy_staging(cache, **how) as staging:
        await begun(staging)
        maker = FakeMaker(cache)
        maker.renew()
        yield staging, maker


async def renewed(maker: FakeMaker) -> None:
    """Once it can hear of it, its newest alone is in use, and the cache has seen that."""
    await trio.sleep(LATER_S)
    maker.renew()
    await trio.sleep(SOON_S)


async def begun(staging: Cache, *, is_new: bool = True) -> None:
    """Overlays are offered."""
    await staging.telling.begin(ROOT, is_new=is_new)


def number_of(file: StagedFile) -> int:
    """Of its object."""
    assert file.object_id is not None
    return file.object_id


def told(staging: Cache, file: StagedFile) -> bool:
    """Tell an overlay of it. Whether that may be."""
    return staging.telling.tell(number_of(file))
