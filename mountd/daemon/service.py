"""Service: the mount itself, the control socket, and every task that runs by itself while the mount is served."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

import trio

from mountd.base.errors import MountError
from mountd.control import Commands, StatusReport, serve, socket_path
from mountd.core.background import start_for_life, start_guarded
from mountd.core.config import Config
from mountd.daemon.basics import Basics
from mountd.daemon.ending import Ending
from mountd.daemon.files import FileService
from mountd.daemon.names import NameService
from mountd.daemon.storage import Storage
from mountd.fetch import Readers, Serving
from mountd.files import have_names_looked_up
from mountd.fuse import (
    Boundary,
    DevFuse,
    DirectoryReplies,
    EntryReplies,
    FastHandlers,
    FileReplies,
    Fuse,
    Handlers,
    Interrupts,
    XattrReplies,
)
from mountd.kernel import device_of, fastpath, tune
from mountd.namespace import Believing, Namespace
from mountd.peers import JobPeers, Peers
from mountd.wire.handover import Handover

__all__ = ["Service", "open_service"]

log = logging.getLogger(__name__)

_SWEEP_S = 30.0
_ANSWER_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Service:
    """A mount that is made, and answers while `run` does."""

    basics: Basics
    names: NameService
    files: FileService
    status: StatusReport
    connection_fd: int
    """The mount's descriptor of /dev/fuse."""
    fuse: Fuse
    ending: Ending

    async def run(self, ready: Callable[[], None]) -> None:
        """Answer until the mount is gone. `ready` is called once, when it answers."""
        basics, fuse = self.basics, self.fuse
        async with trio.open_nursery() as serving:
            start_for_life(serving, "signals", self.ending.wait, fuse.terminate, fuse.make_room)
            if basics.journal.generation:
                serving.start_soon(_announce_again, basics.handover, basics.config, self.status, ready)
                if self.files.io_mode.stateless:
                    look_up = self.names.namespace, self.connection_fd, basics.workers.run_sync
                    start_guarded(serving, "names after a crash", have_names_looked_up, *look_up)
            else:
                serving.start_soon(_announce, self, ready)
            await fuse.run()
            serving.cancel_scope.cancel()


@asynccontextmanager
async def open_service(
    basics: Basics,
    storage: Storage,
    peers: Peers,
    names: NameService,
    files: FileService,
    device: DevFuse,
    nursery: trio.Nursery,
) -> AsyncIterator[Service]:
    """Mount, and start what runs by itself. The mount goes first when the block is left, so that nobody asks any more.

    Raises MountError.
    """
    config = basics.config
    ending = Ending(config.mountpoint, basics.handover)
    readers = Readers()
    with ExitStack() as stack:
        status = _status(basics, storage, peers, names, files, readers, ending)
        control_path = stack.enter_context(socket_path(config))
        commands = Commands(
            status,
            names.namespace,
            storage.staging,
            storage.source,
            files.read_path,
            files.fetcher,
            storage.learners,
            files.recorder,
            files.small_files,
            peers,
            basics.metrics,
            control_path,
        )
        if isinstance(peers, JobPeers):
            answers = Serving(
                names.namespace,
                storage.staging,
                files.fetcher,
                storage.source,
                peers.is_mine,
                basics.workers.run_sync,
            )
            peers.answer(answers, status.brief)
            stack.callback(peers.leave)
        async with serve(control_path, commands, nursery, basics.open_files):
            fuse = _fuse(basics, storage, names, files, readers, commands, device, nursery)
            _mount(config, fuse, basics.handover, overlay=storage.staging.on_overlay)
            try:
                if basics.journal.generation:
                    # What the kernel has agreed on is known; an open must not be answered in another mode.
                    await files.io_mode.start(device.get())
                start_for_life(nursery, "sweep of names", _sweep, names.namespace)
                believing = Believing(storage.staging, names.namespace, nursery)
                start_for_life(nursery, "second looks", storage.source.doubts.run, storage.source.files, believing)
                start_for_life(nursery, "prefetch", files.prefetch.run)
                start_for_life(nursery, "hints", files.hints.run)
                yield Service(basics, names, files, status, device.get(), fuse, ending)
            finally:
                try:
                    files.passthrough.stop()
                finally:
                    fuse.close(unmount=ending.unmounts)


