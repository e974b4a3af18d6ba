"""Files: what an open and a read do, and what is fetched because of them."""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import trio
import xxhash

from hfs.mountd.core.workers import Workers
from hfs.mountd.daemon.basics import Basics
from hfs.mountd.daemon.fetching import Fetching, fetching, hinting
from hfs.mountd.daemon.names import NameService
from hfs.mountd.daemon.storage import Storage
from hfs.mountd.fetch import (
    WAS_HERE,
    DelegationTerms,
    DirectoryDelegations,
    Fetcher,
    FetchesAhead,
    OwnWaits,
    Prefetch,
    SiblingFetches,
    SiblingWatch,
    SmallFiles,
    SmallPipeline,
    SteppingBack,
    WhatYields,
)
from hfs.mountd.files import (
    Delegations,
    Impediments,
    IoMode,
    KernelReads,
    OpenedFiles,
    Opening,
    OpenModes,
    OpenObservers,
    Overlays,
    PageFaults,
    PageFill,
    Passthrough,
    ReadaheadWindows,
    Readers,
    ReadPath,
    Recorder,
    Residency,
    SmallOpens,
    UnusedPages,
    open_again,
)
from hfs.mountd.fuse import KernelPageCache
from hfs.mountd.hints import FollowedPlans, HintFollower
from hfs.mountd.kernel import DataPlane, DiskReads, XattrAnswers, let_go_of_pages
from hfs.mountd.namespace import Namespace, seconds
from hfs.mountd.peers import JobPeers
from hfs.mountd.supervisor.table import places_of
from hfs.policies.iomode import SMALL_BYTES
from hfs.policies.prefetch.siblings import Siblings
from hfs.policies.prefetch.yielding import Waits


@dataclass(frozen=True, slots=True)
class FileService:
    readers: Readers
    recorder: Recorder
    fetch: Fetching
    passthrough: Passthrough
    io_mode: IoMode
    overlays: Overlays
    by_kernel: KernelReads
    xattr_answers: XattrAnswers
    hints: HintFollower
    read_path: ReadPath
    opening: Opening
    residency: Residency
    prefetch: Prefetch
    plane: DataPlane
    delegations: Delegations
    pipeline: SmallPipeline
    small_files: SmallFiles
    stepping_back: SteppingBack
    page_fill: PageFill
    pushers: Workers
    """For calls that wait until the kernel has locked what a request that we are to answer holds."""


@asynccontextmanager
async def open_file_service(
    basics: Basics, storage: Storage, peers: JobPeers | None, names: NameService, nursery: trio.Nursery
) -> AsyncIterator[FileService]:
    """Until the block is left. What runs by itself is started by the service, when the mount is made."""
    config, metrics, source, cache = basics.config, basics.metrics, storage.source, storage.cache
    namespace, queue = names.namespace, storage.queue
    recorder = Recorder(storage.plane.news.wake)
    pushers = Workers(apart=basics.handover.connection_fd)
    async with pushers.running():
        page_cache = KernelPageCache(namespace, metrics, pushers.run_sync, pushers.soon) if config.push else None
        fetch = fetching(basics, storage, peers, namespace, page_cache, lambda: recorder.active, nursery)
        siblings = _siblings(basics, storage, namespace, nursery)
        passthrough = Passthrough(cache, metrics)
        plane, pages = storage.plane, _unused_pages(basics, storage, names, pushers)
        overlays = _overlays(basics, storage, names, pages, recorder, nursery)
        io_mode = _io_mode(basics, storage, names, passthrough, overlays)
        hears = recorder, fetch.plans
        directories, pipeline = _pipeline(basics, storage, peers, names, siblings, io_mode, hears, nursery)
        small_files = SmallFiles(namespace, cache, fetch.resolver, fetch.owners, pipeline)
        ahead = _fetches_ahead(basics, storage, fetch, siblings, small_files)
        await _open_again(basics, storage, names, passthrough)
        by_kernel = KernelReads(overlays, passthrough, plane, metrics)
        hints = hinting(basics, storage, names, fetch, io_mode, small_files, by_kernel.has_overlays)
        residency = Residency(namespace, cache, _seen_at(basics), nursery, by_kernel.any)
        away, changed = storage.sent_away, storage.changed
        modes = OpenModes(namespace, cache, io_mode, passthrough, away, queue, metrics, changed)
        observers = OpenObservers(recorder, fetch.plans, siblings, source, directories, pages, residency.is_looking)
        opened_files = OpenedFiles(namespace, storage.handles, cache, modes, observers, queue, plane)
        delegations = _delegations(plane, storage, names, opened_files, (recorder, fetch), (pages, pipeline))
        yield FileService(
            Readers(),
            recorder,
            fetch,
            passthrough,
            io_mode,
            overlays,
            by_kernel,
            storage.xattr_answers,
            hints.follower,
            _read_path(basics, storage, fetch, recorder, delegations),
            Opening(
                namespace,
                storage.handles,
                cache,
                modes,
                SmallOpens(fetch.resolver, fetch.pusher, io_mode, queue),
                opened_files,
                delegations,
            ),
            residency,
            Prefetch(queue, ahead, hints.follower, metrics, workers=config.prefetch_threads),
            plane,
            delegations,
            pipeline,
            small_files,
            _stepping_back(basics, storage, fetch.fetcher, pipeline, by_kernel.any),
            PageFill(plane, delegations, cache, fetch.pusher, basics.memory),
            pushers,
        )


