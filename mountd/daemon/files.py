"""Files: how bytes get here, what is fetched ahead, and what an open and a read do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from mountd.core.buffers import Buffers
from mountd.core.workers import Workers
from mountd.daemon.basics import Basics
from mountd.daemon.names import NameService
from mountd.daemon.storage import Storage
from mountd.fetch import UNSTAGED_SHARE, Fetcher, Prefetch, Readers, Recorder, SiblingWatch, SmallDemand, SmallFiles
from mountd.files import IoMode, Opening, Passthrough, ReadPath, Residency, open_again
from mountd.fuse import DevFuse, KernelPageCache
from mountd.hints import HintFollower, HintsFiles, PageCacheWarmer, SpaceReservation
from mountd.peers import JobPeers
from policies.prefetch.siblings import Siblings

__all__ = ["FileService", "open_file_service"]


@dataclass(frozen=True, slots=True)
class FileService:
    buffers: Buffers
    readers: Readers
    recorder: Recorder
    fetcher: Fetcher
    small_files: SmallFiles
    passthrough: Passthrough
    io_mode: IoMode
    hints: HintFollower
    read_path: ReadPath
    opening: Opening
    residency: Residency
    prefetch: Prefetch


@asynccontextmanager
async def open_file_service(
    basics: Basics, storage: Storage, peers: JobPeers | None, names: NameService, device: DevFuse, nursery: trio.Nursery
) -> AsyncIterator[FileService]:
    """Until the block is left. What runs by itself is started by the service, when the mount is made."""
    config, metrics = basics.config, basics.metrics
    source, cache, queue = storage.source, storage.cache, storage.queue
    namespace = names.namespace
    buffers = Buffers(config.buffer_bytes, config.chunk_bytes)
    recorder = Recorder()
    pushers = Workers(apart=device.get)
    async with pushers.running():
        page_cache = KernelPageCache(namespace, metrics, pushers.run_sync, pushers.soon) if config.push else None
        fetcher = Fetcher(
            source,
            cache,
            buffers,
            nursery,
            metrics,
            page_cache,
            basics.memory,
            recorder,
            peers,
            reads_a_file=config.stagger,
        )
        siblings = SiblingWatch(
            Siblings(config.chunk_bytes, budget_bytes=config.sibling_bytes, cache_bytes=cache.room.limit_bytes()),
            nursery,
            namespace.listings.whole,
            queue.siblings_nowait,
        )
        passthrough = Passthrough(cache, metrics)
        io_mode = IoMode(
            config.io_mode,
            immutable=config.immutable,
            cache=cache,
            passthrough=passthrough,
            journal=basics.journal,
            why_opens_are_needed=lambda: names.permissions.why_opens_are_needed,
        )
        await open_again(names.inherited, basics.journal, namespace, storage.handles, cache, passthrough)
        small_files = SmallFiles(namespace, cache, fetcher, source, buffers, metrics, chunk_bytes=config.chunk_bytes)
        hints = _hints(basics, storage, names, fetcher, small_files, io_mode)
        read_path = ReadPath(
            namespace,
            cache,
            fetcher,
            source,
            metrics,
            siblings,
            hints,
            recorder,
            small_files,
            queue,
            chunk_bytes=config.chunk_bytes,
            buffer_bytes=config.buffer_bytes,
        )
        residency = Residency(namespace, config.mountpoint, nursery)
        opening = Opening(
            namespace,
            storage.handles,
            cache,
            fetcher,
            source,
            metrics,
            siblings,
            SmallDemand(namespace, cache, fetcher, source, buffers, small_files, nursery),
            hints,
            recorder,
            io_mode,
            passthrough,
            queue,
            only_looks=residency.is_looking,
            chunk_bytes=config.chunk_bytes,
        )
        prefetch = Prefetch(queue, read_path, hints, metrics, workers=config.prefetch_threads)
        yield FileService(
            buffers,
            Readers(),
            recorder,
            fetcher,
            small_files,
            passthrough,
            io_mode,
            hints,
            read_path,
            opening,
            residency,
            prefetch,
        )


def _hints(
    basics: Basics, storage: Storage, names: NameService, fetcher: Fetcher, small_files: SmallFiles, io_mode: IoMode
) -> HintFollower:
    config, metrics, cache, learners = basics.config, basics.metrics, storage.cache, storage.learners
    return HintFollower(
        learners,
        names.namespace,
        cache,
        fetcher,
        HintsFiles(cache, fetcher, small_files),
        SpaceReservation(learners, cache, metrics, config.buffer_bytes // UNSTAGED_SHARE * 3 // 4),
        PageCacheWarmer(
            names.namespace,
            cache,
            fetcher,
            metrics,
            basics.memory,
            pushes_small=lambda: config.io_mode != "passthrough" and not io_mode.stateless,
        ),
        metrics,
        basics.memory,
        storage.plan_changes,
        chunks_at_once=config.prefetch_threads,
    )
