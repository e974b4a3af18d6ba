"""Storage: the source, the cache, and what tells the cache which of its objects are needed.

The source's descriptor is taken before the mount is made, since MOUNTPOINT may lie on SOURCE; the cache is opened and
locked before anything is visible.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from hfs.mountd.cache import Cache, CacheSettings, Others, open_cache
from hfs.mountd.core.caller import Credentials
from hfs.mountd.core.config import Config
from hfs.mountd.core.config.key import SourceUser
from hfs.mountd.core.errors import CacheInUse, ConfigError, HfsError, MountError
from hfs.mountd.core.limits import Memory
from hfs.mountd.core.workers import Workers
from hfs.mountd.daemon.basics import Basics
from hfs.mountd.daemon.cache_watch import OwnCache, open_own_cache, why_silent, without
from hfs.mountd.fetch import PrefetchQueue
from hfs.mountd.files import ChangedNames, Handles, Refetching, SentAway
from hfs.mountd.hints import Learners, PlanChanges
from hfs.mountd.kernel import DataPlane, SmallFetches, XattrAnswers
from hfs.mountd.namespace import seconds
from hfs.mountd.source import ReadingUser, Source, SourceThreads, be_closed, identify, is_private

log = logging.getLogger(__name__)

_COALESCE_BYTES = 2_500_000_000
"""What the paper gives a node (LMDBIO, Pumma et al., 2019)."""
_COALESCE_SHARE = 4


@asynccontextmanager
async def open_source(basics: Basics) -> AsyncIterator[Source]:
    """The source, open until the block is left, and the threads that read it: the daemon's own, or those of `as-user`.

    Threads that read as another user are a pool of their own, each of which becomes that user before its first call and
    does nothing else. SOURCE is opened and looked at by one of them too: root may be nobody there. Raises ConfigError;
    MountError if no thread can become the user.
    """
    user = _user(basics)
    async with contextlib.AsyncExitStack() as stack:
        workers = basics.workers
        if user is not None:
            be_closed()
            workers = Workers(first=user.become)
            await stack.enter_async_context(workers.running())
            await _try(workers, user)
        source = await workers.run_sync(_open, basics, user, workers)
        stack.callback(source.close)
        yield source


def _user(basics: Basics) -> ReadingUser | None:
    if basics.config.as_user is None:
        return None
    who = Credentials(*SourceUser.of(basics.config.as_user))
    return ReadingUser(who, wholly=is_private(basics.handover.source_fd))


async def _try(workers: Workers, user: ReadingUser) -> None:
    try:
        await workers.run_sync(os.getpid)
    except OSError as error:
        why = f"user {user.who.uid} ({error.strerror})"
        raise MountError(f"as-user: the daemon cannot become {why}: it needs CAP_SETUID and CAP_SETGID") from error


def _open(basics: Basics, user: ReadingUser | None, workers: Workers) -> Source:
    """In a thread."""
    config = basics.config
    root_fd = os.dup(basics.handover.source_fd)  # by its path it might be the mount itself
    threads = SourceThreads(
        basics.metrics,
        demand=config.source_threads,
        prefetch=config.prefetch_threads,
        time_limit_s=config.source_timeout_s,
        open_files=basics.open_files,
        run_in_thread=workers.run_patient,
        user=user,
    )
    return Source(
        root_fd,
        os.readlink(f"/proc/self/fd/{root_fd}"),
        config.source_id or basics.journal.mount.source_id(identify(root_fd).id),
        threads,
        basics.metrics,
        ttl_s=seconds(config.ttl_s, immutable=config.immutable),
        direct=config.source_direct,
        large_bytes=config.chunk_bytes,
    )


@dataclass(frozen=True, slots=True)
class Storage:
    source: Source
    own_cache: OwnCache
    """Its place below the cache root."""
    cache: Cache
    settings: CacheSettings
    """Those of the cache."""
    plane: DataPlane
    fetches: SmallFetches
    handles: Handles
    sent_away: SentAway
    changed: ChangedNames
    xattr_answers: XattrAnswers
    queue: PrefetchQueue
    """What is to be fetched ahead. Depends on nothing; its workers are built last."""
    refetching: Refetching
    plan_changes: PlanChanges
    learners: Learners


@asynccontextmanager
async def open_storage(basics: Basics) -> AsyncIterator[Storage]:
    """Until the block is left; then staging gets a bounded time to write what it holds.

    Raises ConfigError, CacheInUse, CacheFormatError, MountError.
    """
    config, metrics, run_in_thread = basics.config, basics.metrics, basics.workers.run_sync
    async with open_source(basics) as source:
        handles = Handles(basics.journal)
        plane, xattr_answers = DataPlane(), XattrAnswers()
        reader = source.threads.user
        fetches = SmallFetches() if reader is None else SmallFetches(reader.who, wholly=reader.wholly)
        queue = PrefetchQueue(metrics)
        refetching = Refetching(handles, queue)

        def plans_changed() -> None:
            queue.hints_nowait()
            plane.news.wake()  # whoever tells of opens asks who wants to hear of them

        plan_changes = PlanChanges(plans_changed)
        coalesce_bytes = _coalesce_bytes(config, basics.memory)
        learners = Learners(
            config.chunk_bytes, metrics, run_in_thread, changed=plan_changes.changed, coalesce_bytes=coalesce_bytes
        )
        settings = _settings(config, source)

        others = Others(
            source.second_looks, refetching.lost, plane, fetches, xattr_answers, planned=learners.plans.planned
        )

        def opening(own: OwnCache) -> AbstractAsyncContextManager[Cache]:
            return open_cache(
                own.path,
                settings,
                metrics=metrics,
                open_files=basics.open_files,
                run_in_thread=run_in_thread,
                others=others,
                grants=own.grants,
                absent=own.absent,
            )

        async with AsyncExitStack() as stack:
            own, cache = await _open_as_can_be(stack, basics, source, opening)
            yield Storage(
                source,
                own,
                cache,
                settings,
                plane,
                fetches,
                handles,
                SentAway(cache.telling),
                ChangedNames(cache.telling, xattr_answers),
                xattr_answers,
                queue,
                refetching,
                plan_changes,
                learners,
            )


def _settings(config: Config, source: Source) -> CacheSettings:
    return CacheSettings(
        capacity_bytes=config.cache_size_bytes,
        chunk_bytes=config.chunk_bytes,
        eviction=config.eviction,
        expire_s=config.expire_s,
        writers=config.staging_threads,
        kept_source=source.source_id,
        attributes="kept" if config.immutable else "forgotten",
        verify=config.verify,
        scrub_bytes_s=config.scrub_bytes_s,
        # Above the half that prefetch may fill, below what readers and pushes need besides.
        in_flight_bytes=config.buffer_bytes * 5 // 8,
    )


async def _open_as_can_be(
    stack: AsyncExitStack,
    basics: Basics,
    source: Source,
    opening: Callable[[OwnCache], AbstractAsyncContextManager[Cache]],
) -> tuple[OwnCache, Cache]:
    """The cache, or none where none can be had. A mount whose cache was given wrongly, or is another daemon's, is not
    begun (but where several users share the root any of them may have been first in the cache's place), and no release
    taken over to that cannot open it: the one that serves goes on. Raises as `open_storage`."""
    handover = basics.handover
    is_first = handover.asked and handover.generation == 0
    if handover.asked and not is_first:
        own = await stack.enter_async_context(open_own_cache(basics, source))
        return own, await stack.enter_async_context(opening(own))
    # A thread of one that was killed has the locks as long as it sleeps in the kernel, perhaps until we answer it.
    held = "the daemon before was killed, and a thread of it that sleeps in the kernel holds the cache"
    why = held if handover.lingers else await why_silent(basics.config.cache)
    if why is None:
        shared = False
        try:
            async with AsyncExitStack() as trying:
                own = await trying.enter_async_context(open_own_cache(basics, source))
                shared = own.shared
                cache = await trying.enter_async_context(opening(own))
                stack.push_async_exit(trying.pop_all())
                return own, cache
        except Exception as error:
            if is_first and isinstance(error, CacheInUse if shared else ConfigError | CacheInUse):
                raise
            if not isinstance(error, HfsError):
                log.exception("the cache could not be opened")
            why = f"there is no cache: {error}"
    own = without(basics, source, why)
    return own, await stack.enter_async_context(opening(own))


def _coalesce_bytes(config: Config, memory: Memory) -> int:
    if config.coalesce_bytes is not None:
        return config.coalesce_bytes
    return min(_COALESCE_BYTES, memory.available_bytes() // _COALESCE_SHARE)
