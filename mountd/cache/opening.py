"""Opening and closing a cache directory: each thing that is started stands beside its undo.

Used by the daemon, and by `hfs cache` when nothing is mounted. The cache is there as soon as the index is open,
whatever the number of rows; what an earlier run left behind is cleaned up in the background.

Where no cache can be had it is opened on an index in memory that names nothing and a disk that takes nothing: so all
that asks a cache has one to ask, which is empty and stays so; no call of it reaches a disk.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

import trio

from hfs.mountd.cache.cache import Cache, CacheSettings
from hfs.mountd.cache.generation import Generation
from hfs.mountd.cache.grants import CacheQuota
from hfs.mountd.cache.index import Connect, Index, IndexFailed, in_memory
from hfs.mountd.cache.objects.context import NOBODY, CacheContext, Health, Others, Room, RunInThread, Threads
from hfs.mountd.cache.objects.disk import Descriptors, Disk, DiskSpace, set_objects_aside
from hfs.mountd.cache.told_objects import ExposedObjects
from hfs.mountd.core.background import call_guarded
from hfs.mountd.core.cache_directory import CacheDirectory, lock_cache, open_cache_directory
from hfs.mountd.core.errors import HfsError, MountError
from hfs.mountd.core.limits import OpenFiles
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.ledger import CacheRoot
from hfs.policies.cache.admission import BLOCK_BYTES
from hfs.policies.cache.eviction import Lru

log = logging.getLogger(__name__)


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


_DRAIN_S = 10.0
"""A stop waits so long for what was put to become durable; then it is fetched again next time."""

_SETTLE_S = 0.3
"""Opening waits so long for the clean-up, which takes milliseconds unless there was a crash: then what is read first is
staged too."""


@asynccontextmanager
async def open_cache(
    cache_dir: str,
    settings: CacheSettings,
    *,
    metrics: Metrics,
    clock: Callable[[], float] = time.time,
    disk: Disk | None = None,
    open_files: OpenFiles | None = None,
    run_in_thread: RunInThread = trio.to_thread.run_sync,
    connect: Connect | None = None,
    drain_s: float = _DRAIN_S,
    others: Others = NOBODY,
    grants: CacheQuota | None = None,
    absent: str | None = None,
) -> AsyncIterator[Cache]:
    """Own `cache_dir` (made if it is not there) until the block is left.

    `clock` gives seconds since the epoch; `grants`: of a size that other caches share, which the capacity is part of;
    `absent`: why it cannot be used: then no disk is touched and nothing is staged. Leaving waits at most `drain_s`
    seconds for what was put to become durable. Raises CacheInUse, CacheFormatError, MountError; ConfigError where
    others may have written there.
    """
    capacity_bytes, chunk_bytes = settings.capacity_bytes, settings.chunk_bytes
    if capacity_bytes is not None and capacity_bytes < chunk_bytes:
        raise MountError(
            f"a cache of {capacity_bytes} bytes cannot hold one chunk of {chunk_bytes}: "
            "give a larger --cache-size or a smaller --chunk"
        )
    disk = disk or (Disk if absent is None else NoDisk)(cache_dir, open_files)
    threads = Threads(run_in_thread, settings.writers)
    opened = await threads.sweep(_open, cache_dir, disk, settings, connect) if absent is None else _nothing(cache_dir)
    try:
        room = Room(
            capacity_bytes, opened.index.counts.blocks * BLOCK_BYTES, opened.space, keeps_floor=settings.keeps_floor
        )
        context = CacheContext(
            disk,
            opened.index,
            threads,
            room,
            Health(metrics, absent),
            metrics,
            clock,
            others if absent is None else replace(others, maker=None),
        )
        async with _running(context, settings, drain_s, grants) as cache:
            yield cache
    finally:
        with trio.CancelScope(shield=True):
            if grants is not None:
                await grants.end(opened.index.counts.blocks * BLOCK_BYTES)
            await threads.sweep(_close, opened, disk)


@asynccontextmanager
async def _running(
    context: CacheContext,
    settings: CacheSettings,
    drain_s: float,
    grants: CacheQuota | None,
) -> AsyncIterator[Cache]:
    """Its tasks run until the block is left."""
    if grants is not None:
        await grants.begin(context.room)
    caught: Exception | None = None
    async with trio.open_nursery() as nursery:
        telling = ExposedObjects(
            Generation(context.disk, context.threads, context.health, nursery), context.others.overlay_answers
        )
        await telling.open(context.index.opened.next_id)
        cache = Cache(context, settings, nursery, telling, grants)
        context.disk.open_files.add(partial(_let_go, cache.descriptors, trio.lowlevel.current_trio_token()))
        cache.start()
        try:
            with trio.move_on_after(_SETTLE_S):
                await cache.ready.wait()
            yield cache
        except Exception as error:  # noqa: BLE001 - raised again below, unwrapped by the nursery
            caught = error
        finally:
            await cache.drain(drain_s)
            nursery.cancel_scope.cancel()
            cache.descriptors.close()
    if caught is not None:
        raise caught


def _let_go(descriptors: Descriptors, token: trio.lowlevel.TrioToken) -> None:
    """Any thread: close descriptors that are only kept, since the system has none to give."""
    with contextlib.suppress(trio.RunFinishedError):
        token.run_sync_soon(call_guarded, "descriptors", descriptors.let_go, idempotent=True)


@dataclass(frozen=True, slots=True)
class _Opened:
    """What `_close` closes, and what the disk has."""

    directory: CacheDirectory
    lock_fd: int | None
    index: Index
    space: DiskSpace


def _open(cache_dir: str, disk: Disk, settings: CacheSettings, connect: Connect | None) -> _Opened:
    """In a thread."""
    with contextlib.ExitStack() as undo:
        try:
            directory = undo.enter_context(open_cache_directory(cache_dir, make=True))
            lock_fd = lock_cache(directory)
            undo.callback(os.close, lock_fd)
            aside = partial(set_objects_aside, directory)
            index = Index(directory, on_new=aside, **({} if connect is None else {"connect": connect}))
            undo.callback(index.close)
            if settings.attributes == "forgotten":
                index.attributes.forget()  # before anybody sees a change that a later mount would not
            disk.open(directory)
            undo.callback(disk.close)
            if settings.capacity_bytes is None and disk.in_memory():
                raise MountError(f"a cache on tmpfs needs --cache-size: {cache_dir} lies in memory")
            opened = _Opened(directory, lock_fd, index, disk.space())
        except IndexFailed as error:
            raise MountError(f"the cache {cache_dir} cannot be used: {error}: choose another --cache") from error
        except OSError as error:
            message = f"the cache {cache_dir} cannot be used: {error.strerror}: choose another --cache"
            raise MountError(message) from error
        undo.pop_all()
        return opened


def _nothing(cache_dir: str) -> _Opened:
    directory = NoDirectory(cache_dir)
    return _Opened(directory, None, Index(directory, connect=in_memory()), DiskSpace(0, 0))


def _close(opened: _Opened, disk: Disk) -> None:
    """In a thread: the undo of `_open`, the lock last."""
    try:
        opened.index.close()
    except IndexFailed:
        pass  # nothing that was committed depends on an orderly close
    finally:
        disk.close()
        if opened.lock_fd is not None:
            os.close(opened.lock_fd)
        opened.directory.close()


def look_at_cache(cache_dir: str, settings: CacheSettings) -> None:
    """In a thread: open it as `open_cache` would, and close it again. Raises as that."""
    disk = Disk(cache_dir)
    _close(_open(cache_dir, disk, settings, None), disk)


_NO_LIMIT_BYTES = 1 << 62
_SLICE_BYTES = 256 << 20
_LONGEST_S = 1.0


async def evict_idle(root: CacheRoot, run_in_thread: RunInThread, name: str, wanted_bytes: int) -> None:
    """Give up so much of the cache `name`, as far as a second goes, and write down what is left."""
    path = root.path_of(name)
    try:
        hold = await run_in_thread(root.ledger.hold, name)
    except (OSError, HfsError):
        return  # it has a daemon by now, or another owner
    try:
        settings = CacheSettings(_NO_LIMIT_BYTES, keeps_floor=False, eviction=Lru.name)
        async with open_cache(path, settings, metrics=Metrics(), run_in_thread=run_in_thread) as cache:
            with trio.move_on_after(_LONGEST_S):
                await cache.ready.wait()
            if not cache.ready.is_set():
                return  # after a crash of a large cache; another time
            room, before = cache.room, cache.room.used_bytes
            until_s = time.monotonic() + _LONGEST_S
            while room.used_bytes > max(0, before - wanted_bytes) and time.monotonic() < until_s:
                room.capacity_bytes = max(0, before - wanted_bytes, room.used_bytes - _SLICE_BYTES)
                if not await cache.evictor.make_room():
                    break
            left = room.used_bytes
        await run_in_thread(hold.settle, left, room.pinned_bytes)
        log.info("%s: %d bytes made room for a cache that is in use", path, before - left)
    except (OSError, HfsError) as error:
        log.warning("%s: nothing can be evicted there: %s", path, error)
    finally:
        hold.close()
