"""`hfs cache warm --dry-run`: what a warm would read and keep, whether that fits, and how long it would take.

Names are looked at as for a listing, so that the warm which follows finds them as it would have. The time is that which
as much has taken in the warms of this daemon so far.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import trio

from hfs.mountd.cache import Cache
from hfs.mountd.control.connection import Report
from hfs.mountd.control.pending_files import ProgressCounter
from hfs.mountd.control.warm import WarmRates
from hfs.mountd.control.warm_nodes import TOO_LARGE, Fitting
from hfs.mountd.core.attributes import Attributes, Version
from hfs.mountd.core.errors import HfsError, StagingError
from hfs.mountd.fetch import Owners, SparseFiles
from hfs.mountd.namespace import Namespace, Node
from hfs.mountd.wire.protocol import Result
from hfs.policies.cache.admission import blocks_bytes, object_overhead_bytes

_NAMES_AT_ONCE = 512


class _Lacks(NamedTuple):
    """What one file lacks on this node, or all together."""

    small_files: int = 0
    small_bytes: int = 0
    large_bytes: int = 0
    room_bytes: int = 0


_NOTHING = _Lacks()


@dataclasses.dataclass(eq=False)
class WarmEstimate:
    """Made for one command."""

    namespace: Namespace
    cache: Cache
    owners: Owners
    sparse_files: SparseFiles
    rates: WarmRates
    small_bytes: int
    """Of the largest small file."""
    report: Report
    _work: ProgressCounter = dataclasses.field(default_factory=ProgressCounter, init=False)
    _lacks = _NOTHING
    _here_bytes = 0
    _listing_s = 0.0
    _seen: set[Node] = dataclasses.field(default_factory=set, init=False)
    """Directories."""

    async def run(self, paths: Sequence[bytes]) -> Result:
        """What a warm of these paths would read and keep (`wire.protocol.Estimate`)."""
        await self.cache.ready.wait()
        fitting = Fitting(self.cache)
        for path in paths:
            try:
                await self._walk(await self.namespace.links.follow(path))
            except HfsError as error:
                self._work.fail(path, error)
        free_bytes = fitting.free_bytes(self._here_bytes)
        lacks = self._lacks
        fits = min(1.0, free_bytes / lacks.room_bytes) if lacks.room_bytes else 1.0
        seconds = self.rates.seconds(lacks.small_files, lacks.large_bytes)
        if seconds is not None:
            seconds = max(seconds, self._listing_s) * fits if lacks.room_bytes else 0.0
        detail = {
            "missing_bytes": lacks.small_bytes + lacks.large_bytes,
            "room_bytes": lacks.room_bytes,
            "free_bytes": free_bytes,
            "seconds": seconds,
        }
        return msgspec.structs.replace(self._work.result(), detail=detail)

    async def _walk(self, met: Node) -> None:
        node = await self.namespace.links.met(met)
        if node is None:
            return
        if node.version is not None:
            if node.parent is not None:
                await self._add(node.parent, node.name, node, node.version)
        elif node.children is not None and node not in self._seen:
            self._seen.add(node)
            began_s = trio.current_time()
            listing = await self.namespace.listings.whole(node)
            self._listing_s += trio.current_time() - began_s
            for start in range(0, len(listing), _NAMES_AT_ONCE):
                names = [listing[i] for i in range(start, min(start + _NAMES_AT_ONCE, len(listing)))]
                await self._walk_names(node, names)
                await self.report(self._work.progress())

    async def _walk_names(self, directory: Node, names: Sequence[bytes]) -> None:
        answers = await self.namespace.lookups.attributes(directory, names)
        source_id = self.namespace.slots.source_id
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
        if not self.cache.files.is_empty:
            await self.cache.files.load([version for _, _, version in files])
        for file in files:
            await self._add(directory, *file)
        for node in below:
            try:
                await self._walk(node)
            except HfsError as error:
                self._work.fail(node.path, error)

    async def _add(self, directory: Node, name: bytes, one: Node | Attributes, version: Version) -> None:
        found = await self._count(directory, name, one, version)
        self._lacks = _Lacks(*map(sum, zip(self._lacks, found, strict=True)))

    async def _count(self, directory: Node, name: bytes, one: Node | Attributes, version: Version) -> _Lacks:
        """What the file lacks."""
        size_bytes = version.size
        self._work.found(size_bytes)
        path = b"/".join(filter(None, (directory.path, name)))
        files = self.cache.files
        file = files.peek(version)
        if file is None and files.is_empty and size_bytes <= self.small_bytes:
            if not size_bytes:
                self._work.skip(0)
                return _NOTHING
            self._work.done(size_bytes)
            if not self.owners.caches_locally(path, 0):
                return _NOTHING
            return _Lacks(1, size_bytes, 0, blocks_bytes(size_bytes) + object_overhead_bytes(1))
        if file is None:
            file = files.get_nowait(version, path) or await files.get(version, path)
        if file.complete:
            self._work.skip(size_bytes)
            self._here_bytes += 0 if file.object_id in self.cache.pinned else file.room_bytes
            return _NOTHING
        if file.present.too_many:
            self._work.fail(path, StagingError(TOO_LARGE))
            return _NOTHING
        self._work.done(size_bytes)
        ours = [index for index in file.present.missing() if self.owners.caches_locally(path, index)]
        attributes = one.attributes if isinstance(one, Node) else one
        room_bytes = await self.sparse_files.room_bytes(file, (directory.path, name), attributes, ours)
        room_bytes += file.overhead_bytes() if ours and file.object_id is None else 0
        is_open = isinstance(one, Node) and one.opens > 0
        missing_bytes = sum(map(file.chunk_size, ours))
        if size_bytes <= self.small_bytes and not is_open:
            return _Lacks(bool(missing_bytes), missing_bytes, 0, room_bytes)
        return _Lacks(0, 0, missing_bytes, room_bytes)
