"""Giving up staged files and chunks: always the index first, durably, then the disk, then the account.

Three ways out. *Evict*: a whole file goes; its row is deleted, then its object. *Repair*: some chunks of a file were
found damaged or could not be made durable; their rows go, then their blocks are punched, and only then may they be
put again. *Retire*: an object that never got a row goes.

What others decide to give up waits in the `ReclaimQueue`; what they evict themselves is decided here, without an await
between looking and marking. If a step fails nothing is given back to the account, and the next start finishes the work.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import partial
from math import inf

import trio

from hfs.mountd.cache.files import StagedFileTable
from hfs.mountd.cache.index import IndexFailed
from hfs.mountd.cache.objects.changes import Change, ReclaimQueue, Repair
from hfs.mountd.cache.objects.context import CacheContext
from hfs.mountd.cache.objects.disk import Disk
from hfs.mountd.cache.objects.file import recall
from hfs.mountd.cache.objects.numbers import ObjectIdAllocator
from hfs.mountd.cache.rows import Pins, RowUpdates
from hfs.mountd.cache.told_objects import ExposedObjects, Leaver
from hfs.mountd.core.attributes import Version
from hfs.mountd.core.background import guarded
from hfs.policies.cache.admission import BLOCK_BYTES, blocks_bytes, object_overhead_bytes

_FORGOTTEN_AT_ONCE = 2048
"""So many are forgotten together: a sync every two seconds at a thousand evictions a second, and after a crash 2048
names are tried: 10 ms."""


_RETRY_S = 5.0

BATCH = 256
"""Files in one eviction: one durable commit, and some 10 ms of unlinking that cannot be interrupted."""


class Reclaimer:
    """`run` is a task of staging's nursery."""

    def __init__(
        self,
        context: CacheContext,
        object_ids: ObjectIdAllocator,
        files: StagedFileTable,
        queue: ReclaimQueue,
        updates: RowUpdates,
        pins: Pins,
        telling: ExposedObjects,
    ) -> None:
        """`pins`: what stays but where it is to go by name."""
        self._context = context
        self._object_ids = object_ids
        self._files = files
        self._descriptors = queue.descriptors
        self._queue = queue
        self._doomed = files.doomed
        self._updates = updates
        self._pins = pins
        self.telling = telling
        self.lock = trio.Lock()
        """Held while doomed objects are removed: nobody else looks at the doomed meanwhile."""
        self.unlinked: set[int] = set()
        """Evicted objects that are off the disk, and that the index still knows."""
        self._deferred: list[Repair] = []
        self._at_work = False
        self._done = trio.Event()

    @property
    def idle(self) -> bool:
        """Nothing is left to do, except what the index refused."""
        return self._queue.empty and not self._at_work

    @property
    def deferred(self) -> bool:
        """The index refused a repair, which is tried again later."""
        return bool(self._deferred)

    # -- evict -------------------------------------------------------------------------------------------------------

    async def evict(
        self, targets: Sequence[tuple[int, Version]], *, by_name: bool = True, if_empty: Container[int] = ()
    ) -> tuple[list[int], int]:
        """Evict objects, (number, version), as far as they are not busy now. Returns those that are gone, and the bytes
        of room given back.
        What an overlay may have open is leaving then, and goes later by itself (`told_objects`).

        `by_name`: a person or a change at the source wants just these gone; without it those that are pinned stay.
        `if_empty`: numbers of those that stay if they hold anything.
        Once begun, a batch is finished, also when the caller is cancelled.
        """
        gone: list[int] = []
        freed_bytes = 0
        for start in range(0, len(targets), BATCH):
            async with self.lock:
                with trio.CancelScope(shield=True):
                    batch = targets[start : start + BATCH]
                    removed, batch_bytes = await self._evict_told(batch, by_name=by_name, if_empty=if_empty)
            gone += removed
            freed_bytes += batch_bytes
        return gone, freed_bytes

    async def _evict_told(
        self, targets: Sequence[tuple[int, Version]], *, by_name: bool, if_empty: Container[int] = ()
    ) -> tuple[list[int], int]:
        telling = self.telling
        if not telling.on:
            return await self._evict_batch(targets, by_name=by_name, if_empty=if_empty)
        leavers = [
            Leaver(number, version, self._room_bytes(version), by_name, number in if_empty)
            for number, version in targets
            if self._may_evict(number, version, by_name=by_name, if_empty=if_empty)
        ]
        free = await telling.leave(leavers)
        going = [(leaver.number, leaver.version) for leaver in leavers if leaver.number in free]
        gone: list[int] = []
        try:
            gone, freed_bytes = await self._evict_batch(going, by_name=by_name, if_empty=if_empty)
        finally:
            telling.end(free, gone=gone)
        return gone, freed_bytes

    def _room_bytes(self, version: Version) -> int:
        """About: of those that leave."""
        return blocks_bytes(version.size) + object_overhead_bytes(1)

    def _may_evict(self, number: int, version: Version, *, by_name: bool, if_empty: Container[int]) -> bool:
        file = self._files.peek(version)
        if number in self._doomed or (not by_name and number in self._pins):
            return False
        if file is None or file.object_id != number:
            return True
        recall(file)
        return not (file.busy or (file.present and number in if_empty))

    async def _evict_batch(
        self, targets: Sequence[tuple[int, Version]], *, by_name: bool, if_empty: Container[int] = ()
    ) -> tuple[list[int], int]:
        context = self._context
        numbers: list[int] = []
        fds: list[int] = []
        stray_bytes: dict[int, int] = {}
        """What could not be punched is accounted in memory alone: the index has forgotten it."""
        for number, version in targets:
            if not self._may_evict(number, version, by_name=by_name, if_empty=if_empty):
                continue
            file = self._files.peek(version)
            if file is not None and file.object_id == number:
                stray_bytes[number] = sum(file.stray.values()) if file.stray is not None else 0
                file.detach()
            numbers.append(number)
            self._queue.changes(number)
            fd = self._descriptors.discard(number)
            if fd is not None:
                fds.append(fd)
        if not numbers:
            return [], 0
        self._doomed.add(*numbers)
        try:
            room_bytes = await context.threads.change_index(context.index.writer.doom, numbers)
        except Exception as error:
            # The rows stay, and so do the objects: they are found again when they are looked up.
            self._doomed.discard(*numbers)
            if not isinstance(error, IndexFailed):
                _close_all(context.disk, fds)
                raise
            context.health.index_failed(error, "evicting staged files")
            await context.threads.sweep(_close_all, context.disk, fds)
            return [], 0
        self._updates.drop(numbers)
        self._pins.gone(room_bytes)
        removed, failure = await context.threads.sweep(remove_objects, context.disk, numbers, fds)
        if failure is not None:
            context.health.failed(failure, "removing evicted files")
        freed_bytes = sum(room_bytes.get(number, 0) + stray_bytes.get(number, 0) for number in removed)
        context.room.release(freed_bytes)
        self.unlinked.update(removed)
        if len(self.unlinked) >= _FORGOTTEN_AT_ONCE:
            await self.forget_unlinked()
        context.metrics.add("evicted_files", len(removed))
        context.metrics.add("evicted_bytes", freed_bytes)
        return removed, freed_bytes

    async def forget_unlinked(self) -> None:
        """Have the index forget them. If the disk or the index refuses they stay, which is counted."""
        numbers = sorted(self.unlinked)
        if not numbers:
            return
        try:
            await self._context.threads.sweep(sync_names, self._context.disk)
            await self._context.threads.change_index(self._context.index.writer.removed, numbers)
        except OSError as error:
            self._context.health.failed(error, "making evictions durable")
        except IndexFailed as error:
            self._context.health.index_failed(error, "entering evictions")
        else:
            self.unlinked.difference_update(numbers)

    # -- what waits in the queue ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Carry out what was asked for in the background. Never returns."""
        while True:
            with trio.move_on_after(_RETRY_S if self._deferred else inf):
                await self._queue.more.wait()
            self._queue.more = trio.Event()
            self._queue.repairs.extend(self._deferred)
            self._deferred.clear()
            self._at_work = True
            try:
                with trio.CancelScope(shield=True):  # each step is short, and half of one would leave the account wrong
                    await self._work_off()
            finally:
                self._at_work = False
                self._done.set()
                self._done = trio.Event()

    async def _work_off(self) -> None:
        queue = self._queue
        while queue.repairs:
            repair = queue.repairs.popleft()
            # What fails unforeseen is tried again later: until then its chunks stay barred.
            if not await guarded("staging: repair", self._repair, repair):
                self._deferred.append(repair)
        while queue.retired:
            await guarded("staging: removal", self._retire, *queue.retired.popleft())
        targets, queue.evictions = list(queue.evictions.items()), {}
        emptied, queue.emptied = queue.emptied, set()
        if targets:
            await guarded("staging: eviction", partial(self.evict, targets, if_empty=emptied))

    async def wait_idle(self) -> None:
        """Until everything asked for in the background is done."""
        while not self.idle:
            await self._done.wait()

    async def _repair(self, repair: Repair) -> None:
        context = self._context
        file, number, indexes = repair.file, repair.object_id, repair.indexes
        if not file.has_row and not file.present and file.unsettled == 1:
            # All of it goes, and its object number is never used again: there is nothing to forget or to punch.
            for index in indexes:
                file.unbar(index)
            file.unsettled -= 1
            self._queue.retire_if_empty(file)
            return
        punched: list[int] = []
        try:
            sizes = [(index, file.chunk(index).size) for index in indexes]
            await context.threads.change_index(context.index.writer.forget, number, sizes)
            file.recorded = None
            # All that the chunk could take, also where it has shrunk: of what is no more there nothing happens.
            extents = [(file.chunk(index).start, file.raw_room_bytes(index)) for index in indexes]
            # No hole in what the kernel reads by itself: its readers would see zeros. The right bytes come over it.
            may_change = await self.telling.may_change(number)
            if not may_change:
                self.telling.want_move()  # who looks it up anew is not told of it
            if not file.passed and may_change:
                change = await context.locks.begin(file)
                try:
                    if await context.threads.sweep(_punch, context.disk, number, extents, change):
                        punched = indexes
                finally:
                    context.locks.end(file)
        except IndexFailed as error:
            # They stay barred: their bytes must not change while a row may name them.
            context.health.index_failed(error, "forgetting damaged chunks")
            self._deferred.append(repair)
            return
        # The file was busy all the time, so it is still the same object.
        file.unsettled -= 1
        for index in indexes:
            file.unbar(index)
            room_bytes = file.chunk_room_bytes(index)
            if index in punched:
                file.room_bytes -= room_bytes
                context.room.release(room_bytes)
            else:
                file.stray = {**(file.stray or {}), index: room_bytes}
        if file.passed or not may_change:
            context.others.lost_under_readers(file, indexes)
        self._queue.settled(file)

    async def _retire(self, number: int, room_bytes: int) -> None:
        fd = self._descriptors.discard(number)
        fds = [] if fd is None else [fd]
        removed, failure = await self._context.threads.sweep(_remove_for_good, self._context.disk, number, fds)
        if failure is not None:
            self._context.health.failed(failure, "removing a staged file")
        if removed:
            self._object_ids.settle(number)
            self._context.room.release(room_bytes)


