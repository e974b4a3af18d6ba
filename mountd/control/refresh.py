"""`hfs refresh`: what the daemon and the kernel know of paths is asked for anew, since the source has changed.

What changed is another version, which is fetched when it is read; what did not keeps all that there is of it. Who has a
file open goes on with the version that it has. Pinned files are looked at in the background, since those that have
changed would stay for ever otherwise.
"""

from __future__ import annotations

import posixpath
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

import trio

from mountd.base.attributes import Attributes
from mountd.base.errors import HfsError
from mountd.base.version import Version
from mountd.cache import Cache, StagedRow
from mountd.control.progress import ProgressCounter
from mountd.core.background import start_guarded
from mountd.fetch import SmallPipeline
from mountd.kernel import expire_names, forget_all_names, forget_attributes
from mountd.namespace import Namespace, Node, Refreshed, Refreshing
from mountd.source import Source
from mountd.wire.protocol import Result


class RefreshWork:
    """`tell_kernel` runs a function of the mount's descriptor of /dev/fuse in a thread that may wait for the kernel.
    `run_in_thread`: as trio.to_thread.run_sync."""

    def __init__(
        self,
        namespace: Namespace,
        cache: Cache,
        source: Source,
        pipeline: SmallPipeline,
        nursery: trio.Nursery,
        tell_kernel: Callable[[Callable[[int], object]], Awaitable[object]],
        run_in_thread: Callable[..., Awaitable[Any]],
        *,
        is_inherited: bool,
    ) -> None:
        """`is_inherited`: earlier daemons of this mount may have told the kernel of names that nobody knows here."""
        self._namespace = namespace
        self._refreshing = Refreshing(namespace)
        self._is_inherited = is_inherited
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
        for path in paths:
            try:
                every.append(await self._refreshing.refresh(path, self._pipeline.recall, self._run_in_thread))
                work.files += every[-1].count
            except HfsError as error:
                work.fail(path, error)
        # A look-up that hangs in the source holds its directory, for which this would wait, and with it all others.
        all_names = self._is_inherited or self._namespace.silence.is_on() or any(one.is_partial for one in every)
        await self._tell_kernel(lambda connection_fd: _tell(connection_fd, every, all_names=all_names))
        if len(self._cache.pinned):
            start_guarded(self._nursery, "pinned files", self._look_at_pinned, list(paths))
        return work.result()

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


def _tell(connection_fd: int, every: Sequence[Refreshed], *, all_names: bool) -> None:
    """In a thread. `all_names`: of the whole mount, where the kernel can: it knows names that we have forgotten."""
    is_told = all_names and forget_all_names(connection_fd)
    for refreshed in every:
        for directory_id, names in refreshed.names.items():
            if not is_told:
                expire_names(connection_fd, directory_id, names)
        forget_attributes(connection_fd, refreshed.directories)
