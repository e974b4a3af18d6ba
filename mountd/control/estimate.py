"""`hfs cache warm --dry-run`: what a warm would read and keep, and whether that fits. It reads no file.

Room that idle caches and neighbours would give up counts as there, as far as the ledger knows.
"""

from __future__ import annotations

from collections.abc import Sequence

from mountd.base.errors import HfsError
from mountd.cache import Cache
from mountd.control.connection import Report
from mountd.control.progress import ProgressCounter
from mountd.fetch import Owners
from mountd.namespace import Namespace, Node
from mountd.wire.protocol import Result

_NAMES_AT_ONCE = 512


class WarmEstimate:
    """Made for one command."""

    def __init__(self, namespace: Namespace, cache: Cache, owners: Owners, report: Report) -> None:
        self._namespace = namespace
        self._cache = cache
        self._owners = owners
        self._report = report
        self._work = ProgressCounter()
        self._missing_bytes = self._room_bytes = 0

    async def run(self, paths: Sequence[bytes]) -> Result:
        """`files` and `bytes` of the Result: all; `skipped`: staged already. Its `detail`: "missing_bytes" to be read,
        "room_bytes" that they take, "free_bytes" that there is."""
        await self._cache.ready.wait()
        for path in paths:
            try:
                await self._walk(await self._namespace.lookups.resolve(path))
            except HfsError as error:
                self._work.fail(path, error)
        room = self._cache.room
        free_bytes = room.limit_bytes() - room.used_bytes + self._cache.arrivals.granted_bytes
        detail = {
            "missing_bytes": self._missing_bytes,
            "room_bytes": self._room_bytes,
            "free_bytes": max(0, free_bytes),
        }
        result = self._work.result()
        return Result(
            files=result.files,
            bytes=result.bytes,
            failed=result.failed,
            skipped=result.skipped,
            faults=result.faults,
            detail=detail,
        )

    async def _walk(self, node: Node) -> None:
        if node.version is not None:
            await self._count(node)
        elif node.children is not None:
            listing = await self._namespace.listings.whole(node)
            for start in range(0, len(listing), _NAMES_AT_ONCE):
                names = [listing[i] for i in range(start, min(start + _NAMES_AT_ONCE, len(listing)))]
                await self._walk_names(node, names)
                await self._report(self._work.progress())

    async def _walk_names(self, directory: Node, names: Sequence[bytes]) -> None:
        dentries = await self._namespace.lookups.children(directory, names)
        nodes = [dentry.node for dentry in dentries if dentry.node is not None]
        await self._cache.files.load([node.version for node in nodes if node.version is not None])
        for node in nodes:
            try:
                await self._walk(node)
            except HfsError as error:
                self._work.fail(node.path, error)

    async def _count(self, node: Node) -> None:
        assert node.version is not None
        file = self._cache.files.get_nowait(node.version, node.path) or await self._cache.files.get(
            node.version, node.path
        )
        size_bytes = node.attributes.size
        self._work.found(size_bytes)
        if file.complete:
            self._work.skip(size_bytes)
            return
        self._work.done(size_bytes)
        ours = [index for index in file.present.missing() if self._owners.caches_locally(node.path, index)]
        self._missing_bytes += sum(map(file.chunk_size, ours))
        if ours:
            self._room_bytes += sum(map(file.raw_room_bytes, ours))
            self._room_bytes += file.overhead_bytes() if file.object_id is None else 0