def sync_names(disk: Disk) -> None:
    """In a thread: all that was unlinked before is gone for good."""
    disk.sync_all()


def remove_objects(disk: Disk, numbers: Sequence[int], fds: Sequence[int] = ()) -> tuple[list[int], OSError | None]:
    """In a thread: unlink objects, then close what is open of them. Returns those that are gone, and the last error."""
    removed: list[int] = []
    failure: OSError | None = None
    for number in numbers:
        try:
            disk.unlink(number)
            removed.append(number)
        except OSError as error:
            failure = error
    _close_all(disk, fds)
    return removed, failure


def _remove_for_good(disk: Disk, number: int, fds: Sequence[int]) -> tuple[bool, OSError | None]:
    """In a thread: as `remove_objects`, of one, durably: no row speaks of it, so only its number tells of it later."""
    removed, failure = remove_objects(disk, [number], fds)
    try:
        if removed:
            disk.sync_name(number)
    except FileNotFoundError:
        pass  # nothing was ever made there
    except OSError as error:
        return False, error
    return bool(removed), failure


def _close_all(disk: Disk, fds: Sequence[int]) -> None:
    for fd in fds:
        disk.io.close(fd)


def _punch(disk: Disk, number: int, extents: Sequence[tuple[int, int]], change: Change) -> bool:
    """In a thread: give back (start, bytes) of an object. False if that failed and the blocks may still be taken."""
    try:
        fd = disk.open_write(number, create=False, direct=False)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        change.begin(fd)
        for start, size in extents:
            disk.io.punch(fd, start, start + -(-size // BLOCK_BYTES) * BLOCK_BYTES)
        change.end(fd)
    except OSError:
        return False
    finally:
        disk.io.close(fd)
    return True
