"""One `hfs cache warm`: stages files and trees, and counts as done what would survive a crash, nothing else.

Files are fetched many at a time and written behind, so one that was fetched is done only once all its chunks are in the
index: until then it is pending (`pending_files`). A file of which all would not fit is not begun, or the last ones
would all be there in part; unless it is larger than the cache, which then takes what it can.

Names of a directory that may be lent go to the data plane, which knows what they are no sooner than it has fetched them
(`pending_leaves`). What it leaves to us, subdirectories too, is the next round's.

Where files were evicted meanwhile (`lru`, others that fill the disk), what was counted is looked up in the index at the
end. Over the parts that serve readers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

import trio

from mountd.base.errors import HfsError, StagingError, VersionChanged
from mountd.cache import Cache, StagedFile
from mountd.control.connection import Report
from mountd.control.pending_files import PendingFile, PendingFiles
from mountd.control.pending_leaves import PendingLeaves
from mountd.control.progress import ProgressCounter
from mountd.core.metrics import Metrics
from mountd.fetch import BATCH_FILES, Become, Fetcher, Goal, Owners, Place, Resolver, SmallFiles, SmallPipeline
from mountd.namespace import Namespace, Node
from mountd.wire.protocol import Result
from policies.cache.admission import blocks_bytes, object_overhead_bytes

_DEFAULT_JOBS = 16
"""Files at a time: as many as there are prefetch threads."""

_NAMES_AT_ONCE = 512
_LEAVES_AT_ONCE = 64
"""Names of a directory that the data plane is asked for in one call, which takes so many."""

_LOOKS = 64
"""Pending files looked at beside each batch, of which at most sixteen are new."""
_WATCH_EVERY_S = 1.0
"""Groups of chunks become durable every two seconds."""


_Names = tuple[Node, list[bytes]]
"""A directory, and names in it."""

_Send = trio.MemorySendChannel[Node | _Names]


@dataclass(frozen=True, slots=True)
class WarmFetches:
    """By whom files are fetched, each kind by another."""

    resolver: Resolver
    owners: Owners
    fetcher: Fetcher
    small_files: SmallFiles
    pipeline: SmallPipeline


class Warming:
    """Made for one command."""

    def __init__(
        self,
        namespace: Namespace,
        cache: Cache,
        fetches: WarmFetches,
        metrics: Metrics,
        report: Report,
    ) -> None:
        self._namespace = namespace
        self._cache = cache
        self._resolver = fetches.resolver
        self._owners = fetches.owners
        self._small_files = fetches.small_files
        self._pipeline = fetches.pipeline
        self._metrics = metrics
        self._report = report
        self._work = ProgressCounter()
        self._pending = PendingFiles(cache, fetches.fetcher, fetches.owners, metrics, self._work)
        self._leaves = PendingLeaves(cache, self._work, self._pending)
        self._left: list[_Names] = []
        """What the data plane has left to us."""
        self._begun: set[PendingFile] = set()
        """Large files that are being fetched."""

    async def run(self, paths: Sequence[bytes], jobs: int) -> Result:
        """Stage files and trees. Returns when all is durable or has failed."""
        await self._cache.ready.wait()  # after a crash nothing is staged until what it left is cleaned up
        evicted = self._metrics["evicted_files"]
        workers = jobs or _DEFAULT_JOBS
        async with trio.open_nursery() as watching:
            watching.start_soon(self._watch)
            await self._round(partial(self._walk_all, paths), workers)
            while self._left:
                left, self._left = self._left, []
                await self._round(partial(self._walk_left, left), workers)
            lost = [(directory, [name]) for directory, name in await self._leaves.settle_all()]
            await self._round(partial(self._walk_left, lost), workers)
            watching.cancel_scope.cancel()
        await self._settle_all()
        await self._cache.evictor.wait_ahead()
        if self._metrics["evicted_files"] != evicted:
            await self._pending.count_again()
        return self._work.result()

    async def _round(self, walk: Callable[[_Send], Awaitable[None]], workers: int) -> None:
        """Stage what `walk` sends, but for what is left."""
        send, receive = trio.open_memory_channel[Node | _Names](1024)

        async def walk_all() -> None:
            self._work.walking = True
            async with send:
                await walk(send)
            self._work.walking = False

        async with trio.open_nursery() as nursery:
            nursery.start_soon(walk_all)
            for _ in range(workers):
                nursery.start_soon(self._stage_all, receive, workers)

    # -- what there is to stage ---------------------------------------------------------------------------------------

    async def _walk_all(self, paths: Sequence[bytes], send: _Send) -> None:
        for path in paths:
            try:
                await self._walk(await self._namespace.lookups.resolve(path), send)
            except HfsError as error:
                self._work.fail(path, error)

    async def _walk_left(self, left: Sequence[_Names], send: _Send) -> None:
        for directory, names in left:
            try:
                await self._walk_names(directory, names, send)
            except HfsError as error:
                self._work.fail(directory.path, error)

    async def _walk(self, node: Node, send: _Send) -> None:
        if node.version is not None:
            self._work.found(node.attributes.size)
            await send.send(node)
            return
        if node.children is None:
            return  # symlinks and special files have nothing to stage
        listing = await self._namespace.listings.whole(node)
        for start in range(0, len(listing), _NAMES_AT_ONCE):
            names = [listing[i] for i in range(start, min(start + _NAMES_AT_ONCE, len(listing)))]
            if await self._pipeline.lend(node):
                self._work.unseen += len(names)
                for first in range(0, len(names), _LEAVES_AT_ONCE):
                    await send.send((node, names[first : first + _LEAVES_AT_ONCE]))
            else:
                await self._walk_names(node, names, send)

    async def _walk_names(self, directory: Node, names: Sequence[bytes], send: _Send) -> None:
        dentries = await self._namespace.lookups.children(directory, names)
        versions = [d.node.version for d in dentries if d.node is not None and d.node.version is not None]
        await self._cache.files.load(versions)
        for dentry in dentries:
            if dentry.node is None:
                continue
            try:
                await self._walk(dentry.node, send)
            except HfsError as error:
                self._work.fail(dentry.node.path, error)

    # -- staging it ---------------------------------------------------------------------------------------------------

    async def _stage_all(self, receive: trio.MemoryReceiveChannel[Node | _Names], workers: int) -> None:
        async for one in receive:
            small: list[Node] = []
            large: list[Node] = []
            await self._sort(one, small, large)
            # Each of those who work here has its part, also of a few files.
            part = min(BATCH_FILES, 1 + receive.statistics().current_buffer_used // workers)
            while small and len(small) < part:
                try:
                    more = receive.receive_nowait()
                except (trio.WouldBlock, trio.EndOfChannel):
                    break
                await self._sort(more, small, large)
            await self._stage_small(small)
            for one in large:
                await self._stage_large(one)
            self._pending.settle_some(_LOOKS)
            await self._report(self._work.progress())

    async def _sort(self, one: Node | _Names, small: list[Node], large: list[Node]) -> None:
        """Names are staged at once."""
        if isinstance(one, tuple):
            await self._stage_leaves(*one)
        else:
            (small if self._is_small(one) else large).append(one)

    async def _stage_leaves(self, directory: Node, names: list[bytes]) -> None:
        # What might not fit is known by its size first.
        if (
            self._is_too_much(len(names) * self._small_files.limit_bytes)
            or not await self._cache.arrivals.wait_granted()
        ):
            self._leave((directory, names), len(names))
            return
        places: list[Place] = [(directory, name) for name in names]
        found = zip(places, await self._pipeline.stage(places), strict=True)
        left = [place[1] for place, one in found if one is None or not self._leaves.add(place, one)]
        self._leave((directory, left), len(names))

    def _leave(self, left: _Names, seen: int) -> None:
        """Of so many names it is known what they are, or will be in the next round."""
        self._work.unseen -= seen
        if left[1]:
            self._left.append(left)

    def _is_small(self, node: Node) -> bool:
        # One that is open is read through the page cache, and soon.
        return node.attributes.size <= self._small_files.limit_bytes and not node.opens

    async def _stage_small(self, nodes: Sequence[Node]) -> None:
        lacks = [await self._lacks_bytes(node) for node in nodes]
        if any(lacks):
            if self._is_too_much(sum(lacks)):
                for node, size_bytes in zip(nodes, lacks, strict=True):
                    if size_bytes:
                        self._work.fail(node.path, StagingError(self._cache.room.what_limits()))
                nodes = [node for node, size_bytes in zip(nodes, lacks, strict=True) if not size_bytes]
            else:
                await self._cache.evictor.wait_room(sum(lacks))
        places = [(node.parent, node.name) for node in nodes if node.parent is not None]
        for node, outcome in zip(nodes, await self._small_files.stage(places, Goal.STAGED, push=False), strict=True):
            if isinstance(outcome, HfsError):
                self._pending.failed(PendingFile(node, await self._file(node), was_here=False), outcome)
            elif outcome is None:
                self._pending.add(PendingFile(node, await self._file(node), was_here=True))
            elif outcome.node.version is None:
                self._work.fail(node.path, VersionChanged("it is no file any more"))
            elif outcome.become is Become.LARGE:  # it has grown, or an earlier run has staged it in smaller chunks
                await self._stage_large(outcome.node)
            else:
                here = outcome.become is Become.HERE
                self._pending.add(PendingFile(outcome.node, await self._file(outcome.node), was_here=here))

    async def _lacks_bytes(self, node: Node) -> int:
        file = await self._file(node)
        if file.complete or not self._owners.caches_locally(node.path, 0):
            return 0
        return blocks_bytes(file.size) + object_overhead_bytes(1)

    def _is_too_much(self, more_bytes: int) -> bool:
        """Whether with so much more the cache would be too small for what this command alone has staged."""
        begun_bytes = sum(entry.lacks_bytes for entry in self._begun)
        return self._pending.held_bytes + begun_bytes + more_bytes > self._cache.room.limit_bytes()

    async def _stage_large(self, node: Node) -> None:
        entry = PendingFile(node, await self._file(node), was_here=True)
        try:
            if not entry.file.complete:
                entry.was_here = False
                await self._fetch(entry)
            self._pending.add(entry)
        except HfsError as error:
            self._pending.failed(entry, error)

    async def _file(self, node: Node) -> StagedFile:
        assert node.version is not None
        path = node.path
        file = self._cache.files.get_nowait(node.version, path) or await self._cache.files.get(node.version, path)
        if node.parent is not None and not node.parent.changes:
            self._cache.attributes.note(file, node.parent.attributes, node.name, node.attributes)
        return file

    async def _fetch(self, entry: PendingFile) -> None:
        """What the file lacks. Raises HfsError."""
        file, path = entry.file, entry.node.path
        ours = (i for i in file.present.missing() if self._owners.caches_locally(path, i))
        lacks_bytes = sum(file.raw_room_bytes(i) for i in ours)
        lacks_bytes += file.overhead_bytes() if file.object_id is None else 0
        is_part = lacks_bytes > self._cache.room.limit_bytes()
        if not is_part and self._is_too_much(lacks_bytes):
            raise StagingError(self._cache.room.what_limits())
        entry.lacks_bytes, entry.room_bytes = lacks_bytes, file.room_bytes
        self._begun.add(entry)
        self._cache.files.pin(file)
        try:
            wanted_bytes = sum(begun.wanted_bytes for begun in self._begun)
            if not is_part and not await self._cache.evictor.wait_room(wanted_bytes):
                raise StagingError(self._cache.admission.why_not(wanted_bytes) or self._cache.room.what_limits())
            await self._resolver.ensure_file(entry.node, file)
        finally:
            self._cache.files.unpin(file)
            self._begun.remove(entry)

    # -- how far it is ------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Look and tell how far it is, also while all wait for the source. Never returns."""
        while True:
            await trio.sleep(_WATCH_EVERY_S)
            done = self._work.files
            self._pending.settle_some()
            await self._leaves.settle()
            if self._work.files != done:
                await self._report(self._work.progress())

    async def _settle_all(self) -> None:
        while late := await self._pending.settle_all():
            for entry in late:
                try:
                    await self._fetch(entry)
                    self._pending.add(entry)
                except HfsError as error:
                    self._pending.failed(entry, error)
                await self._cache.committer.wait_committed()
                await self._report(self._work.progress())
