"""Small files that the data plane fetches by itself (native/plane/fetch.h): what it is asked for ahead, and what has
become of each.

It may do so in directories that are lent (`fetch.lending`). What is out of the ordinary comes to us as every request
did: the pipeline is a faster way, never another one. Event loop only.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
from collections.abc import Sequence

import trio

from mountd.base.errors import HfsError
from mountd.base.version import Version
from mountd.cache import Arrival, Cache, Stamp
from mountd.core.metrics import Metrics
from mountd.fetch.chunks.batches import Place
from mountd.fetch.lending import Lending
from mountd.fetch.sibling_watch import SiblingWatch
from mountd.kernel import Fetched, FetchKind, SmallFetches
from mountd.namespace import Namespace, Node
from mountd.source import Source

log = logging.getLogger(__name__)

_BUSY_S, _IDLE_S = 0.02, 0.2
"""How often it is looked what has become of files."""

_HANGING_EVERY_S = 1.0

_WAS_HERE = 1 << 63
"""In the thread id of an open: WAS_HERE in native/plane/fetch.h."""

_FACTS = struct.Struct("=24xQQ24x8xqq4xIIxxxx")
"""Inode, size, mtime and ctime of struct seen (native/seen.h)."""

_COUNTERS = {
    "source_stats": "looks",
    "source_opens": "opens",
    "source_reads": "reads",
    "source_read_bytes": "read_bytes",
}

_PATIENCE_S = 1.0
"""At the end: for threads that read the source just then."""


class SmallPipeline:
    """`run` is a task of the daemon's nursery, once the mount is there."""

    def __init__(
        self,
        fetches: SmallFetches,
        lending: Lending,
        namespace: Namespace,
        source: Source,
        cache: Cache,
        siblings: SiblingWatch,
        metrics: Metrics,
    ) -> None:
        self._fetches = fetches
        self._lending = lending
        self._namespace = namespace
        self._source = source
        self._cache = cache
        self._siblings = siblings
        self._metrics = metrics
        self._counted = fetches.figures()

    # -- files --------------------------------------------------------------------------------------------------------

    def ahead(self, places: Sequence[Place]) -> list[Place]:
        """Have siblings of lent directories fetched. Those that are to be fetched the usual way."""
        usual: list[Place] = []
        by_directory: dict[Node, list[bytes]] = {}
        for directory, name in places:
            by_directory.setdefault(directory, []).append(name)
        for directory, names in by_directory.items():
            for name, error in zip(names, self._fetches.ahead(directory.id, names), strict=True):
                if error in (errno.EPERM, errno.ENOENT):
                    usual.append((directory, name))
                elif error:
                    self._siblings.drop(directory, name)
        return usual

    def opened(self, node_id: int, thread_id: int) -> None:
        """A leaf was opened without us."""
        found = self._fetches.leaf(node_id)
        directory = self._lending.directory(found[0]) if found is not None else None
        if found is not None and directory is not None:
            self._lending.is_used(found[0])
            self._siblings.opened_in(directory, found[1], found[2], staged=bool(thread_id & _WAS_HERE))

    # -- what becomes of them -----------------------------------------------------------------------------------------

    async def run(self, device_fd: int, *, threads: int, ahead_threads: int, ahead_bytes: int) -> None:
        """Fetch with so many threads, from now on; for ever. At the end they have ended."""
        self._fetches.start(device_fd, threads, ahead_threads=ahead_threads, ahead_bytes=ahead_bytes)
        hanging_s = trio.current_time() + _HANGING_EVERY_S
        try:
            while True:
                if self._lending:
                    self._cache.arrivals.grant_nowait()
                busy = self.take()
                self._lending.look_after()
                if trio.current_time() >= hanging_s:
                    hanging_s = trio.current_time() + _HANGING_EVERY_S
                    await self._replace_hanging()
                await trio.sleep(_BUSY_S if busy or self._lending else _IDLE_S)
        finally:
            self._lending.recall_all()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._fetches.stop, _PATIENCE_S)
            self.take()

    async def _replace_hanging(self) -> None:
        count = await trio.to_thread.run_sync(self._fetches.replace_hanging, self._source.threads.time_limit_s)
        if count:
            self._metrics.add("source_abandoned", count)

    def take(self) -> bool:
        """Hear what has become of files. False: of none."""
        before, self._counted = self._counted, self._fetches.figures()
        for name, field in _COUNTERS.items():
            self._metrics.add(name, getattr(self._counted, field) - getattr(before, field))
        found = self._fetches.take_fetched()
        taken = bool(found)
        while found:
            self._enter(found)
            found = self._fetches.take_fetched()
        return taken

    def _enter(self, found: Sequence[Fetched]) -> None:
        arrivals: list[Arrival] = []
        prefixes: dict[int, bytes | None] = {}
        source_id = self._source.source_id
        for one in found:
            if one.directory_id not in prefixes:
                prefixes[one.directory_id] = self._prefix(one.directory_id)
            prefix = prefixes[one.directory_id]
            inode, size, mtime_s, ctime_s, mtime_ns, ctime_ns = _FACTS.unpack(one.seen)
            if one.kind is FetchKind.BROKEN or (one.kind is FetchKind.STORED and prefix is None):
                self._cache.arrivals.broken(one.number, size)
            elif one.kind is FetchKind.STORED and prefix is not None:
                version = Version(source_id, inode, size, mtime_s * 10**9 + mtime_ns, ctime_s * 10**9 + ctime_ns)
                stamp = Stamp(one.inode, one.ctime_ns)
                arrivals.append(Arrival(version, prefix + one.name, one.number, stamp, one.checksum))
            self._lending.is_used(one.directory_id)
            if one.ahead:
                self._tell_siblings(one, size)
        self._cache.arrivals.enter(arrivals)
        if any(one.ahead for one in found):
            self._siblings.look_again()

    def _prefix(self, directory_id: int) -> bytes | None:
        try:
            path = self._namespace.nodes.node(directory_id).path
        except HfsError:
            return None
        return path + os.fsencode("/") if path else b""

    def _tell_siblings(self, one: Fetched, size: int) -> None:
        directory = self._lending.directory(one.directory_id)
        if directory is None:
            return
        if one.kind in (FetchKind.STORED, FetchKind.UNSTORED):
            self._metrics.add("sibling_files")
            self._siblings.fetched(directory, one.name, size)
        else:
            self._siblings.drop(directory, one.name)
