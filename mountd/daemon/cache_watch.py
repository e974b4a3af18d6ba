"""Watching a cache that could not be had, or was lost: when it is well, another daemon takes it up.

The mount's next daemon opens the cache as after a crash, so that nothing in this one has to change under its readers,
who wait for some tenths of a second. Before that the cache is opened and closed once, to see that it can be. It is not
done for a cache that only rests: that tries again by itself.

What asks the disk of a cache for the first time may never come back, so it runs in a thread that is left behind then.
While one is, no other is sent after it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import msgspec
import trio

from hfs.mountd.cache import Cache, CacheQuota, CacheSettings, evict_idle, look_at_cache
from hfs.mountd.core.cache_directory import open_cache_directory
from hfs.mountd.core.config import Config
from hfs.mountd.core.errors import CacheInUse, HfsError, MountError
from hfs.mountd.daemon.basics import Basics
from hfs.mountd.ledger import Board, CacheRoot, NeighbourWaits, Registration, ServedSource, cache_name
from hfs.mountd.source import Source
from hfs.policies.prefetch.yielding import Waits

Value = TypeVar("Value")

log = logging.getLogger(__name__)

_SILENT_S = 5.0
"""A disk that takes a new file in this time is asked for all the rest."""
_LOOK_S = 60.0
"""Opening a cache takes a second, of a slow disk and after a crash more."""
_FIRST_S, _LONGEST_S = 5.0, 60.0
"""Between two looks; twice as long each time."""


@dataclasses.dataclass(eq=False)
class OwnCache:
    """The place of this daemon's cache below the cache root, its share of the root's size, and the others beside it.

    Who starts a daemon hears what was given wrongly, and gets none. Where the disk of the cache fails a daemon goes on
    without one (`without`), and one that follows another does so whatever the reason; `mountd/daemon/cache_watch.py`
    sees when it is well.

    Below a root, until the block of `open_own_cache` is left.
    """

    path: str
    grants: CacheQuota | None
    exchange: Callable[[Waits, Waits], dict[str, NeighbourWaits] | None]
    """Tell the others how readers wait, and hear of theirs."""
    registration: Registration | None
    serving: ServedSource
    absent: str | None = None
    """Why there is none; None: there is."""
    _: dataclasses.KW_ONLY
    shared: bool = False
    """Others may put something in its place."""

    def answers_at(self, control: str) -> None:
        """Tell the others, and whoever would mount the same source, where this daemon is asked. Raises OSError."""
        if self.registration is not None:
            self.registration.serves(msgspec.structs.replace(self.serving, control=os.fsencode(control)))


def _nobody(_source: Waits, _disk: Waits) -> None:
    """Where there is no ledger nobody hears how readers wait."""


def without(basics: Basics, source: Source, why: str) -> OwnCache:
    """None can be had."""
    return OwnCache(basics.config.cache, None, _nobody, None, _identity(basics.config, source)[0], why)


@asynccontextmanager
async def open_own_cache(basics: Basics, source: Source) -> AsyncIterator[OwnCache]:
    """Raises CacheInUse, ConfigError, MountError."""
    run = basics.workers.run_sync
    root, registration, serving = await run(open_root, basics.config, source, basics.journal.generation > 0)
    try:
        grants = CacheQuota(registration, partial(evict_idle, root, run), run)
        exchange = Board(root.ledger, registration, serving.device).exchange
        path, shared = root.path_of(registration.name), root.directory.shared
        yield OwnCache(path, grants, exchange, registration, serving, shared=shared)
    finally:
        registration.close()
        root.close()


def open_root(config: Config, source: Source, again: bool) -> tuple[CacheRoot, Registration, ServedSource]:
    """In a thread: the caller closes root and registration. Raises as `open_own_cache`."""
    try:
        with contextlib.ExitStack() as undo:
            root = CacheRoot(config.cache)
            undo.callback(root.close)
            serving, name = _identity(config, source)
            root.make_way(name)
            registration = root.ledger.register(name, serving, config.cache_size_bytes, again=again)
            undo.pop_all()
            return root, registration, serving
    except BlockingIOError as error:
        raise CacheInUse(
            f"the cache of {config.source} below {config.cache} is in use by another daemon: use its mount "
            "(hfs status lists them), or another --cache"
        ) from error
    except OSError as error:
        text = f"the cache {config.cache} cannot be used: {error.strerror}: choose another --cache"
        raise MountError(text) from error


def _identity(config: Config, source: Source) -> tuple[ServedSource, str]:
    serving = ServedSource(
        source=os.fsencode(config.source),
        device=source.root_device,
        inode=source.root_inode,
        mountpoint=os.fsencode(config.mountpoint),
        pid=os.getpid(),
    )
    user = source.threads.user
    reader = None if user is None else user.who.uid
    return serving, cache_name(source.source_id, source.root_inode, source.path, reader)


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
