"""Opening and closing a cache directory: each thing that is started stands beside its undo.

`open_staging` is called by the daemon, and by `hfs cache` when nothing is mounted. It returns as soon as the index is
open, whatever the number of rows; what an earlier run left behind is cleaned up in the background.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import trio

from mountd.base.errors import MountError
from mountd.cache.index import Connect, Index, IndexFailed, lock_cache
from mountd.cache.objects import (
    CacheContext,
    Disk,
    DiskSpace,
    Health,
    Room,
    RunInThread,
    StagedFile,
    Threads,
    Trust,
    set_objects_aside,
)
from mountd.cache.staging import Staging
from mountd.core.background import call_guarded, guarded, start_for_life
from mountd.core.cache_directory import CacheDirectory, open_cache_directory
from mountd.core.config import VerifyWanted
from mountd.core.metrics import Metrics
from mountd.core.open_files import OpenFiles
from policies.cache.eviction import Policy

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
    open_files: OpenFiles | None = None,
    run_in_thread: RunInThread = trio.to_thread.run_sync,
    connect: Connect | None = None,
    drain_s: float = _DRAIN_S,
    trust: Trust | None = None,
    keeps_floor: bool = True,
    kept_source: str = "",
    verify: VerifyWanted = "first-use",
    scrub_bytes_s: int = 0,
    lost_under_readers: Callable[[StagedFile, Sequence[int]], object] = lambda _file, _indexes: None,
    planned: Callable[[Sequence[int]], Collection[int]] = lambda _objects: (),
) -> AsyncIterator[Staging]:
    """Own `cache_dir` (made if it is not there) until the block is left.

    `capacity_bytes` None leaves max(10 %, 10 GB) of the disk free; a size leaves a twentieth, at most 1 GB. Without
    `keeps_floor`, for who stages nothing, the disk may be as full as it is. `clock` gives seconds since the epoch.
    `kept_source`: an identity that is good for one run only, and that this run shares with the one before.
    `scrub_bytes_s`: what is staged is read again at this rate, to see what has rotted; 0 does not.
    `lost_under_readers`, `planned`: as of the context.
    Leaving waits at most `drain_s` seconds for what was put to become durable. Raises CacheInUse, CacheFormatError,
    MountError; ConfigError where others could have written to the directory.
    """
    if capacity_bytes is not None and capacity_bytes < chunk_bytes:
        raise MountError(
            f"a cache of {capacity_bytes} bytes cannot hold one chunk of {chunk_bytes}: "
            "give a larger --cache-size or a smaller --chunk"
        )
    disk = disk or Disk(cache_dir, open_files)
    threads = Threads(run_in_thread, staging_threads)
    opened = await threads.sweep(_open, cache_dir, disk, capacity_bytes, connect)
    index = opened.index
    try:
        room = Room(capacity_bytes, index.opened.used_bytes, opened.space, keeps_floor=keeps_floor)
        context = CacheContext(
            disk,
            index,
            threads,
            room,
            Health(metrics),
            metrics,
            clock,
            trust=trust,
            lost_under_readers=lost_under_readers,
            planned=planned,
        )
        staging = Staging(context, chunk_bytes, eviction, in_flight_bytes, verify, scrub_bytes_s)
        disk.open_files.add(partial(_let_go, staging, trio.lowlevel.current_trio_token()))
        caught: Exception | None = None
        async with trio.open_nursery() as nursery:
            start_for_life(nursery, "staging: files", staging.files.run)
            start_for_life(nursery, "staging: object ids", staging.names.run)
            start_for_life(nursery, "staging: reclaimer", staging.reclaimer.run)
            start_for_life(nursery, "staging: committer", staging.committer.run)
            start_for_life(nursery, "staging: evictor", staging.evictor.run)
            for _ in range(staging_threads):
                start_for_life(nursery, "staging: writer", staging.writing.work)
            start_for_life(nursery, "staging: watch of the disk", staging.evictor.watch)
            start_for_life(nursery, "staging: verifying", staging.verifying.run)
            for _ in range(2):
                start_for_life(nursery, "staging: verifying ahead", staging.verifying_ahead.run)
            start_for_life(nursery, "staging: scrub", staging.scrub.run)
            start_for_life(nursery, "staging: last uses", _note_uses, staging)
            start_for_life(nursery, "staging: clean-up", staging.prepare, kept_source)
            try:
                with trio.move_on_after(_SETTLE_S):
                    await staging.wait_ready()
                yield staging
            except Exception as error:  # noqa: BLE001 - raised again below, unwrapped by the nursery
                caught = error
            finally:
                with trio.move_on_after(drain_s, shield=True):
                    await guarded("staging: end", staging.drain)
                nursery.cancel_scope.cancel()
                staging.close()
        if caught is not None:
            raise caught
    finally:
        with trio.CancelScope(shield=True):
            await threads.sweep(_close, opened, disk)


def _let_go(staging: Staging, token: trio.lowlevel.TrioToken) -> None:
    """Any thread."""
    with contextlib.suppress(trio.RunFinishedError):
        token.run_sync_soon(call_guarded, "descriptors", staging.let_go, idempotent=True)


@dataclass(frozen=True, slots=True)
class _Opened:
    """What `_close` closes, and what the disk has."""

    directory: CacheDirectory
    lock_fd: int
    index: Index
    space: DiskSpace


def _open(cache_dir: str, disk: Disk, capacity_bytes: int | None, connect: Connect | None) -> _Opened:
    """In a thread."""
    with contextlib.ExitStack() as undo:
        try:
            directory = undo.enter_context(open_cache_directory(cache_dir, make=True))
            lock_fd = lock_cache(directory)
            undo.callback(os.close, lock_fd)
            aside = partial(set_objects_aside, directory)
            index = Index(directory, on_new=aside, **({} if connect is None else {"connect": connect}))
            undo.callback(index.close)
            disk.open(directory)
            undo.callback(disk.close)
            if capacity_bytes is None and disk.in_memory():
                raise MountError(f"a cache on tmpfs needs --cache-size: {cache_dir} lies in memory")
            opened = _Opened(directory, lock_fd, index, disk.space())
        except IndexFailed as error:
            raise MountError(f"the cache {cache_dir} cannot be used: {error}: choose another --cache") from error
        except OSError as error:
            message = f"the cache {cache_dir} cannot be used: {error.strerror}: choose another --cache"
            raise MountError(message) from error
        undo.pop_all()
        return opened


def _close(opened: _Opened, disk: Disk) -> None:
    """In a thread: the undo of `_open`, the lock last."""
    try:
        opened.index.close()
    except IndexFailed:
        pass  # nothing that was committed depends on an orderly close
    finally:
        disk.close()
        os.close(opened.lock_fd)
        opened.directory.close()


async def _note_uses(staging: Staging) -> None:
    while True:
        await trio.sleep(_NOTE_USES_S)
        await staging.files.flush_uses()
