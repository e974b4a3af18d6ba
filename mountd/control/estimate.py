"""`hfs cache warm --dry-run`: what a warm would read and keep, whether that fits, and how long it would take.

Names are looked at as for a listing, so that the warm which follows finds them as it would have. The time comes of a
short piece of a real warm, of files all over the set (`probing`), which stay staged.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import trio

from hfs.mountd.base.attributes import Attributes
from hfs.mountd.base.errors import HfsError, StagingError
from hfs.mountd.base.version import Version
from hfs.mountd.cache import Cache
from hfs.mountd.control.connection import Report
from hfs.mountd.control.fitting import Fitting
from hfs.mountd.control.probing import Missing, Probing, Some
from hfs.mountd.control.progress import ProgressCounter
from hfs.mountd.control.warm import Warming
from hfs.mountd.control.warm_nodes import TOO_LARGE
from hfs.mountd.fetch import Owners, SparseFiles
from hfs.mountd.namespace import Namespace, Node
from hfs.mountd.wire.protocol import Result
from hfs.policies.cache.admission import blocks_bytes, object_overhead_bytes

_NAMES_AT_ONCE = 512


class WarmEstimate:
    """Made for one command."""

    def __init__(
        self,
        namespace: Namespace,
        cache: Cache,
        owners: Owners,
        sparse_files: SparseFiles,
        new_warming: Callable[[Report], Warming],
        small_bytes: int,
        report: Report,
    ) -> None:
        """`small_bytes`: of the largest small file."""
        self._namespace = namespace
        self._cache = cache
        self._owners = owners
        self._sparse_files = sparse_files
        self._new_warming = new_warming
        self._small_bytes = small_bytes
        self._report = report
        self._work = ProgressCounter()
        self._small = Missing(random.Random())
        self._large = Missing(random.Random())
        self._here_bytes = 0
        self._listing_s = 0.0
        self._seen: set[Node] = set()
        """Directories."""

    async def run(self, paths: Sequence[bytes], probe_s: float = 0.0) -> Result:
        """See `wire.protocol.Estimate`."""
        await self._cache.ready.wait()
        fitting = Fitting(self._cache)
        for path in paths:
            try:
                await self._walk(await self._namespace.links.follow(path))
            except HfsError as error:
                self._work.fail(path, error)
        free_bytes = fitting.free_bytes(self._here_bytes)
        probing = Probing(self._small, self._large, self._new_warming)
        if probe_s:
            await probing.run(probe_s, free_bytes)
        left = probing.left()
        result = self._work.result()
        # The room of what was probed is taken.
        free_bytes = max(0, free_bytes - (self._small.room_bytes + self._large.room_bytes - left.room_bytes))
        fits = min(1.0, free_bytes / left.room_bytes) if left.room_bytes else 1.0
        seconds = probing.seconds()
        if seconds is not None:
            seconds = max(seconds, self._listing_s) * fits if left.room_bytes else 0.0
        detail = {
            "missing_bytes": left.bytes,
            "room_bytes": left.room_bytes,
            "free_bytes": free_bytes,
            "seconds": seconds,
            "probed_bytes": self._small.bytes + self._large.bytes - left.bytes,
        }
        return Result(
            files=result.files,
            bytes=result.bytes,
            failed=result.failed,
            skipped=result.skipped,
            faults=result.faults,
            detail=detail,
        )

    async def _walk(self, met: Node) -> None:
        node = await self._namespace.links.met(met)
        if node is None:
            return
        if node.version is not None:
            if node.parent is not None:
                self._walked(node.parent, [await self._count(node.parent, node.name, node, node.version)])
        elif node.children is not None and node not in self._seen:
            self._seen.add(node)
            began_s = trio.current_time()
            listing = await self._namespace.listings.whole(node)
            self._listing_s += trio.current_time() - began_s
            for start in range(0, len(listing), _NAMES_AT_ONCE):
                names = [listing[i] for i in range(start, min(start + _NAMES_AT_ONCE, len(listing)))]
                await self._walk_names(node, names)
                await self._report(self._work.progress())

    async def _walk_names(self, directory: Node, names: Sequence[bytes]) -> None:
        answers = await self._namespace.lookups.attributes(directory, names)
        source_id = self._namespace.leaves.source_id
        files: list[tuple[bytes, Node | Attributes, Version]] = []
        below: list[Node] = []
        for name, one in zip(names, answers, strict=True):
            if isinstance(one, Node):
                if one.version is not None:
                    files.append((name, one, one.version))
                else:
                    below.append(one)
            elif one is not None:
                files.append((name, one, one.version(source_id)))
        if not self._cache.files.all_in_memory:
            await self._cache.files.load([version for _, _, version in files])
        self._walked(directory, [await self._count(directory, *file) for file in files])
        for node in below:
            try:
                await self._walk(node)
            except HfsError as error:
                self._work.fail(node.path, error)

    async def _count(self, directory: Node, name: bytes, one: Node | Attributes, version: Version) -> Some:
        """What the file lacks."""
        size_bytes = version.size
        self._work.found(size_bytes)
        path = b"/".join(filter(None, (directory.path, name)))
        files = self._cache.files
        file = files.peek(version)
        if file is None and files.all_in_memory and size_bytes <= self._small_bytes:
            if not size_bytes:
                self._work.skip(0)
                return Some(name, 0, 0, is_small=True)
            self._work.done(size_bytes)
            if not self._owners.caches_locally(path, 0):
                return Some(name, 0, 0, is_small=True)
            return Some(name, size_bytes, blocks_bytes(size_bytes) + object_overhead_bytes(1), is_small=True)
        if file is None:
            file = files.get_nowait(version, path) or await files.get(version, path)
        if file.complete:
            self._work.skip(size_bytes)
            self._here_bytes += 0 if file.object_id in self._cache.pinned else file.room_bytes
            return Some(name, 0, 0, is_small=True)
        if file.present.too_many:
            self._work.fail(path, StagingError(TOO_LARGE))
            return Some(name, 0, 0, is_small=False)
        self._work.done(size_bytes)
        ours = [index for index in file.present.missing() if self._owners.caches_locally(path, index)]
        attributes = one.attributes if isinstance(one, Node) else one
        room_bytes = await self._sparse_files.room_bytes(file, (directory.path, name), attributes, ours)
        room_bytes += file.overhead_bytes() if ours and file.object_id is None else 0
        is_open = isinstance(one, Node) and one.opens > 0
        is_small = size_bytes <= self._small_bytes and not is_open
        return Some(name, sum(map(file.chunk_size, ours)), room_bytes, is_small=is_small)

    def _walked(self, directory: Node, some: Sequence[Some]) -> None:
        self._small.add(directory, [one for one in some if one.bytes and one.is_small])
        self._large.add(directory, [one for one in some if one.bytes and not one.is_small])
