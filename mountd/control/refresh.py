"""`hfs refresh`: what the daemon and the kernel know of paths is asked for anew, since the source has changed.

What changed is another version, which is fetched when it is read; what did not keeps all that there is of it. Who has a
file open goes on with the version that it has. Pinned files are looked at in the background, since those that have
changed would stay for ever otherwise.
"""

from __future__ import annotations

import math
import posixpath
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

import trio

from hfs.mountd.cache import Cache, StagedRow
from hfs.mountd.control.progress import ProgressCounter
from hfs.mountd.core.attributes import Attributes
from hfs.mountd.core.background import start_guarded
from hfs.mountd.core.errors import HfsError, SourceError, SourceTimeout
from hfs.mountd.core.version import Version
from hfs.mountd.fetch import SmallPipeline
from hfs.mountd.kernel import expire_names, forget_all_names, forget_attributes
from hfs.mountd.namespace import LeadsOut, NamesNothing, Namespace, Node, Refreshed, Refreshing
from hfs.mountd.source import Source
from hfs.mountd.wire.protocol import Result

_TELL_S = 10.0
"""The kernel takes a hundred thousand names a second. It waits for a directory where a look-up is under way."""
_HANGS_S = 2.0
"""Longer than a look-up takes; as long as one is waited for whose answer was known."""


class RefreshWork:
    """`tell_kernel` runs a function of the mount's descriptor of /dev/fuse in a thread that may wait for the kernel;
    who is cancelled leaves it there. `run_in_thread`: as trio.to_thread.run_sync."""

    def __init__(
        self,
        namespace: Namespace,
        cache: Cache,
        source: Source,
        pipeline: SmallPipeline,
        nursery: trio.Nursery,
        tell_kernel: Callable[[Callable[[int], bool]], Awaitable[bool]],
        run_in_thread: Callable[..., Awaitable[Any]],
        *,
        tells_all: Callable[[], bool],
    ) -> None:
        """`tells_all`: earlier daemons of this mount may have told the kernel of names that nobody knows here, or
        look-ups wait for an end of this."""
        self._namespace = namespace
        self._refreshing = Refreshing(namespace)
        self._tells_all = tells_all
        self._cache = cache
        self._source = source
        self._pipeline = pipeline
        self._nursery = nursery
        self._tell_kernel = tell_kernel
        self._run_in_thread = run_in_thread

    async def refresh(self, paths: Sequence[bytes]) -> Result:
        """Returns when the next look at these paths, and below, sees what the source has."""
        work = ProgressCounter()
        every: list[Refreshed] = []
        all_paths: list[bytes] = []

        async def refresh(path: bytes) -> None:
            every.append(
                await self._refreshing.refresh(path, self._pipeline.directory_delegations.recall, self._run_in_thread)
            )
            work.files += every[-1].count
            all_paths.append(path)

        for path in paths:
            try:
                await refresh(path)
                await self._follow(path, refresh, leads_on=every[-1].leads_on)
            except HfsError as error:
                work.fail(path, error)
        if not await self._told(every):
            late = "look-ups hang there, which the kernel waits for: what has changed is seen when they end"
            work.fail(paths[0] if paths else b"", SourceTimeout(late))
        if len(self._cache.pinned):
            start_guarded(self._nursery, "pinned files", self._look_at_pinned, all_paths)
        return work.result()

    async def _follow(self, path: bytes, refresh: Callable[[bytes], Awaitable[None]], *, leads_on: bool) -> None:
        """Where links lead from `path`, for a job that opens it. Raises LeadsOut and StagingError, and SourceTimeout
        where the source does not say it, unless it is known that there are no links."""

        async def onward(where: bytes) -> None:
            waiting.deadline = math.inf
            await refresh(where)
            waiting.deadline = trio.current_time() + _HANGS_S

        try:
            with trio.fail_after(_HANGS_S) as waiting:
                await self._namespace.links.follow(path, onward)
        except NamesNothing:
            pass
        except LeadsOut:
            raise
        except (SourceError, trio.TooSlowError) as error:
            if leads_on:
                raise SourceTimeout("what links name there is not refreshed: the source does not say it") from error

    async def _told(self, every: Sequence[Refreshed]) -> bool:
        """False: it cannot be told. A look-up that hangs in the source holds its directory: whoever tells of a name in
        it would wait for that, and with him all others that look there."""
        hangs = self._namespace.silence.is_on() or not await self._pipeline.wait_answered()
        hangs |= not await self._namespace.asking.wait_answered(_HANGS_S)
        if hangs or self._tells_all() or any(one.is_partial for one in every):
            is_told = await self._tell_kernel(lambda connection_fd: _tell_all(connection_fd, every))
            if is_told or hangs:
                return is_told
        with trio.move_on_after(_TELL_S) as telling:
            await self._tell_kernel(lambda connection_fd: _tell(connection_fd, every))
        return not telling.cancelled_caught

    async def _look_at_pinned(self, paths: Sequence[bytes]) -> None:
        """Those that are not at their path any more, or have changed, go as soon as they are not open."""
        source_ids = await self._source.ids_below()
        async with aclosing(self._cache.listing.pinned_pages(paths, source_ids)) as pages:
            async for rows in pages:
                by_directory: dict[bytes, list[StagedRow]] = {}
                for row in rows:
                    by_directory.setdefault(posixpath.dirname(row.path), []).append(row)
                for directory, there in by_directory.items():
                    try:
                        now = await self._versions(directory, [posixpath.basename(row.path) for row in there])
                    except HfsError:
                        continue  # nobody can tell
                    for row, version in zip(there, now, strict=True):
                        if version != row.version:
                            await self._cache.files.supersede(row.version)

    async def _versions(self, directory: bytes, names: Sequence[bytes]) -> Sequence[Version | None]:
        """Of these names; None: there is no such file."""
        node: Node | None = self._namespace.root
        for name in filter(None, directory.split(b"/")):
            if node is None or node.children is None:
                break
            node = (await self._namespace.lookups.child(node, name)).node
        if node is None or node.children is None:
            return [None] * len(names)
        return [self._version(one) for one in await self._namespace.lookups.attributes(node, names)]

    def _version(self, one: Node | Attributes | None) -> Version | None:
        if isinstance(one, Node):
            return one.version
        return one.version(self._source.source_id) if one is not None else None


def _tell(connection_fd: int, every: Sequence[Refreshed]) -> bool:
    """In a thread."""
    for refreshed in every:
        for directory_id, names in refreshed.names.items():
            expire_names(connection_fd, directory_id, names)
        forget_attributes(connection_fd, refreshed.directories)
    return True


def _tell_all(connection_fd: int, every: Sequence[Refreshed]) -> bool:
    """In a thread. Of every name in the mount, also those that we have forgotten: waits for no directory. False: the
    kernel cannot (before Linux 6.16)."""
    for refreshed in every:
        forget_attributes(connection_fd, refreshed.directories)
    return forget_all_names(connection_fd)
