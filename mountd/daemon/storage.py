"""Storage: the source, the cache, and what tells the cache which of its objects are needed.

The source's descriptor is taken before the mount is made, since MOUNTPOINT may lie on SOURCE; the cache is opened and
locked before anything is visible.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from hfs.mountd.cache import Cache, CacheSettings, open_cache
from hfs.mountd.core.config import Config
from hfs.mountd.core.memory import Memory
from hfs.mountd.daemon.basics import Basics
from hfs.mountd.daemon.cache_root import OwnCache, open_own_cache
from hfs.mountd.daemon.source import open_source
from hfs.mountd.fetch import PrefetchQueue
from hfs.mountd.files import Handles, Refetching, SentAway
from hfs.mountd.hints import Learners, PlanChanges
from hfs.mountd.kernel import DataPlane, SmallFetches
from hfs.mountd.source import Source

_COALESCE_BYTES = 2_500_000_000
"""What the paper gives a node (LMDBIO, Pumma et al., 2019)."""
_COALESCE_SHARE = 4


@dataclass(frozen=True, slots=True)
class Storage:
    source: Source
    own_cache: OwnCache
    """Its place below the cache root."""
    cache: Cache
    plane: DataPlane
    fetches: SmallFetches
    handles: Handles
    sent_away: SentAway
    queue: PrefetchQueue
    """What is to be fetched ahead. Depends on nothing; its workers are built last."""
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
        plane = DataPlane()
        reader = source.threads.user
        fetches = SmallFetches() if reader is None else SmallFetches(reader.who, wholly=reader.wholly)
        queue = PrefetchQueue(metrics)
        plan_changes = PlanChanges(queue.hints_nowait)
        coalesce_bytes = _coalesce_bytes(config, basics.memory)
        learners = Learners(
            config.chunk_bytes, metrics, run_in_thread, changed=plan_changes.changed, coalesce_bytes=coalesce_bytes
        )
        settings = CacheSettings(
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
        async with (
            open_own_cache(basics, source) as own,
            open_cache(
                own.path,
                settings,
                metrics=metrics,
                open_files=basics.open_files,
                run_in_thread=run_in_thread,
                trust=source.doubts,
                lost_under_readers=Refetching(handles, queue).lost,
                answers=plane,
                maker=fetches if fetches.is_possible else None,
                planned=learners.plans.planned,
                grants=own.grants,
            ) as cache,
        ):
            yield Storage(source, own, cache, plane, fetches, handles, SentAway(), queue, plan_changes, learners)


def _coalesce_bytes(config: Config, memory: Memory) -> int:
    if config.coalesce_bytes is not None:
        return config.coalesce_bytes
    return min(_COALESCE_BYTES, memory.available_bytes() // _COALESCE_SHARE)
