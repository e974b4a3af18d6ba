"""Cluster: the other nodes of the job, if there are any, and how much of the data each can hold."""

from __future__ import annotations

import trio

from hfs.mountd.cache import Shrinker
from hfs.mountd.daemon.basics import Basics
from hfs.mountd.daemon.storage import Storage
from hfs.mountd.peers import JobLimits, Joining, Membership, NodeInfo
from hfs.policies.cache.encoding import choose

_LEAST_CHUNKS = 16
"""A cache that holds fewer, or whose disk is full, keeps nothing for long enough that others could read it there."""

_LOOK_THROUGH_S = 10.0
"""What a look at the whole source may take when a job starts; 100 000 files of a Lustre on one thread."""


async def join(basics: Basics, storage: Storage, joining: Joining, nursery: trio.Nursery) -> Membership:
    """The peers, once all have said who they are; what is staged is encoded from now on, if that is worth it."""
    config, source, cache = basics.config, storage.source, storage.cache
    shrinker = await basics.workers.run_sync(Shrinker) if config.stage_encoding == "auto" else None
    capacity_bytes = cache.room.limit_bytes()
    if capacity_bytes < _LEAST_CHUNKS * config.chunk_bytes:
        capacity_bytes = 0  # owner of nothing
    data_bytes = await _data_bytes(basics, storage, joining, capacity_bytes)
    joined = await joining.join(
        nursery,
        basics.metrics,
        basics.workers.run_sync,
        NodeInfo(
            source_id=source.source_id,
            root_inode=source.root_inode,
            reader=config.as_user or "",
            chunk_bytes=config.chunk_bytes,
            placement=config.placement,
            stagger_job=config.stagger_job,
            peer_timeout_s=config.peer_timeout_s,
            capacity_bytes=capacity_bytes,
            data_bytes=data_bytes,
        ),
        JobLimits(
            buffer_bytes=config.buffer_bytes,
            source_timeout_s=config.source_timeout_s,
            peer_timeout_s=config.peer_timeout_s,
            stagger=config.stagger,
            stagger_job=config.stagger_job,
        ),
    )
    share_bytes = data_bytes if joined.peers is None else joined.peers.owners.share_bytes
    choice = choose(config.stage_encoding, data_bytes=share_bytes, capacity_bytes=cache.room.limit_bytes())
    cache.shrinking.choose(choice, shrinker)
    return joined


async def _data_bytes(basics: Basics, storage: Storage, joining: Joining, at_most: int) -> int | None:
    """How much data there is, for the placement, and to see whether what is staged is to be encoded.

    None if that is of no use, or more than `at_most` (or than all nodes hold, if that is the question).
    """
    config = basics.config
    if not joining.is_first and not joining.is_alone:
        return None
    if config.stage_encoding == "auto":
        at_most = storage.cache.room.limit_bytes() * joining.count
    elif joining.is_alone or config.placement != "auto":
        return None
    return await storage.source.data_bytes(at_most, _LOOK_THROUGH_S)