def _seen_at(basics: Basics) -> str | None:
    """Where this daemon sees the mount that it serves; None too where it would not know its own look for one."""
    handover = basics.handover
    if not handover.given:
        return basics.config.mountpoint
    if handover.foreign_pids:
        return None
    return next(iter(places_of(handover.device)), None)


def _siblings(basics: Basics, storage: Storage, namespace: Namespace, nursery: trio.Nursery) -> SiblingWatch:
    config, cache_bytes = basics.config, storage.cache.room.limit_bytes()
    policy = Siblings(
        config.chunk_bytes,
        budget_bytes=config.sibling_bytes,
        cache_bytes=cache_bytes,
        evicts_by_use=storage.cache.eviction.makes_room,
    )
    return SiblingWatch(policy, nursery, namespace.listings.whole, storage.queue.siblings_nowait)


def _fetches_ahead(
    basics: Basics, storage: Storage, fetch: Fetching, siblings: SiblingWatch, small_files: SmallFiles
) -> FetchesAhead:
    cache, turns = storage.cache, fetch.fetcher.turns
    small = SiblingFetches(fetch.resolver, small_files, siblings, cache)
    return FetchesAhead(fetch.resolver, fetch.owners, fetch.misses, small, cache, storage.source, turns, basics.metrics)


def _is_heard(recorder: Recorder, fetch: Fetching) -> bool:
    """Somebody wants to hear of each open."""
    return recorder.active or fetch.plans.any_followed


def _terms(basics: Basics, namespace: Namespace) -> int:
    """Of what the kernel is told of files: with other ones than its predecessor's a daemon believes none of that."""
    return xxhash.xxh3_64_intdigest(
        repr((basics.config.ttl_s, basics.config.immutable, namespace.slots.source_id)).encode()
    )


async def _open_again(basics: Basics, storage: Storage, names: NameService, passthrough: Passthrough) -> None:
    await open_again(
        names.inherited,
        basics.journal,
        names.namespace,
        storage.handles,
        storage.cache,
        passthrough,
        storage.plane,
        basics.handover.opens_fd,
        _terms(basics, names.namespace),
        basics.workers.run_sync,
    )
    if basics.journal.generation:
        storage.sent_away.inherit()


def _delegations(
    plane: DataPlane,
    storage: Storage,
    names: NameService,
    opened_files: OpenedFiles,
    hears: tuple[Recorder, Fetching],
    slots: tuple[UnusedPages, SmallPipeline],
) -> Delegations:
    return Delegations(
        plane,
        names.namespace,
        names.permissions,
        storage.handles,
        opened_files,
        storage.cache,
        is_heard=partial(_is_heard, *hears),
        slot_opened=partial(_slot_opened, *slots),
    )


def _slot_opened(pages: UnusedPages, pipeline: SmallPipeline, node_id: int, thread_id: int, at_ns: int) -> bool:
    pages.read(node_id)
    return pipeline.opened(node_id, thread_id, at_ns)


def _pipeline(
    basics: Basics,
    storage: Storage,
    peers: JobPeers | None,
    names: NameService,
    siblings: SiblingWatch,
    io_mode: IoMode,
    hears: tuple[Recorder, FollowedPlans],
    nursery: trio.Nursery,
) -> tuple[DirectoryDelegations, SmallPipeline]:
    config, cache, source, fetches = basics.config, storage.cache, storage.source, storage.fetches

    def is_wanted() -> bool:
        # While names are held nothing is looked up without Python, which knows how long such an answer waits.
        return io_mode.choice.final and not io_mode.stateless and not storage.changed.held

    terms = DelegationTerms(
        is_wanted=is_wanted,
        passes=lambda: config.io_mode == "passthrough",
        pushes=config.push,
        stores=lambda: cache.shrinking.shrinker is None,
        owners=peers.owners if peers is not None else None,
        limit_bytes=min(SMALL_BYTES, config.chunk_bytes),
        ttl_s=seconds(config.ttl_s, immutable=config.immutable),
        under_way=names.namespace.asking.nodes_coming,
    )

    def heard(path: bytes, size: int, thread_id: int, at_ns: int) -> bool:
        staged = bool(thread_id & WAS_HERE)
        io_mode.opening(size, staged=staged)
        hears[0].opened(path, size, thread_id & ~WAS_HERE, at_ns)
        return hears[1].opened_at(path, staged)

    directories = DirectoryDelegations(
        fetches, names.namespace, names.permissions, source, terms, cache.completions, nursery
    )
    return directories, SmallPipeline(
        fetches, directories, names.namespace, source, cache, siblings, basics.metrics, heard
    )


