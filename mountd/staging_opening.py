"""Opening and closing a cache directory: each thing that is started stands beside its undo.

`open_staging` is called by the daemon, and by `hfs cache` when nothing is mounted. It returns as soon as the index is
open, whatever the number of rows; what an earlier run left behind is cleaned up in the background.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from mountd.errors import MountError
from mountd.index import Connect, Index, IndexFailed
from mountd.index_schema import lock_cache
from mountd.metrics import Metrics
from mountd.staging import Staging
from mountd.staging_disk import Disk, DiskSpace
from mountd.staging_ground import Ground, RunInThread, Threads
from mountd.staging_room import Health, Room
from policies.eviction import Policy

__all__ = ["open_staging"]

_IN_FLIGHT_BYTES = 64 << 20
"""Eight chunks wait for the disk: enough that it never waits for the source, little beside the buffers of the
daemon."""

_DRAIN_S = 10.0
"""A stop waits so long for what was put to become durable; then it is fetched again next time."""

_SETTLE_S = 0.3
"""Opening waits so long for the clean-up, which takes milliseconds unless there was a crash: then what is read first is
staged too."""

_NOTE_USES_S = 30.0


@asynccontextmanager
async def open_staging(
    cache_dir: str,
    *,
    capacity_bytes: int | None = None,
    chunk_bytes: int = 8 << 20,
    eviction: Policy = "fill-once",
    staging_threads: int = 2,
    in_flight_bytes: int = _IN_FLIGHT_BYTES,
    metrics: Metrics,
    clock: Callable[[], float] = time.time,
    disk: Disk | None = None,
    run_in_thread: RunInThread = trio.to_thread.run_sync,
    connect: Connect | None = None,
    drain_s: float = _DRAIN_S,
) -> AsyncIterator[Staging]:
    """Own `cache_dir` (made if it is not there) until the block is left.

    `capacity_bytes` None leaves max(10 %, 10 GB) of the disk free. `clock` gives seconds since the epoch. Leaving
    waits at most `drain_s` seconds for what was put to become durable. Raises CacheInUse, CacheFormatError,
    MountError.
    """
    if capacity_bytes is not None and capacity_bytes < chunk_bytes:
        raise MountError(
            f"a cache of {capacity_bytes} bytes cannot hold one chunk of {chunk_bytes}: "
            "give a larger --cache-size or a smaller --chunk"
        )
    disk = disk or Disk(cache_dir)
    threads = Threads(run_in_thread, staging_threads)
    lock_fd, index, space = await threads.sweep(_open, cache_dir, disk, capacity_bytes, connect)
    try:
        room = Room(capacity_bytes, index.opened.used_bytes, space)
        ground = Ground(disk, index, threads, room, Health(metrics), metrics, clock)
        staging = Staging(ground, chunk_bytes, eviction, in_flight_bytes)
        caught: Exception | None = None
        async with trio.open_nursery() as nursery:
            for task in (staging.files, staging.names, staging.sweeper, staging.vouching, staging.evictor):
                nursery.start_soon(task.run)
            for _ in range(staging_threads):
                nursery.start_soon(staging.writing.work)
            nursery.start_soon(staging.evictor.watch)
            nursery.start_soon(_note_uses, staging)
            nursery.start_soon(staging.prepare)
            try:
                with trio.move_on_after(_SETTLE_S):
                    await staging.wait_ready()
                yield staging
            except Exception as error:  # noqa: BLE001 - raised again below, unwrapped by the nursery
                caught = error
            finally:
                with trio.move_on_after(drain_s, shield=True):
                    await staging.drain()
                nursery.cancel_scope.cancel()
                staging.close()
        if caught is not None:
            raise caught
    finally:
        with trio.CancelScope(shield=True):
            await threads.sweep(_close, lock_fd, index, disk)


def _open(
    cache_dir: str, disk: Disk, capacity_bytes: int | None, connect: Connect | None
) -> tuple[int, Index, DiskSpace]:
    """In a thread: the lock's descriptor, the index, and what the disk has."""
    try:
        os.makedirs(cache_dir, mode=0o700, exist_ok=True)
        lock_fd = lock_cache(cache_dir)
    except OSError as error:
        raise MountError(f"the cache {cache_dir} cannot be used: {error.strerror}: choose another --cache") from error
    try:
        index = Index(cache_dir, on_new=disk.set_objects_aside, **({} if connect is None else {"connect": connect}))
        try:
            disk.open()
            if capacity_bytes is None and disk.in_memory():
                raise MountError(f"a cache on tmpfs needs --cache-size: {cache_dir} lies in memory")
            return lock_fd, index, disk.space()
        except BaseException:
            disk.close()
            index.close()
            raise
    except BaseException as error:
        os.close(lock_fd)
        if isinstance(error, IndexFailed):
            raise MountError(f"the cache {cache_dir} cannot be used: {error}: choose another --cache") from error
        if isinstance(error, OSError):
            message = f"the cache {cache_dir} cannot be used: {error.strerror}: choose another --cache"
            raise MountError(message) from error
        raise


def _close(lock_fd: int, index: Index, disk: Disk) -> None:
    """In a thread: the undo of `_open`, the lock last."""
    try:
        index.close()
    except IndexFailed:
        pass  # nothing that was vouched for depends on an orderly close
    finally:
        disk.close()
        os.close(lock_fd)


async def _note_uses(staging: Staging) -> None:
    while True:
        await trio.sleep(_NOTE_USES_S)
        await staging.files.flush_uses()
