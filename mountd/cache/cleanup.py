"""Cleaning up after a run that did not end well, in the background, while reads are already served.

What may lie about: objects that were evicted but not yet removed, objects whose number was leased but that never got a
row, written but uncommitted ranges of incomplete files, and whole directories of an index that was set aside. None of
it is accounted (except the evicted), so nothing new is staged until it is gone: the disk never holds more than the
account. No scan: the first two are found by number, the third by an index of incomplete files.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

import trio

from hfs.mountd.cache.index import Index, IndexFailed, StagedRow
from hfs.mountd.cache.objects import CacheContext, Disk, ObjectIdAllocator, stamp_of, sync_disk
from hfs.mountd.cache.reclaimer import Reclaimer, remove_objects
from hfs.mountd.cache.table.listing import pages_of
from hfs.policies.cache.admission import blocks_bytes
from hfs.policies.geometry import chunk_count, chunk_extent

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
                await context.threads.sweep(sync_disk, context.disk)  # from now on nobody looks there again
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
    try:
        await context.threads.change_index(context.index.sources.forget, passing)
    except IndexFailed as error:
        context.health.index_failed(error, "cleaning up the cache")


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
            await context.threads.sweep(sync_disk, context.disk)
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
