"""Making ready: what is staged and read next is brought into memory a moment before its use.

Names are asked for again where their time is over, so that a look-up is answered at once. Bytes go where their reader
takes them from: into the page cache of the mount, or into that of the staged files if the kernel reads these by itself,
passed through or by an overlay: what is pushed into the mount then would lie in memory twice. Bounded by units and
bytes; what is not ready in time its reader fetches, as always. Event loop only; opens no path.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.core.errors import HfsError
from hfs.mountd.core.limits import Memory
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.fetch import Goal, Owners, PagePusher, Resolver
from hfs.mountd.hints.epoch_plan import EpochPlan
from hfs.mountd.namespace import Namespace, Node
from hfs.policies.geometry import Extent
from hfs.policies.iomode import SMALL_BYTES

_READY_BYTES = 64 << 20
"""What is made ready at a time: six hundred images, a second of a fast reader."""

_LOOKUPS_AT_ONCE = 16
"""Names asked for at a time: what a shared file system answers in a few milliseconds."""


_HELD_AT_ONCE = 8
"""Files that other nodes are asked for at a time: a millisecond each."""

_HOLD_S = 1.0
"""A node that hangs must not hold up the rest."""

_AGAIN_S = 60.0
"""A chunk holds hundreds of samples; while they are read it stays in memory by itself."""


@dataclass(frozen=True, slots=True)
class ReadWays:
    """How files are read, which may change."""

    through_pages: Callable[[], bool]
    """Small files through the page cache of the mount."""
    by_overlays: Callable[[], bool]
    """What is staged by the kernel, which opens the objects and says nothing of it (mountd/files/overlays.py)."""


@dataclasses.dataclass(eq=False)
class PageCacheWarmer:
    """Event loop only."""

    namespace: Namespace
    cache: Cache
    resolver: Resolver
    owners: Owners
    pusher: PagePusher
    memory: Memory
    metrics: Metrics
    ways: ReadWays

    def wants_pushed(self, node: Node, file: StagedFile) -> bool:
        """Whether a chunk that comes now is to go into the page cache: its file is read through that."""
        return node.opens > node.passed and self.memory.has_room(file.size)

    # -- chunks of large files ----------------------------------------------------------------------------------------

    async def chunks(self, plan: EpochPlan, units: Sequence[int]) -> None:
        """Make these chunks ready, the first ones first. Raises HfsError."""
        budget_bytes, by_overlays = _READY_BYTES, self.ways.by_overlays()
        ahead: list[tuple[StagedFile, Extent]] = []
        for unit in units:
            number, index = plan.layout.place(unit)
            file = plan.staged.get(number)
            if file is None or index is None or index not in file.present or (file.version, index) in plan.pushed:
                continue
            node = await self._node(plan, number)
            extent = file.chunk(index)
            budget_bytes -= extent.size
            if node.version != file.version or budget_bytes < 0 or not self.memory.has_room(_READY_BYTES):
                continue
            if node.passed or (by_overlays and not node.opens and file.durable):
                ahead += _unless_read_ahead(plan, file, index)
            elif node.opens and self.pusher.on:
                found = await self.resolver.get_here(file, extent)
                if found is not None:
                    plan.pushed.add((file.version, index))
                    await self.pusher.push(node, extent.start, memoryview(found.data))
                    self.metrics.add("hinted_pushes")
        await self._read_ahead(ahead)

    # -- small files --------------------------------------------------------------------------------------------------

    async def files(self, plan: EpochPlan, units: Sequence[int]) -> None:
        """Make these files ready, the first ones first."""
        by_overlays = self.ways.by_overlays()
        plan.schedule.uses_are_seen = not by_overlays
        if by_overlays:
            units = await self._objects(plan, units)
        nodes = await self._nodes(plan, [unit for unit in units if unit not in plan.ready])
        budget_bytes = _READY_BYTES
        ahead: list[tuple[StagedFile, Extent]] = []
        elsewhere: list[tuple[Node, StagedFile]] = []
        for unit in units:
            node = nodes.get(unit)
            if node is None or node.version is None:
                continue  # its reader meets it
            plan.units_of[node] = unit
            budget_bytes -= node.version.size
            file = self.cache.files.get_nowait(node.version)
            is_read_there = not by_overlays and (node.pushed or node.opens)
            if budget_bytes < 0 or file is None or not file.size or is_read_there:
                continue
            if not file.complete:
                if file.present.count == 1 and not self.owners.caches_locally(node.path, 0):
                    elsewhere.append((node, file))
                continue
            if not self.memory.has_room(_READY_BYTES):
                continue
            if node.lookups and self.pusher.on and self._pushes_small() and file.size <= SMALL_BYTES:
                await self._push_small(node, file)
            elif not file.plain or not self.cache.reader.is_in_memory_nowait(file, file.size - 1):
                ahead.append((file, Extent(0, file.size)))
        await self._read_ahead(ahead)
        await self._hold(elsewhere)

    def _pushes_small(self) -> bool:
        return self.ways.through_pages() and not self.ways.by_overlays()

    async def _objects(self, plan: EpochPlan, units: Sequence[int]) -> list[int]:
        """Have files in memory whose objects are known, whether they are nodes or not. The others."""
        assert plan.objects is not None
        numbers = dict(zip(units, plan.objects[list(units)].tolist(), strict=True))
        wanted = [number for number in numbers.values() if number]
        if wanted and self.memory.has_room(_READY_BYTES):
            ahead_bytes = await self.cache.reader.objects_will_need(wanted, _READY_BYTES)
            self.metrics.add("hinted_readahead_bytes", ahead_bytes)
        return [unit for unit in units if not numbers[unit]]

    async def _hold(self, files: Sequence[tuple[Node, StagedFile]]) -> None:
        """Have small files that other nodes stage in memory, for their readers a moment later."""
        left = list(reversed(files))

        async def fetch() -> None:
            while left:
                node, file = left.pop()
                with contextlib.suppress(HfsError):  # its reader meets it
                    await self.resolver.ensure(node, file, 0, Goal.IN_MEMORY)

        with trio.move_on_after(_HOLD_S):
            async with trio.open_nursery() as nursery:
                for _ in range(min(_HELD_AT_ONCE, len(left))):
                    nursery.start_soon(fetch)

    async def _nodes(self, plan: EpochPlan, units: Sequence[int]) -> dict[int, Node]:
        """The nodes of these files, as far as they are there, within the time-to-live."""
        nodes: dict[int, Node] = {}
        left = list(reversed(units))

        async def look_up() -> None:
            while left:
                unit = left.pop()
                try:
                    nodes[unit] = await self._node(plan, unit)
                except HfsError:
                    pass  # its reader meets it

        async with trio.open_nursery() as nursery:
            for _ in range(min(_LOOKUPS_AT_ONCE, len(left))):
                nursery.start_soon(look_up)
        return nodes

    async def _node(self, plan: EpochPlan, number: int) -> Node:
        return await self.namespace.links.find(plan.layout.path(number), through_links=plan.follows_links)

    async def _push_small(self, node: Node, file: StagedFile) -> None:
        await trio.lowlevel.checkpoint()
        found = await self.resolver.get_here(file, Extent(0, file.size))
        if (
            found is None
            or node.opens
            or node.pushed
            or not node.lookups
            or not self.namespace.freshness.is_fresh_nowait(node)
        ):
            return  # the source has another version
        if not self._pushes_small():
            return  # the kernel opens without asking now, so nobody knows who reads it
        await self.pusher.push(node, 0, memoryview(found.data))
        self.metrics.add("hinted_pushes")

    async def _read_ahead(self, extents: Sequence[tuple[StagedFile, Extent]]) -> None:
        if extents:
            await self.cache.reader.will_need(extents)
            self.metrics.add("hinted_readahead_bytes", sum(extent.size for _, extent in extents))


def _unless_read_ahead(plan: EpochPlan, file: StagedFile, index: int) -> list[tuple[StagedFile, Extent]]:
    """The chunk, unless it was read ahead a moment ago; the kernel does not tell us when it lets it go."""
    now_s = trio.current_time()
    key = file.version, index
    if plan.read_ahead_s.get(key, -math.inf) + _AGAIN_S > now_s:
        return []
    plan.read_ahead_s[key] = now_s
    return [(file, file.chunk(index))]
