"""One `hfs cache warm`: stages files and trees, and counts as done what would survive a crash, nothing else.

Files are fetched many at a time and written behind, so one that was fetched is done only once all its chunks are in the
index: until then it is pending (`pending_files`).

Names of a directory that may be delegated go to the data plane, which knows what they are no sooner than it has fetched
them. What it leaves to us, subdirectories too, is the next round's.

Where files were evicted meanwhile (`lru`, others that fill the disk), what was counted is looked up in the index at the
end. Over the parts that serve readers.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec
import trio

from hfs.mountd.cache import Cache
from hfs.mountd.control.connection import Report
from hfs.mountd.control.pending_files import PendingFiles, ProgressCounter
from hfs.mountd.control.warm_nodes import Fitting, NodeStaging, RoomWanted, WarmFetches
from hfs.mountd.core.errors import HfsError, SourceError
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.fetch import Place
from hfs.mountd.kernel import let_go_of_staged_bytes
from hfs.mountd.namespace import Namespace, Node
from hfs.mountd.wire.protocol import Result

_DEFAULT_JOBS = 16
"""Files at a time: as many as there are prefetch threads."""

_SMALL_AT_ONCE = 16
"""Small files that are looked up and fetched together."""

_NAMES_AT_ONCE = 512
_SLOTS_AT_ONCE = 64
"""Names of a directory that the data plane is asked for in one call, which takes so many."""

_LOOKS = 64
"""Pending files looked at beside each batch, of which at most sixteen are new."""
_WATCH_EVERY_S = 1.0
"""Groups of chunks become durable every two seconds."""


_Names = tuple[Node, list[bytes]]
"""A directory, and names in it."""

_Send = trio.MemorySendChannel[Node | _Names]


class WarmRates:
    """How fast the warms of this daemon have fetched so far: small files by their number, large ones by their bytes."""

    def __init__(self) -> None:
        self._small = self._large = 0
        self._small_s = self._large_s = 0.0

    def saw(self, small_files: int, large_bytes: int, seconds: float) -> None:
        """So much was fetched in this time."""
        if small_files:
            self._small, self._small_s = self._small + small_files, self._small_s + seconds
        if large_bytes:
            self._large, self._large_s = self._large + large_bytes, self._large_s + seconds

    def seconds(self, small_files: int, large_bytes: int) -> float | None:
        """That so much would take. None: nothing of a kind was fetched yet."""
        if (small_files and not self._small) or (large_bytes and not self._large):
            return None
        small_s = small_files * self._small_s / max(1, self._small)
        return small_s + large_bytes * self._large_s / max(1, self._large)


class Warming:
    """Made for one command."""

    def __init__(
        self,
        namespace: Namespace,
        cache: Cache,
        fetches: WarmFetches,
        metrics: Metrics,
        rates: WarmRates,
        report: Report,
        pin: bool = False,
    ) -> None:
        """`pin`: what is staged in the end, or was, is pinned."""
        self._namespace = namespace
        self._cache = cache
        self._small_files = fetches.small_files
        self._pipeline = fetches.pipeline
        self._metrics = metrics
        self._rates = rates
        self._report = report
        self._work = ProgressCounter()
        self._pending = PendingFiles(cache, fetches.fetcher, fetches.owners, metrics, self._work)
        self._left: list[_Names] = []
        """What the data plane has left to us."""
        self._pin = pin
        self._walked: set[Node] = set()
        """Directories."""
        fitting = Fitting(cache)
        self._nodes = NodeStaging(cache, fetches, fitting, self._pending, self._work)
        self._room = RoomWanted(fitting, self._pending, self._work)

    async def run(self, paths: Sequence[bytes], jobs: int) -> Result:
        """Stage files and trees. Returns when all is durable or has failed."""
        await self._cache.ready.wait()  # after a crash nothing is staged until what it left is cleaned up
        evicted = self._metrics["evicted_files"]
        workers = jobs or _DEFAULT_JOBS
        async with trio.open_nursery() as watching:
            watching.start_soon(self._watch)
            await self._round(partial(self._walk_all, paths), workers)
            await self._work_off(workers)
            lost = [(directory, [name]) for directory, name in await self._pending.settle_all_objects()]
            await self._round(partial(self._walk_left, lost), workers)
            watching.cancel_scope.cancel()
        await self._settle_all()
        await self._pin_done()
        await self._cache.evictor.wait_ahead()
        let_go_of_staged_bytes()
        if self._metrics["evicted_files"] != evicted:
            await self._pending.count_again()
        detail = {"pinned_files": self._pending.pinned_files} if self._pin else {}
        return msgspec.structs.replace(self._work.result(), detail=detail)

    async def _work_off(self, workers: int) -> None:
        """What the data plane has left to us."""
        while self._left:
            left, self._left = self._left, []
            await self._round(partial(self._walk_left, left), workers)

    async def _round(self, walk: Callable[[_Send], Awaitable[None]], workers: int) -> None:
        """Stage what `walk` sends, but for what is left."""
        send, receive = trio.open_memory_channel[Node | _Names](1024)
        self._work.walking, self._work.left = True, 0

        async def walk_all() -> None:
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
                node = await self._namespace.links.follow(path)
                if node.version is None and node.children is None:
                    raise SourceError(errno.EINVAL, f"{path.decode('utf-8', 'backslashreplace')} is no regular file")
                await self._walk(node, send)
            except HfsError as error:
                self._work.fail(path, error)

    async def _walk_left(self, left: Sequence[_Names], send: _Send) -> None:
        for directory, names in left:
            try:
                await self._walk_names(directory, names, send)
            except HfsError as error:
                self._work.fail(directory.path, error)

    async def _walk(self, met: Node, send: _Send) -> None:
        node = await self._namespace.links.met(met)
        if node is None:
            return
        if node.version is not None:
            if await self._nodes.gives_bytes(node):
                raise SourceError(errno.EIO, "it gives more bytes than it says: it is read as it is, and not cached")
            self._work.found(node.attributes.size)
            self._room.walked(*await self._nodes.lacks_bytes(node))
            await send.send(node)
            return
        if node.children is None or node in self._walked:
            return  # a special file; or a directory that several links name, or one within
        self._walked.add(node)
        listing = await self._namespace.listings.whole(node)
        for start in range(0, len(listing), _NAMES_AT_ONCE):
            names = [listing[i] for i in range(start, min(start + _NAMES_AT_ONCE, len(listing)))]
            await self._walk_some(node, names, send)

    async def _walk_some(self, directory: Node, names: list[bytes], send: _Send) -> None:
        await self._namespace.lookups.wait_kept(directory)  # before that it is not delegated
        if await self._pipeline.delegate(directory):
            self._work.unseen += len(names)
            for first in range(0, len(names), _SLOTS_AT_ONCE):
                await send.send((directory, names[first : first + _SLOTS_AT_ONCE]))
        else:
            await self._walk_names(directory, names, send)

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
            part = min(_SMALL_AT_ONCE, 1 + receive.statistics().current_buffer_used // workers)
            while small and len(small) < part:
                try:
                    more = receive.receive_nowait()
                except (trio.WouldBlock, trio.EndOfChannel):
                    break
                await self._sort(more, small, large)
            await self._nodes.stage_small(small)
            for one in large:
                await self._nodes.stage_large(one)
            self._pending.settle_some(_LOOKS)
            self._room.look()
            await self._report(self._work.progress())

    async def _sort(self, one: Node | _Names, small: list[Node], large: list[Node]) -> None:
        """Names are staged at once."""
        if isinstance(one, tuple):
            await self._stage_slots(*one)
        else:
            (small if self._nodes.is_small(one) else large).append(one)

    async def _stage_slots(self, directory: Node, names: list[bytes]) -> None:
        # What might not fit is known by its size first.
        if (
            self._nodes.is_too_much(len(names) * self._small_files.limit_bytes)
            or not await self._cache.completions.wait_granted()
        ):
            self._leave((directory, names), len(names))
            return
        places: list[Place] = [(directory, name) for name in names]
        found = zip(places, await self._pipeline.stage(places), strict=True)
        left = [place[1] for place, one in found if one is None or not self._pending.add_object(place, one)]
        self._leave((directory, left), len(names))

    def _leave(self, left: _Names, seen: int) -> None:
        """Of so many names it is known what they are, or will be in the next round."""
        self._work.unseen -= seen
        if left[1]:
            self._left.append(left)
            self._work.left += len(left[1])

    # -- how far it is ------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Look and tell how far it is, also while all wait for the source. Never returns."""
        looked_s, small_files, large_bytes = trio.current_time(), 0, 0
        while True:
            try:
                await trio.sleep(_WATCH_EVERY_S)
            finally:
                before = looked_s, small_files, large_bytes
                looked_s, small_files = trio.current_time(), self._pending.fetched_files + self._nodes.small_files
                large_bytes = self._nodes.large_bytes
                self._rates.saw(small_files - before[1], large_bytes - before[2], looked_s - before[0])
            done = self._work.files
            self._pending.settle_some()
            await self._pending.settle_objects()
            await self._pin_done()
            self._room.look()
            if self._work.files != done:
                await self._report(self._work.progress())

    async def _pin_done(self) -> None:
        """Soon: until then others may take its room."""
        if self._pin:
            await self._pending.pin_done()

    async def _settle_all(self) -> None:
        while late := await self._pending.settle_all():
            for entry in late:
                try:
                    await self._nodes.fetch(entry)
                    self._pending.add(entry)
                except HfsError as error:
                    self._pending.failed(entry, error)
                await self._cache.committer.wait_committed()
                await self._report(self._work.progress())
