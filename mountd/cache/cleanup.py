"""Cleaning up after a run that did not end well, in the background, while reads are already served.

What may lie about: objects that were evicted but not yet removed, objects whose number was leased but that never got a
row, written but unvouched ranges of incomplete files, and whole directories of an index that was set aside. None of it
is accounted (except the evicted), so nothing new is staged until it is gone: the disk never holds more than the
account. No scan: the first two are found by number, the third by an index of incomplete files.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

import trio

from mountd.cache.index import Index, IndexFailed, StagedRow
from mountd.cache.objects import Disk, Ground, Names, pages_of, stamp_of, sync_disk
from mountd.cache.sweeper import Sweeper, remove_objects
from policies.cache.admission import blocks_bytes
from policies.geometry import chunk_count, chunk_extent

__all__ = ["clean_up", "drop_passing"]

_BATCH = 256
_DOOMED_BATCH = 4096
"""More than a run leaves, unless its disk refused: each needs a sync."""
_RETRY_S = 30.0


async def clean_up(ground: Ground, names: Names, sweeper: Sweeper) -> None:
    """Remove what an earlier run left; returns when nothing is left, however often the disk refuses meanwhile."""
    while True:
        try:
            await _remove_doomed(ground, sweeper)
            if await _remove_unnamed(ground):
                await ground.threads.sweep(sync_disk, ground.disk)  # from now on nobody looks there again
            if not ground.index.opened.clean:
                await _punch_incomplete(ground)
            await ground.threads.sweep(ground.disk.remove_set_aside)
        except OSError as error:
            ground.health.failed(error, "cleaning up the cache")
        except IndexFailed as error:
            ground.health.index_failed(error, "cleaning up the cache")
        else:
            names.garbage_removed()
            return
        await trio.sleep(_RETRY_S)


async def drop_passing(ground: Ground, sweeper: Sweeper, kept: str) -> None:
    """Evict what an earlier run staged of file systems whose identity only that run knew: nobody asks for it again.

    But `kept` is what this run calls one of them too.
    """
    passing = ground.index.opened_passing - {kept}
    if not passing:
        return
    async with aclosing(pages_of(ground, [b""], passing)) as pages:
        async for rows in pages:
            await sweeper.evict([(row.object_id, row.version) for row in rows])
    try:
        await ground.threads.change_index(ground.index.forget_sources, passing)
    except IndexFailed as error:
        ground.health.index_failed(error, "cleaning up the cache")


async def _remove_doomed(ground: Ground, sweeper: Sweeper) -> None:
    last = 0
    while True:
        async with sweeper.lock:
            doomed = await ground.threads.ask_index(ground.index.doomed, last, _DOOMED_BATCH)
            if not doomed:
                return
            last = doomed[-1]
            numbers = [number for number in doomed if number not in sweeper.unlinked]
            removed, failure = await ground.threads.sweep(remove_objects, ground.disk, numbers)
            await ground.threads.sweep(sync_disk, ground.disk)
            with trio.CancelScope(shield=True):  # what is off the disk and out of the index is off the account
                ground.room.release(await ground.threads.change_index(ground.index.removed, removed))
            if failure is not None:
                raise failure


async def _remove_unnamed(ground: Ground) -> bool:
    """Whether there was anything to look for."""
    opened = ground.index.opened
    for start in range(opened.settled_id, opened.next_id, _BATCH):
        numbers = range(start, min(start + _BATCH, opened.next_id))
        known = await ground.threads.ask_index(ground.index.known, numbers)
        garbage = [number for number in numbers if number not in known]
        _, failure = await ground.threads.sweep(remove_objects, ground.disk, garbage)
        if failure is not None:
            raise failure
    return opened.settled_id < opened.next_id


async def _punch_incomplete(ground: Ground) -> None:
    last = 0
    while True:
        rows = await ground.threads.ask_index(ground.index.incomplete, last, _BATCH)
        if not rows:
            return
        for row in rows:
            if not row.proven:
                continue  # it goes as a whole once it is looked up
            vouched = await ground.threads.ask_index(_vouched, ground.index, row)
            await ground.threads.sweep(punch_unvouched, ground.disk, row, vouched)
        last = rows[-1].object_id


def _vouched(index: Index, row: StagedRow) -> list[int]:
    if row.version.size <= row.chunk_bytes:
        return [0] if row.checksum is not None else []
    return [chunk.number for chunk in index.chunks(row.object_id)]


def punch_unvouched(disk: Disk, row: StagedRow, vouched: Sequence[int]) -> None:
    """In a thread: give back the ranges of an object that nobody vouches for, and its right length. Raises OSError.

    One that still has its stamp has nothing else in it, and keeps the stamp.
    """
    size = row.version.size
    keep = set(vouched)
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
                disk.punch(fd, start, blocks_bytes(min(number * row.chunk_bytes, size)))
                start = None
        disk.set_length(fd, size)
    finally:
        disk.close_fd(fd)
