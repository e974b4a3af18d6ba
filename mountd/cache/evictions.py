"""Evictions by name: what people, the source's changes and plans say is to go, in contrast to what the policy chooses.

What is open stays, and what is not durable yet: only what the index has can be named. What is pinned goes only where
people name it, not by an age, nor for a plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import aclosing

import trio

from hfs.mountd.base.version import Version
from hfs.mountd.cache.committer import Committer
from hfs.mountd.cache.index import IndexFailed, StagedRow
from hfs.mountd.cache.leavers import Leaver
from hfs.mountd.cache.objects import CacheContext, StagedFile, recall
from hfs.mountd.cache.objects.reclaim_queue import ReclaimQueue
from hfs.mountd.cache.pins import Pins
from hfs.mountd.cache.reclaimer import Reclaimer
from hfs.mountd.cache.table.files import StagedFileTable
from hfs.mountd.cache.table.listing import pages_of
from hfs.mountd.cache.told_objects import SHOWN_S

_LOOK_S = 0.02


class EvictionsByName:
    """Each waits until the disk has given the room back. Event loop only."""

    def __init__(
        self,
        context: CacheContext,
        files: StagedFileTable,
        committer: Committer,
        reclaimer: Reclaimer,
        queue: ReclaimQueue,
        pins: Pins,
    ) -> None:
        self._context = context
        self._files = files
        self._committer = committer
        self._reclaimer = reclaimer
        self._queue = queue
        self._pins = pins

    async def evict(self, versions: Iterable[Version]) -> tuple[int, int]:
        """Evict these versions, except what is open. Returns (files, bytes of room given back)."""
        await self._committer.wait_committed()
        await self._files.load(versions := list(versions))
        targets = []
        for version in versions:
            file = await self._files.get(version)
            if file.object_id is not None:
                targets.append((file.object_id, version))
        return await self._reclaimer.evict(targets)

    async def evict_objects(self, numbers: Sequence[int]) -> dict[int, int]:
        """Evict these objects, except what is open, pinned or not durable. Returns the room of each that is gone; 0: it
        was leaving, and went since."""
        try:
            rows = await self._context.threads.ask_index(self._context.index.reader.rows, list(numbers))
        except IndexFailed as error:
            self._context.health.index_failed(error, "looking up what to evict")
            return {}
        room = {row.object_id: row.room_bytes for row in rows}
        gone = await self._reclaimer.evict_objects([(row.object_id, row.version) for row in rows])
        left = [number for number in room if number in self._reclaimer.telling.leavers]
        if left:
            gone += await self._wait_gone(left, 2 * SHOWN_S)  # the number is not moved at once for it
        gone += self._reclaimer.telling.leavers.take_departed(numbers)
        return {number: room.get(number, 0) for number in gone}

    async def evict_chunk(self, file: StagedFile, index: int) -> int:
        """Give one chunk of a file back to the disk. Returns its room; 0: it is not there, the kernel reads the file by
        itself (so it may do, in a moment, where overlays have it), or it is pinned."""
        number, telling = file.object_id, self._reclaimer.telling
        if number is None or not self._may_give_up(file, index):
            return 0
        async with self._reclaimer.lock:
            if telling.on and not await telling.leave([Leaver(number, file.version, 0, is_to_go=False)]):
                return 0
            may = file.object_id == number and self._may_give_up(file, index)
            room_bytes = file.chunk_room_bytes(index) if may else 0
            if may:
                self._queue.give_up(file, [index])
            telling.end([number])
        await self._reclaimer.wait_idle()
        return room_bytes

    def _may_give_up(self, file: StagedFile, index: int) -> bool:
        recall(file)
        return not (
            file.object_id in self._pins or index not in file.present or index not in file.committed or file.passed
        )

    async def evict_paths(
        self,
        prefixes: Collection[bytes] = (b"",),
        source_ids: Collection[str] | None = None,
        before_s: float | None = None,
        held: dict[int, int] | None = None,
    ) -> tuple[int, int]:
        """Evict the files at or below these paths, except what is open; see `StagedListing.rows` for both arguments.
        `before_s`: of these what was used last before that time, in seconds since the epoch, and is not pinned. Returns
        (files, bytes of room given back): those that overlays let go of at once are among them; `held` is given the
        others, which go later, and their room by their number."""
        await self._committer.wait_committed()
        files = freed_bytes = 0
        left: dict[int, int] = {}
        async with aclosing(pages_of(self._context, prefixes, source_ids)) as pages:
            async for rows in pages:
                chosen = [row for row in rows if before_s is None or self._used_s(row) < before_s]
                targets = [(row.object_id, row.version) for row in chosen]
                batch_files, batch_bytes = await self._reclaimer.evict(targets, by_name=before_s is None)
                files += batch_files
                freed_bytes += batch_bytes
                leavers = self._reclaimer.telling.leavers
                left |= {row.object_id: row.room_bytes for row in chosen if row.object_id in leavers}
        gone: list[int] = []
        if left:
            await self._reclaimer.telling.move(is_needed=False)
            gone = await self._wait_gone(left, SHOWN_S)
        if held is not None:
            held.update((number, left[number]) for number in left if number in self._reclaimer.telling.leavers)
        return files + len(gone), freed_bytes + sum(left[number] for number in gone)

    async def _wait_gone(self, numbers: Collection[int], at_most_s: float) -> list[int]:
        """Those of the objects, which are leaving, that go in this time."""
        telling = self._reclaimer.telling
        with trio.move_on_after(at_most_s):
            while any(number in telling.leavers for number in numbers):  # noqa: ASYNC110 - an event for each would serve only this
                await trio.sleep(_LOOK_S)
        ended = [number for number in numbers if number not in telling.leavers]
        try:  # some stay, since they were opened meanwhile
            stay = await self._context.threads.ask_index(self._context.index.reader.entered, ended)
        except IndexFailed as error:
            self._context.health.index_failed(error, "looking up what was evicted")
            return []
        return [number for number in ended if number not in stay]

    def _used_s(self, row: StagedRow) -> float:
        """The index is a minute or an hour behind what memory knows."""
        file = self._files.peek(row.version)
        return row.last_use_s if file is None else max(row.last_use_s, file.last_use_ns / 1e9)
