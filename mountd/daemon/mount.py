"""The mount: the handlers that the kernel's requests reach, put in front of names and files, and the mount itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import trio

from hfs.mountd.core.errors import MountError, SourceError
from hfs.mountd.daemon.basics import Basics
from hfs.mountd.daemon.control import ControlService
from hfs.mountd.daemon.files import FileService
from hfs.mountd.daemon.names import NameService
from hfs.mountd.daemon.storage import Storage
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
from hfs.mountd.kernel import forget_all_names
from hfs.mountd.namespace import seconds


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
