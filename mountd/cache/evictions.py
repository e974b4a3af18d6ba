"""Evictions by name: what people, the source's changes, plans and an age say is to go; and what an earlier run left.

What is open stays, and what is not durable yet: only what the index has can be named. What is pinned goes only where
people name it, not by an age, nor for a plan.

After a run that did not end well it is cleaned up in the background, while reads are already served. What may lie
about: objects that were evicted but not yet removed, objects whose number was leased but that never got a row, written
but uncommitted ranges of incomplete files, and whole directories of an index that was set aside. None of it is
accounted (except the evicted), so nothing new is staged until it is gone: the disk never holds more than the account.
No scan: the first two are found by number, the third by an index of incomplete files.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Sequence
from contextlib import aclosing

import trio

from hfs.mountd.cache.committer import Committer
from hfs.mountd.cache.files import StagedFileTable
from hfs.mountd.cache.index import Index, IndexFailed, StagedRow
from hfs.mountd.cache.objects.changes import ReclaimQueue, stamp_of
from hfs.mountd.cache.objects.context import CacheContext
from hfs.mountd.cache.objects.disk import Disk
from hfs.mountd.cache.objects.file import StagedFile, recall
from hfs.mountd.cache.objects.numbers import ObjectIdAllocator
from hfs.mountd.cache.reclaimer import Reclaimer, remove_objects, sync_names
from hfs.mountd.cache.rows import Pins, pages_of
from hfs.mountd.cache.told_objects import SHOWN_S, Leaver
from hfs.policies.cache.admission import blocks_bytes
from hfs.policies.geometry import chunk_count, chunk_extent

log = logging.getLogger(__name__)

_LOOK_S = 0.02
_LOOK_EVERY_S = 3600.0
"""Ages are days; a look reads the rows of the index once."""


@dataclasses.dataclass(eq=False)
class EvictionsByName:
    """Each waits until the disk has given the room back. Event loop only."""

    context: CacheContext
    object_ids: ObjectIdAllocator
    files: StagedFileTable
    committer: Committer
    reclaimer: Reclaimer
    queue: ReclaimQueue
    pins: Pins

    async def evict_objects(self, numbers: Sequence[int]) -> dict[int, int]:
        """Evict these objects, except what is open, pinned or not durable. Returns the room of each that is gone; 0: it
        went before."""
        durable = [number for number in numbers if number not in self.object_ids]
        rows: Sequence[StagedRow] = ()
        with self.context.health.index_faults("looking up what to evict"):
            rows = await self.context.threads.ask_index(self.context.index.reader.rows, durable)
        room = {row.object_id: row.room_bytes for row in rows}
        gone, _ = await self.reclaimer.evict([(row.object_id, row.version) for row in rows], by_name=False)
        left = [number for number in room if number in self.reclaimer.telling.leavers]
        if left:
            gone += await self._wait_gone(left, 2 * SHOWN_S)  # the number is not moved at once for it
        return {number: 0 for number in durable if number not in room} | {number: room[number] for number in gone}

    async def evict_chunk(self, file: StagedFile, index: int) -> int:
        """Give one chunk of a file back to the disk. Returns its room; 0: it is not there, the kernel reads the file by
        itself (so it may do, in a moment, where overlays have it), or it is pinned."""
        number, telling = file.object_id, self.reclaimer.telling
        if number is None or not self._may_give_up(file, index):
            return 0
        async with self.reclaimer.lock:
            if telling.on and not await telling.leave([Leaver(number, file.version, 0, is_to_go=False)]):
                return 0
            may = file.object_id == number and self._may_give_up(file, index)
            room_bytes = file.chunk_room_bytes(index) if may else 0
            if may:
                self.queue.give_up(file, [index])
            telling.end([number])
        await self.reclaimer.wait_idle()
        return room_bytes

    def _may_give_up(self, file: StagedFile, index: int) -> bool:
        recall(file)
        return not (
            file.object_id in self.pins or index not in file.present or index not in file.committed or file.passed
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
        await self.committer.wait_committed()
        files = freed_bytes = 0
        left: dict[int, int] = {}
        async with aclosing(pages_of(self.context, prefixes, source_ids)) as pages:
            async for rows in pages:
                chosen = [row for row in rows if before_s is None or self._used_s(row) < before_s]
                targets = [(row.object_id, row.version) for row in chosen]
                batch, batch_bytes = await self.reclaimer.evict(targets, by_name=before_s is None)
                files += len(batch)
                freed_bytes += batch_bytes
                leavers = self.reclaimer.telling.leavers
                left |= {row.object_id: row.room_bytes for row in chosen if row.object_id in leavers}
        gone: list[int] = []
        if left:
            await self.reclaimer.telling.move(is_needed=False)
            gone = await self._wait_gone(left, SHOWN_S)
        if held is not None:
            held.update((number, left[number]) for number in left if number in self.reclaimer.telling.leavers)
        return files + len(gone), freed_bytes + sum(left[number] for number in gone)

    async def _wait_gone(self, numbers: Collection[int], at_most_s: float) -> list[int]:
        """Those of the objects, which are leaving, that go in this time."""
        telling = self.reclaimer.telling
        with trio.move_on_after(at_most_s):
            while any(number in telling.leavers for number in numbers):  # noqa: ASYNC110 - an event for each would serve only this
                await trio.sleep(_LOOK_S)
        ended = [number for number in numbers if number not in telling.leavers]
        stay: Collection[int] = ended
        with self.context.health.index_faults("looking up what was evicted"):  # some, since they were opened meanwhile
            stay = await self.context.threads.ask_index(self.context.index.reader.entered, ended)
        return [number for number in ended if number not in stay]

    async def expire(self, ready: trio.Event, after_s: float) -> None:
        """What nobody has used for so long goes, though there is room; 0: nothing does. A task of the nursery."""
        await ready.wait()
        while after_s:
            files, freed_bytes = await self.evict_paths(before_s=self.context.clock() - after_s)
            if files:
                log.info("%d staged files of %d bytes were not used for %g s, and went", files, freed_bytes, after_s)
            await trio.sleep(_LOOK_EVERY_S)

    def _used_s(self, row: StagedRow) -> float:
        """The index is a minute or an hour behind what memory knows."""
        file = self.files.peek(row.version)
        return row.last_use_s if file is None else max(row.last_use_s, file.last_use_ns / 1e9)


_BATCH = 256
_DOOMED_BATCH = 4096
"""More than a run leaves, unless its disk refused: each needs a sync."""
_RETRY_S = 30.0


async def clean_up(context: CacheContext, object_ids: ObjectIdAllocator, reclaimer: Reclaimer) -> None:
    """Remove what an earlier run left; returns when nothing is left, however often the disk refuses meanwhile."""
    while True:
        try:
            await _remove_doomed(context, reclaimer)
            if await _remove_unnamed(context):
                await context.threads.sweep(sync_names, context.disk)  # from now on nobody looks there again
            # An overlay that an earlier run has told of it may have parts open that this index lacks.
            if not (context.index.opened.clean or reclaimer.telling.makers.files):
                await _punch_incomplete(context)
            await context.threads.sweep(context.disk.remove_set_aside)
        except OSError as error:
            context.health.failed(error, "cleaning up the cache")
        except IndexFailed as error:
            context.health.index_failed(error, "cleaning up the cache")
        else:
            object_ids.garbage_removed()
            return
        await trio.sleep(_RETRY_S)


async def drop_passing(context: CacheContext, reclaimer: Reclaimer, kept: str) -> None:
    """Evict what an earlier run staged of file systems whose identity only that run knew: nobody asks for it again.

    But `kept` is what this run calls one of them too.
    """
    passing = context.index.opened_passing - {kept}
    if not passing:
        return
    async with aclosing(pages_of(context, [b""], passing)) as pages:
        async for rows in pages:
            await reclaimer.evict([(row.object_id, row.version) for row in rows])
    with context.health.index_faults("cleaning up the cache"):
        await context.threads.change_index(context.index.sources.forget, passing)


async def _remove_doomed(context: CacheContext, reclaimer: Reclaimer) -> None:
    last = 0
    while True:
        async with reclaimer.lock:
            doomed = await context.threads.ask_index(context.index.reader.doomed, last, _DOOMED_BATCH)
            if not doomed:
                return
            last = doomed[-1]
            numbers = [number for number in doomed if number not in reclaimer.unlinked]
            removed, failure = await context.threads.sweep(remove_objects, context.disk, numbers)
            await context.threads.sweep(sync_names, context.disk)
            with trio.CancelScope(shield=True):  # what is off the disk and out of the index is off the account
                context.room.release(await context.threads.change_index(context.index.writer.removed, removed))
            if failure is not None:
                raise failure


async def _remove_unnamed(context: CacheContext) -> bool:
    """Whether there was anything to look for."""
    opened = context.index.opened
    for start in range(opened.settled_id, opened.next_id, _BATCH):
        numbers = range(start, min(start + _BATCH, opened.next_id))
        known = await context.threads.ask_index(context.index.reader.known, numbers)
        garbage = [number for number in numbers if number not in known]
        _, failure = await context.threads.sweep(remove_objects, context.disk, garbage)
        if failure is not None:
            raise failure
    return opened.settled_id < opened.next_id


async def _punch_incomplete(context: CacheContext) -> None:
    last = 0
    while True:
        rows = await context.threads.ask_index(context.index.reader.incomplete, last, _BATCH)
        if not rows:
            return
        for row in rows:
            if not row.proven:
                continue  # it goes as a whole once it is looked up
            committed = await context.threads.ask_index(_committed, context.index, row)
            await context.threads.sweep(punch_uncommitted, context.disk, row, committed)
        last = rows[-1].object_id


def _committed(index: Index, row: StagedRow) -> list[int]:
    if row.version.size <= row.chunk_bytes:
        return [0] if row.checksum is not None else []
    return [chunk.number for chunk in index.reader.chunks(row.object_id)]


def punch_uncommitted(disk: Disk, row: StagedRow, committed: Sequence[int]) -> None:
    """In a thread: give back the ranges of an object that are not committed, and its right length. Raises OSError.

    One that still has its stamp has nothing else in it, and keeps the stamp.
    """
    size = row.version.size
    keep = set(committed)
    try:
        fd = disk.open_write(row.object_id, create=False, direct=False)
    except FileNotFoundError:
        return  # its reader will notice
    try:
        if row.stamp is not None and stamp_of(fd, size) == row.stamp:
            return
        start: int | None = None
        for number in range(chunk_count(size, row.chunk_bytes) + 1):
            missing = number < chunk_count(size, row.chunk_bytes) and number not in keep
            if missing and start is None:
                start = chunk_extent(number, size, row.chunk_bytes).start
            elif not missing and start is not None:
                disk.io.punch(fd, start, blocks_bytes(min(number * row.chunk_bytes, size)))
                start = None
        disk.io.set_length(fd, size)
    finally:
        disk.io.close(fd)
