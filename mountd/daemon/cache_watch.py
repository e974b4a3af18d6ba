"""Watching a cache that could not be had, or was lost: when it is well, another daemon takes it up.

The mount's next daemon opens the cache as after a crash, so that nothing in this one has to change under its readers,
who wait for some tenths of a second. Before that the cache is opened and closed once, to see that it can be. It is not
done for a cache that only rests: that tries again by itself.

What asks the disk of a cache for the first time may never come back, so it runs in a thread that is left behind then.
While one is, no other is sent after it.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import trio

from hfs.mountd.cache import Cache, CacheSettings, look_at_cache
from hfs.mountd.core.cache_directory import open_cache_directory
from hfs.mountd.core.errors import HfsError
from hfs.mountd.daemon.basics import Basics
from hfs.mountd.daemon.cache_root import OwnCache, open_root
from hfs.mountd.source import Source

Value = TypeVar("Value")

log = logging.getLogger(__name__)

_SILENT_S = 5.0
"""A disk that takes a new file in this time is asked for all the rest."""
_LOOK_S = 60.0
"""Opening a cache takes a second, of a slow disk and after a crash more."""
_FIRST_S, _LONGEST_S = 5.0, 60.0
"""Between two looks; twice as long each time."""


async def why_silent(path: str, *, limiter: trio.CapacityLimiter | None = None) -> str | None:
    """Why the cache at this path is not even to be opened: its disk does not answer. None: it is to be tried."""
    with trio.move_on_after(_SILENT_S):
        await trio.to_thread.run_sync(_touch, path, abandon_on_cancel=True, limiter=limiter)
        return None
    return f"there is no cache: the disk of {path} does not answer within {_SILENT_S:g} s"


def _touch(path: str) -> None:
    """Whatever is wrong is told by who opens it."""
    with (
        contextlib.suppress(HfsError, OSError),
        open_cache_directory(path, make=True, shared_ok=True) as directory,
        tempfile.TemporaryFile(dir=f"/proc/self/fd/{directory.fd}") as file,
    ):
        file.write(b"x")


@dataclass(frozen=True, slots=True)
class CacheWatch:
    """`run` is a task of the daemon's nursery."""

    basics: Basics
    source: Source
    own: OwnCache
    cache: Cache
    settings: CacheSettings
    limiter: trio.CapacityLimiter = field(default_factory=partial(trio.CapacityLimiter, 1))

    async def run(self, make_room: Callable[[], None]) -> None:
        """Until the cache can be taken up; `make_room` is called then, if another daemon will follow. Returns only
        where none will."""
        pause_s, told = _FIRST_S, ""
        while True:
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_S)
            if not await self._is_lost():
                pause_s = _FIRST_S
                continue
            why = await self._why_not() if self.own.absent is not None else None
            if why is not None:
                if why != told:
                    log.info("%s", why)
                told = why
                continue
            if not self.basics.handover.resend:
                log.warning("the cache can be used again; hfs umount and hfs mount, since no other daemon can follow")
                return
            log.info("the cache can be used again; this daemon makes room for one that does")
            make_room()
            await trio.sleep_forever()

    async def _is_lost(self) -> bool:
        """What this daemon has is no cache, or is not at its place any more and takes nothing."""
        health = self.cache.context.health
        if health.off or self.own.absent is not None:
            return True
        if not health.resting:
            return False
        with trio.move_on_after(_SILENT_S), contextlib.suppress(OSError):
            return not await self._in_thread(self.cache.is_in_place)
        return False

    async def _why_not(self) -> str | None:
        """Why the cache cannot be taken up now."""
        if (why := await why_silent(self.basics.config.cache, limiter=self.limiter)) is not None:
            return why
        with trio.move_on_after(_LOOK_S):
            try:
                await self._in_thread(self._look)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with it
                return f"there is still no cache: {error}"
            return None
        return f"there is still no cache: {self.basics.config.cache} was not opened within {_LOOK_S:g} s"

    async def _in_thread(self, function: Callable[[], Value]) -> Value:
        return await trio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=self.limiter)

    def _look(self) -> None:
        """In a thread."""
        root, registration, _ = open_root(self.basics.config, self.source, again=True)
        try:
            look_at_cache(root.path_of(registration.name), self.settings)
        finally:
            registration.close()
            root.close()