def _stepping_back(
    basics: Basics,
    storage: Storage,
    fetcher: Fetcher,
    pipeline: SmallPipeline,
    kernel_reads_objects: Callable[[], bool],
) -> SteppingBack:
    threads, turns = storage.cache.context.threads, fetcher.turns
    directory = storage.cache.context.disk.directory
    reads = DiskReads(os.fstat(directory).st_dev if directory >= 0 else 0)

    def own_waits() -> OwnWaits:
        theirs, ours = storage.fetches.reader_waits(), fetcher.waits
        source = ours.beside(Waits(*theirs))
        # Those of files that the kernel reads by itself it alone knows.
        return OwnWaits(source, threads.waits.beside(reads.look(counts=kernel_reads_objects())))

    def fetch(share: float) -> None:
        turns.set_limit(math.inf if share >= 1 else max(1, int(basics.config.prefetch_threads * share)))
        pipeline.set_share(share)
        storage.queue.demand_served_nowait()

    def stage(share: float) -> None:
        threads.step_back(share)
        storage.fetches.store_at_once(share < 1)

    what = WhatYields(lambda: turns.taken > 0 or pipeline.jobs > 0, fetch, stage)
    return SteppingBack(storage.own_cache.exchange, what, own_waits, basics.metrics, basics.workers.run_sync)


def _unused_pages(basics: Basics, storage: Storage, names: NameService, pushers: Workers) -> UnusedPages:
    one_at_a_time = trio.CapacityLimiter(1)

    async def let_go(nodes: Sequence[int]) -> None:
        connection_fd = basics.handover.connection_fd
        await pushers.run_sync(let_go_of_pages, connection_fd, nodes, limiter=one_at_a_time, abandon_on_cancel=True)

    return UnusedPages(names.namespace, storage.cache, storage.xattr_answers, let_go)


def _overlays(
    basics: Basics,
    storage: Storage,
    names: NameService,
    pages: UnusedPages,
    recorder: Recorder,
    nursery: trio.Nursery,
) -> Overlays:
    config = basics.config

    def missing() -> str | None:
        if not config.immutable:
            return "only with --immutable, since what was looked up once is not looked at again"
        if os.geteuid() == 0 and not config.allow_other:
            return "only with allow-other as root, since an overlay lets everybody in whom mode bits let in"
        if config.as_user is not None:
            return f"--as-user {config.as_user}: whoever makes overlays may read more"
        if (reason := names.permissions.why_opens_are_needed) is not None:
            return f"opens are needed: {reason}"
        return "somebody records what is read" if recorder.active else None

    is_wanted = config.wants_overlays
    return Overlays(storage.cache, storage.xattr_answers, storage.changed, pages, missing, nursery, is_wanted=is_wanted)


def _io_mode(
    basics: Basics,
    storage: Storage,
    names: NameService,
    passthrough: Passthrough,
    overlays: Overlays,
) -> IoMode:
    def becomes_stateless() -> None:
        names.namespace.becomes_stateless()
        # Half: what the job itself needs is not known.
        storage.cache.ahead.begin(basics.memory.available_bytes() // 2)

    return IoMode(
        basics.config.io_mode,
        immutable=basics.config.immutable,
        cache=storage.cache,
        passthrough=passthrough,
        journal=basics.journal,
        missing=Impediments(lambda: names.permissions.why_opens_are_needed, lambda: overlays.missing),
        becomes_stateless=becomes_stateless,
    )


def _read_path(
    basics: Basics, storage: Storage, fetch: Fetching, recorder: Recorder, delegations: Delegations
) -> ReadPath:
    config = basics.config
    readahead = ReadaheadWindows(
        fetch.resolver,
        fetch.owners,
        storage.cache,
        fetch.history,
        fetch.plans,
        storage.queue,
        buffer_bytes=config.buffer_bytes,
        pushes=fetch.pusher.on,
    )
    faults = PageFaults(fetch.pusher, fetch.history)
    return ReadPath(
        fetch.resolver,
        readahead,
        faults,
        fetch.plans,
        recorder,
        basics.metrics,
        delegations,
        chunk_bytes=config.chunk_bytes,
    )
