"""The source, and the threads that read it: the daemon's own, or those of the user that `as-user` names.

Threads that read as another user are a pool of their own, each of which becomes that user before its first call and
does nothing else. SOURCE is opened and looked at by one of them too: root may be nobody there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hfs.mountd.core.caller import Credentials
from hfs.mountd.core.config.key import SourceUser
from hfs.mountd.core.errors import MountError
from hfs.mountd.core.workers import Workers
from hfs.mountd.daemon.basics import Basics
from hfs.mountd.namespace import seconds
from hfs.mountd.source import ReadingUser, Source, SourceThreads, be_closed, identify, is_private


@asynccontextmanager
async def open_source(basics: Basics) -> AsyncIterator[Source]:
    """Open until the block is left. Raises ConfigError; MountError if no thread can become the user."""
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
