"""Fetching: from buffers to the resolver, small files, and who follows hints, each after what it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import trio

from hfs.mountd.core.buffers import Buffers
from hfs.mountd.daemon.basics import Basics
from hfs.mountd.daemon.names import NameService
from hfs.mountd.daemon.storage import Storage
from hfs.mountd.fetch import (
    UNSTAGED_SHARE,
    ChunkMemory,
    Fetcher,
    History,
    Misses,
    Owners,
    PageCache,
    PagePusher,
    Resolver,
    SmallFiles,
    SparseFiles,
    Unsized,
)
from hfs.mountd.files import IoMode
from hfs.mountd.hints import (
    FollowedPlans,
    HintFollower,
    PageCacheWarmer,
    PlannedChunks,
    PlannedFiles,
    ReadableFiles,
    ReadWays,
    SpaceReservation,
)
from hfs.mountd.namespace import Namespace
from hfs.mountd.peers import JobPeers


@dataclass(frozen=True, slots=True)
class Fetching:
    """What asks for bytes, and what it asks."""

    buffers: Buffers
    pusher: PagePusher
    owners: Owners
    fetcher: Fetcher
    history: History
    plans: FollowedPlans
    reservation: SpaceReservation
    misses: Misses
    resolver: Resolver
    sparse_files: SparseFiles


@dataclass(frozen=True, slots=True)
class Hinting:
    """Who has fetched what epoch plans name."""

    warmer: PageCacheWarmer
    follower: HintFollower


def fetching(
    basics: Basics,
    storage: Storage,
    peers: JobPeers | None,
    namespace: Namespace,
    page_cache: PageCache | None,
    is_recorded: Callable[[], bool],
    nursery: trio.Nursery,
) -> Fetching:
    """`is_recorded`: somebody records what is read."""
    config, metrics, source, cache = basics.config, basics.metrics, storage.source, storage.cache
    buffers = Buffers(config.buffer_bytes, config.chunk_bytes)
    held = ChunkMemory(buffers, time_limit_s=source.threads.time_limit_s)
    pusher = PagePusher(
        page_cache, cache, basics.memory, nursery, is_recorded=is_recorded, buffer_bytes=config.buffer_bytes
    )
    owners = Owners(peers, source, reads_a_file=config.stagger)
    fetcher = Fetcher(source, cache, held, pusher, owners, metrics, nursery)
    history = History(metrics)
    held_bytes = config.buffer_bytes // UNSTAGED_SHARE * 3 // 4
    run = basics.workers.run_sync
    reservation = SpaceReservation(storage.learners.plans, cache, metrics, held_bytes, run, owners.is_kept)
    plans = FollowedPlans(storage.learners.plans, reservation, storage.plan_changes, held, metrics)
    misses = Misses(cache, plans, history, storage.queue)
    resolver = Resolver(cache, held, fetcher, owners, misses, storage.queue, Unsized(source, fetcher))
    return Fetching(
        buffers=buffers,
        pusher=pusher,
        owners=owners,
        fetcher=fetcher,
        history=history,
        plans=plans,
        reservation=reservation,
        misses=misses,
        resolver=resolver,
        sparse_files=SparseFiles(source, namespace, nursery),
    )


def hinting(
    basics: Basics,
    storage: Storage,
    names: NameService,
    fetch: Fetching,
    io_mode: IoMode,
    small_files: SmallFiles,
    has_overlays: Callable[[], bool],
) -> Hinting:
    """Follows the plans of `fetch`, and has fetched through its resolver what they name. `has_overlays`: somebody reads
    through an overlay over the mount."""
    config, metrics, cache = basics.config, basics.metrics, storage.cache
    namespace, permissions = names.namespace, names.permissions
    warmer = PageCacheWarmer(
        namespace,
        cache,
        fetch.resolver,
        fetch.owners,
        fetch.pusher,
        basics.memory,
        metrics,
        ReadWays(lambda: config.io_mode != "passthrough" and not io_mode.stateless, has_overlays),
    )
    files = PlannedFiles(
        fetch.plans,
        cache,
        fetch.resolver,
        fetch.owners,
        small_files,
        fetch.reservation,
        storage.plan_changes,
        metrics,
    )
    chunks = PlannedChunks(
        fetch.plans,
        namespace,
        cache,
        fetch.resolver,
        fetch.reservation,
        warmer,
        metrics,
        at_once=config.prefetch_threads,
    )
    readable = ReadableFiles(namespace, permissions, fetch.plans, storage.plan_changes)
    follower = HintFollower(
        fetch.plans.plans, readable, files, chunks, fetch.reservation, warmer, storage.plan_changes, metrics
    )
    return Hinting(warmer, follower)
