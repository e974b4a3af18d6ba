"""Cleaning up after a run that did not end well, in the background, while reads are already served.

What may lie about: objects that were evicted but not yet removed, objects whose number was leased but that never got a
row, written but unvouched ranges of incomplete files, and whole directories of an index that was set aside. None of it
is accounted (except the evicted), so nothing new is staged until it is gone: the disk never holds more than the
account. No scan: the first two are found by number, the third by an index of incomplete files.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from mountd.index import Index, IndexFailed, StagedRow
from mountd.staging_disk import Disk
from mountd.staging_ground import Ground
from mountd.staging_names import Names
from mountd.staging_sweeper import Sweeper, remove_objects
from policies.admission import blocks_bytes
from policies.geometry import chunk_count, chunk_extent

__all__ = ["clean_up"]

_BATCH = 256
_RETRY_S = 30.0


async def clean_up(ground: Ground, names: Names, sweeper: Sweeper) -> None:
    """Remove what an earlier run left; returns when nothing is left, however often the disk refuses meanwhile."""
    while True:
        try:
            await _remove_doomed(ground, sweeper)
            await _remove_unnamed(ground)
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


async def _remove_doomed(ground: Ground, sweeper: Sweeper) -> None:
    last = 0
    while True:
        async with sweeper.lock:
            numbers = await ground.threads.ask_index(ground.index.doomed, last, _BATCH)
            if not numbers:
                return
            removed, failure = await ground.threads.sweep(remove_objects, ground.disk, numbers)
            with trio.CancelScope(shield=True):  # what is off the disk and out of the index is off the account
                ground.room.release(await ground.threads.change_index(ground.index.removed, removed))
            if failure is not None:
                raise failure
            last = numbers[-1]


async def _remove_unnamed(ground: Ground) -> None:
    opened = ground.index.opened
    for start in range(opened.settled_id, opened.next_id, _BATCH):
        numbers = range(start, min(start + _BATCH, opened.next_id))
        known = await ground.threads.ask_index(ground.index.known, numbers)
        garbage = [number for number in numbers if number not in known]
        _, failure = await ground.threads.sweep(remove_objects, ground.disk, garbage)
        if failure is not None:
            raise failure


async def _punch_incomplete(ground: Ground) -> None:
    last = 0
    while True:
        rows = await ground.threads.ask_index(ground.index.incomplete, last, _BATCH)
        if not rows:
            return
        for row in rows:
            vouched = await ground.threads.ask_index(_vouched, ground.index, row)
            await ground.threads.sweep(punch_unvouched, ground.disk, row, vouched)
        last = rows[-1].object_id


def _vouched(index: Index, row: StagedRow) -> list[int]:
    if row.version.size <= row.chunk_bytes:
        return [0] if row.checksum is not None else []
    return [chunk.number for chunk in index.chunks(row.object_id)]


def punch_unvouched(disk: Disk, row: StagedRow, vouched: Sequence[int]) -> None:
    """In a thread: give back the ranges of an object that nobody vouches for, and its right length. Raises OSError."""
    size = row.version.size
    keep = set(vouched)
    try:
        fd = disk.open_write(row.object_id, create=False, direct=False)
    except FileNotFoundError:
        return  # its reader will notice
    try:
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
