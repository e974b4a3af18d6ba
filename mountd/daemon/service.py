"""Service: the mount, the control socket, and every task that runs by itself while the mount is served."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

import trio

from hfs.mountd.core.background import start_for_life, start_guarded
from hfs.mountd.core.config import Config
from hfs.mountd.core.errors import MountError, SourceError
from hfs.mountd.daemon.basics import Basics
from hfs.mountd.daemon.cache_watch import CacheWatch
from hfs.mountd.daemon.control import ControlService, open_control
from hfs.mountd.daemon.ending import Ending
from hfs.mountd.daemon.files import FileService
from hfs.mountd.daemon.names import NameService
from hfs.mountd.daemon.status import Status
from hfs.mountd.daemon.storage import Storage
from hfs.mountd.files import ChangedNames, have_names_looked_up
from hfs.mountd.fuse import (
    Boundary,
    DirectoryReplies,
    EntryReplies,
    FastHandlers,
    FileReplies,
    Fuse,
    Handlers,
    Interrupts,
    RequestQuota,
    XattrReplies,
)
from hfs.mountd.kernel import forget_all_names, tune
from hfs.mountd.monitoring import Monitoring
from hfs.mountd.namespace import Namespace, SecondLookOutcomes, seconds
from hfs.mountd.peers import Membership
from hfs.mountd.wire.handover import Handover

log = logging.getLogger(__name__)

_SWEEP_S = 30.0
_ANSWER_LIMIT_S = 30.0

_BEGIN_S = 10.0
"""Longer than it takes to serve after a crash, and to have the kernel look up all names anew."""

_MOST_FETCHING = 64
"""Threads that fetch small files: FETCH_WORKERS in native/plane/fetch.h."""

_FOR_READERS = 16
"""Of them for files that somebody waits for: as many workers of a loader, and more wait no longer than these take."""


def fuse_of(
    basics: Basics,
    storage: Storage,
    names: NameService,
    files: FileService,
    control: ControlService,
    nursery: trio.Nursery,
) -> Fuse:
    """What answers the kernel, not mounted yet."""
    namespace, permissions, metrics = names.namespace, names.permissions, basics.metrics
    opening, handles, read_path, readers = files.opening, storage.handles, files.read_path, files.readers
    interrupts = Interrupts(nursery, metrics)
    quota = RequestQuota(interrupts, metrics)

    async def before_stale(node_id: int) -> None:
        if not storage.changed.held:
            with suppress(SourceError):
                namespace.node(node_id)
                await storage.changed.before_stale(node_id, lambda: forget_all_names(basics.handover.connection_fd))
            return  # a node of an earlier daemon: all names were looked up since, but by who is still in an old overlay
        await storage.changed.wait()

    boundary = Boundary(interrupts, quota, metrics, before_stale)
    fast = FastHandlers(read_path, opening, namespace, handles, readers, permissions, control.tunnels, quota)
    entries = EntryReplies(namespace, permissions, opening)
    handlers = Handlers(
        boundary,
        fast,
        entries,
        DirectoryReplies(namespace, permissions, handles, entries),
        FileReplies(namespace, permissions, opening, handles, read_path, readers, files.fetch.sparse_files, boundary),
        XattrReplies(
            namespace,
            permissions,
            names.xattrs,
            control.own_xattr,
            files.overlays,
            partial(
                files.xattr_answers.root_without_acl, seconds(basics.config.ttl_s, immutable=basics.config.immutable)
            ),
            metrics,
        ),
        storage.source,
    )
    return Fuse(
        handlers,
        fast,
        basics.handover,
        files.plane,
        storage.fetches,
        basics.workers.results_fd,
        threads=basics.config.answer_threads,
    )


@asynccontextmanager
async def mounted(basics: Basics, storage: Storage, files: FileService, fuse: Fuse) -> AsyncIterator[None]:
    """The mount is there until the block is left, though nobody answers yet. Raises MountError."""
    try:
        fuse.begin(overlay=storage.cache.publisher.on_overlay)
    except RuntimeError as error:
        raise MountError(f"{basics.config.mountpoint}: the kernel refused the mount ({error}); see the log") from error
    try:
        if basics.journal.generation:
            # What the kernel has agreed on is known; an open must not be answered in another mode.
            await files.io_mode.start(basics.handover.connection_fd)
        yield
    finally:
        try:
            files.passthrough.stop()
        finally:
            fuse.close()


@dataclass(frozen=True, slots=True)
class Service:
    """A mount that is made, and answers while `run` does."""

    basics: Basics
    names: NameService
    files: FileService
    changed: ChangedNames
    status: Status
    fuse: Fuse
    ending: Ending
    cache_watch: CacheWatch

    async def _have_names_looked_up(self) -> None:
        namespace = self.names.namespace
        async with self.changed.changing(namespace.root.attributes):  # overlays know what is known no more
            await have_names_looked_up(namespace, self.basics.handover.connection_fd, self.basics.workers.run_sync)

    async def run(self, ready: Callable[[], None]) -> None:
        """Answer until the mount is gone. `ready` is called once, when it answers."""
        basics, fuse = self.basics, self.fuse
        async with trio.open_nursery() as serving:
            start_for_life(serving, "signals", self.ending.wait, fuse.terminate, fuse.make_room)
            start_guarded(serving, "watch of the cache", self.cache_watch.run, fuse.make_room)
            if basics.journal.generation:
                serving.start_soon(_announce_again, basics.handover, basics.config, self.status, ready)
                if self.files.io_mode.stateless or self.changed.held:
                    start_guarded(serving, "names after a crash", self._have_names_looked_up)
            else:
                serving.start_soon(_announce, self, ready)
            await fuse.run()
            serving.cancel_scope.cancel()


@asynccontextmanager
async def open_service(
    basics: Basics,
    storage: Storage,
    joined: Membership,
    names: NameService,
    files: FileService,
    nursery: trio.Nursery,
) -> AsyncIterator[Service]:
    """Mount, and start what runs by itself. The mount goes first when the block is left, so that nobody asks any more.

    Raises MountError.
    """
    ending = Ending(basics.config.mountpoint, basics.handover)
    monitoring = Monitoring(basics.config)
    async with (
        open_control(basics, storage, joined, names, files, ending, monitoring, nursery) as control,
        monitoring.telling(
            control.status.figures,
            basics.workers.run_patient,
            nursery,
            follows=basics.journal.generation > 0,
        ),
    ):
        fuse = fuse_of(basics, storage, names, files, control, nursery)
        async with mounted(basics, storage, files, fuse):
            outcomes = SecondLookOutcomes(storage.cache, names.namespace, nursery, storage.plane.distrust)
            start_for_life(nursery, "sweep of names", _sweep, names.namespace)
            start_for_life(nursery, "second looks", storage.source.second_looks.run, storage.source.files, outcomes)
            start_for_life(nursery, "prefetch", files.prefetch.run)
            start_for_life(nursery, "hints", files.hints.run)
            is_new = basics.journal.generation == 0
            await files.overlays.begin(names.namespace.root.attributes, basics.handover.device, is_new=is_new)
            start_for_life(nursery, "overlays", files.overlays.run)
            start_for_life(nursery, "fetching damaged files again", storage.refetching.run, names.namespace)
            if not is_new:
                await storage.changed.hold(_BEGIN_S)  # before anything is answered
            start_for_life(nursery, "traffic", control.traffic.run)
            start_for_life(nursery, "opens of the data plane", files.delegations.tell, files.readers.served_many)
            config = basics.config
            ahead = min(2 * config.prefetch_threads, _MOST_FETCHING - _FOR_READERS)  # each waits for one small file
            start_for_life(
                nursery,
                "small files",
                partial(
                    files.pipeline.run,
                    basics.handover.connection_fd,
                    basics.workers.run_sync,
                    threads=ahead + _FOR_READERS,
                    ahead_threads=ahead,
                    ahead_bytes=config.buffer_bytes // 2,
                ),
            )
            start_for_life(nursery, "stepping back", files.stepping_back.run)
            start_for_life(nursery, "filling of the page cache", files.page_fill.run)
            watch = CacheWatch(basics, storage.source, storage.own_cache, storage.cache, storage.settings)
            yield Service(basics, names, files, storage.changed, control.status, fuse, ending, watch)


async def _announce_again(handover: Handover, config: Config, status: Status, ready: Callable[[], None]) -> None:
    """Announce a mount that another daemon has served. It may have been taken out of the tree, and is not
    looked at: a thread that asks its own daemon could keep it from ending."""
    log.info("%s: serving %s, as daemon %d of this mount", config.mountpoint, config.source, handover.generation + 1)
    ready()
    status.tuned(await trio.to_thread.run_sync(tune, handover.device, abandon_on_cancel=True))


async def _announce(service: Service, ready: Callable[[], None]) -> None:
    """Tell the kernel our settings and the caller that the mount answers, once it does."""
    config, handover = service.basics.config, service.basics.handover
    service.status.tuned(await trio.to_thread.run_sync(tune, handover.device))
    with trio.move_on_after(_ANSWER_LIMIT_S) as limit:
        if handover.given:  # it may be seen nowhere here, or not be ours to look at
            await service.fuse.wait_begun()
        else:
            await trio.to_thread.run_sync(os.stat, config.mountpoint, abandon_on_cancel=True)
    if limit.cancelled_caught:
        raise MountError(f"{config.mountpoint}: the mount does not answer after {_ANSWER_LIMIT_S:.0f} s")
    await service.files.io_mode.start(handover.connection_fd)
    log.info("%s: serving %s", config.mountpoint, config.source)
    ready()


async def _sweep(namespace: Namespace) -> None:
    while True:
        await trio.sleep(_SWEEP_S)
        await namespace.sweep()
