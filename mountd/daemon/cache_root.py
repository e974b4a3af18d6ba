"""The place of this daemon's cache below the cache root, its share of the root's size, and the others beside it.

Who starts a daemon hears what was given wrongly, and gets none. Where the disk of the cache fails a daemon goes on
without one (`without`), and one that follows another does so whatever the reason; `mountd/daemon/cache_watch.py` sees
when it is well.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import msgspec

from hfs.mountd.cache import CacheQuota, evict_idle
from hfs.mountd.core.config import Config
from hfs.mountd.core.errors import CacheInUse, MountError
from hfs.mountd.daemon.basics import Basics
from hfs.mountd.ledger import Board, CacheRoot, NeighbourWaits, Registration, ServedSource, cache_name
from hfs.mountd.source import Source
from hfs.policies.prefetch.yielding import Waits


@dataclasses.dataclass(eq=False)
class OwnCache:
    """Below a root, until the block of `open_own_cache` is left."""

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
