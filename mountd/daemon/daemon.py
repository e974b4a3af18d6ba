"""The daemon: built from a few context managers, each start beside its stop, and served until the mount is gone.

Order matters: the source's descriptor is taken before the mount is made (MOUNTPOINT may lie on SOURCE); the cache is
opened and locked before anything is visible; `ready` is called only when the mount answers. At the end the mount goes
first, so that nobody asks any more, then what fetches ahead, then staging gets a bounded time to write what it holds.

    storage   the source and the cache
    peers     the other nodes
    names     what the kernel is told
    files     open and read
    service   the mount, the control socket, the tasks

Signals: SIGTERM and SIGINT unmount and end cleanly (`ending`). A second one ends at once.
"""

from __future__ import annotations

import gc
import logging
import math
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import trio

from hfs.mountd.cache import Shrinker
from hfs.mountd.core.caller import numbers_are_foreign
from hfs.mountd.core.config import Config
from hfs.mountd.core.limits import Memory, OpenFiles, of_this_process
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.core.workers import Workers
from hfs.mountd.daemon.basics import Basics
from hfs.mountd.daemon.files import open_file_service
from hfs.mountd.daemon.names import open_names
from hfs.mountd.daemon.service import open_service
from hfs.mountd.daemon.storage import Storage, open_storage
from hfs.mountd.namespace import open_journal
from hfs.mountd.peers import JobLimits, Joining, Membership, NodeInfo, end_mpi, open_joining
from hfs.mountd.wire.handover import Handover
from hfs.policies.cache.encoding import choose

log = logging.getLogger(__name__)

GARBAGE = (50_000, 20, 20)
"""How often cycles are looked for: a look at all objects takes half a second with a million names, in which nobody is
answered, and next to nothing here is in a cycle. With Python's own numbers it was a twentieth of the daemon's time."""


_LEAST_CHUNKS = 16
"""A cache that holds fewer, or whose disk is full, keeps nothing for long enough that others could read it there."""

_LOOK_THROUGH_S = 10.0
"""What a look at the whole source may take when a job starts; 100 000 files of a Lustre on one thread."""


async def _join_peers(basics: Basics, storage: Storage, joining: Joining, nursery: trio.Nursery) -> Membership:
    """The peers, once all have said who they are; what is staged is encoded from now on, if that is worth it."""
    config, source, cache = basics.config, storage.source, storage.cache
    shrinker = await basics.workers.run_sync(Shrinker) if config.stage_encoding == "auto" else None
    capacity_bytes = cache.room.limit_bytes()
    if capacity_bytes < _LEAST_CHUNKS * config.chunk_bytes:
        capacity_bytes = 0  # owner of nothing
    data_bytes = await _data_bytes(basics, storage, joining)
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
            encodes=config.stage_encoding != "none",
        ),
        JobLimits(
            buffer_bytes=config.buffer_bytes,
            source_timeout_s=config.source_timeout_s,
            peer_timeout_s=config.peer_timeout_s,
            stagger=config.stagger,
            stagger_job=config.stagger_job,
        ),
    )
    owners = None if joined.peers is None else joined.peers.owners
    share_bytes = data_bytes if owners is None else owners.agreed.share_bytes(owners.number)
    choice = choose(config.stage_encoding, data_bytes=share_bytes, capacity_bytes=cache.room.limit_bytes())
    cache.shrinking.choose(choice, shrinker)
    return joined


async def _data_bytes(basics: Basics, storage: Storage, joining: Joining) -> int | None:
    """How much room all data needs: for the placement, for the part of it that all caches together have room for, and
    to see whether what is staged is to be encoded. None if that is of no use, or too much to tell."""
    encodes = basics.config.stage_encoding == "auto"
    if joining.is_first and (encodes or basics.config.placement != "replicate"):
        return await storage.source.data_bytes(math.inf, _LOOK_THROUGH_S)
    if joining.is_alone and not joining.is_first and encodes:
        return await storage.source.data_bytes(storage.cache.room.limit_bytes(), _LOOK_THROUGH_S)
    return None


def run(config: Config, origins: Mapping[str, str], ready: Callable[[], None], handover: Handover) -> None:
    """Serve the keeper's mount until it is unmounted. `ready` is called once, when it answers.

    Raises ConfigError, MountError, SourceError before `ready`; then nothing is left mounted.
    """
    if handover.foreign_pids:
        numbers_are_foreign()
    open_files = of_this_process()
    _step_back(config.nice)
    gc.set_threshold(*GARBAGE)
    ends: list[Callable[[], None]] = []
    try:
        trio.run(_serve, config, origins, ready, ends, handover, open_files, strict_exception_groups=True)
    finally:
        for end in ends:
            end()


def _step_back(steps: int) -> None:
    """As nice(1), of all threads that there are, and of those that they will start (setpriority(2) is of one)."""
    for thread in map(int, os.listdir("/proc/self/task")):
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + steps)


async def _serve(
    config: Config,
    origins: Mapping[str, str],
    ready: Callable[[], None],
    ends: list[Callable[[], None]],
    handover: Handover,
    open_files: OpenFiles,
) -> None:
    """`ends`: what is left to be done without an event loop."""
    journal = open_journal(handover)
    workers = Workers()
    basics = Basics(config, origins, handover, journal, Metrics(), Memory(trio.current_time), workers, open_files)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        await enter(workers.running())
        joining = await enter(open_joining(config, journal.generation))
        ends.append(lambda: end_mpi(joining))
        storage = await enter(open_storage(basics))
        nursery = await enter(_cancelled_at_exit())
        joined = await _join_peers(basics, storage, joining, nursery)
        names = await enter(open_names(basics, storage, nursery))
        files = await enter(open_file_service(basics, storage, joined.peers, names, nursery))
        service = await enter(open_service(basics, storage, joined, names, files, nursery))
        await service.run(ready)
        log.info("%s: not served any more", config.mountpoint)


@asynccontextmanager
async def _cancelled_at_exit() -> AsyncIterator[trio.Nursery]:
    """The nursery of all fetches and background tasks; they end when the mount has gone."""
    async with trio.open_nursery() as nursery:
        yield nursery
        nursery.cancel_scope.cancel()