def _fuse(
    basics: Basics,
    storage: Storage,
    names: NameService,
    files: FileService,
    readers: Readers,
    commands: Commands,
    device: DevFuse,
    nursery: trio.Nursery,
) -> Fuse:
    namespace, permissions, metrics = names.namespace, names.permissions, basics.metrics
    opening, handles, read_path = files.opening, storage.handles, files.read_path
    boundary = Boundary(Interrupts(nursery, metrics), metrics)
    fast = FastHandlers(read_path, opening, namespace, handles, readers, permissions)
    entries = EntryReplies(namespace, permissions, opening)
    handlers = Handlers(
        boundary,
        fast,
        entries,
        DirectoryReplies(namespace, permissions, handles, entries),
        FileReplies(namespace, permissions, opening, handles, read_path, readers, boundary.interrupts, metrics),
        XattrReplies(namespace, permissions, names.xattrs, commands.own_xattr),
        storage.source,
    )
    return Fuse(handlers, fast, device, basics.workers.results_fd)


def _mount(config: Config, fuse: Fuse, handover: Handover | None, *, overlay: bool) -> None:
    try:
        fuse.mount(
            config.mountpoint,
            config.source,
            allow_other=config.allow_other,
            noexec=config.noexec,
            overlay=overlay,
            handover=handover,
        )
    except RuntimeError as error:
        raise MountError(f"{config.mountpoint}: the kernel refused the mount ({error}); see the log") from error


def _status(
    basics: Basics,
    storage: Storage,
    peers: Peers,
    names: NameService,
    files: FileService,
    readers: Readers,
    ending: Ending,
) -> StatusReport:
    return StatusReport(
        basics.config,
        basics.origins,
        metrics=basics.metrics,
        source=storage.source,
        staging=storage.staging,
        namespace=names.namespace,
        handles=storage.handles,
        prefetch=files.prefetch,
        buffers=files.buffers,
        readers=readers,
        learners=storage.learners,
        residency=files.residency,
        threads_refused=lambda: basics.workers.refused,
        open_files=basics.open_files,
        io_mode=files.io_mode,
        peers=peers,
        permissions=names.permissions,
        in_flight=lambda: files.fetcher.in_flight,
        ending=ending,
        journal=basics.journal,
    )


async def _announce_again(
    handover: Handover | None, config: Config, status: StatusReport, ready: Callable[[], None]
) -> None:
    """As `_announce`, of a mount that another daemon has served. It may have been taken out of the tree, and is not
    looked at: a thread that asks its own daemon could keep it from ending."""
    assert handover is not None
    log.info("%s: serving %s, as daemon %d of this mount", config.mountpoint, config.source, handover.generation + 1)
    ready()
    major, minor = handover.device.split(":")
    settings = partial(tune, os.makedev(int(major), int(minor)), init_asked=True)
    status.tuned(await trio.to_thread.run_sync(settings, abandon_on_cancel=True))


async def _announce(service: Service, ready: Callable[[], None]) -> None:
    """Tell the kernel our settings and the caller that the mount answers, once it does."""
    config = service.basics.config
    device = await trio.to_thread.run_sync(device_of, config.mountpoint)
    if device is None:
        raise MountError(f"{config.mountpoint}: the mount is not in /proc/self/mountinfo")
    init_asked = fastpath.extension_missing() is None
    service.status.tuned(await trio.to_thread.run_sync(partial(tune, device, init_asked=init_asked)))
    with trio.move_on_after(_ANSWER_LIMIT_S) as limit:
        await trio.to_thread.run_sync(os.stat, config.mountpoint, abandon_on_cancel=True)
    if limit.cancelled_caught:
        raise MountError(f"{config.mountpoint}: the mount does not answer after {_ANSWER_LIMIT_S:.0f} s")
    await service.files.io_mode.start(service.connection_fd)
    log.info("%s: serving %s", config.mountpoint, config.source)
    service.ending.announced()
    ready()


async def _sweep(namespace: Namespace) -> None:
    while True:
        await trio.sleep(_SWEEP_S)
        await namespace.sweep()
