"""Staging chunks: taken on if disk and room allow, queued, written in threads, accounted, handed to the committer.

When the queue is full new chunks are dropped: the reader has its bytes already, and the next epoch tries again. From
the moment it is written a chunk is present, and reads use it; it survives a restart once it is committed.

The queue is bounded in bytes. A worker takes one large chunk, or as many small ones as are queued, to a thread in one
hop: a hop costs about 100 us, a small file 50. Of one object one chunk is written at a time, so that its stamp tells
our changes from those of others (`cache.objects.changes`); the kernel would do no more of them at once either.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Sequence

import trio

from hfs.mountd.cache.committer import Committer
from hfs.mountd.cache.evictor import Admission
from hfs.mountd.cache.index import ChunkRow
from hfs.mountd.cache.objects.changes import ObjectLocks, ReclaimQueue
from hfs.mountd.cache.objects.codec import UNDECIDED, Shrinking
from hfs.mountd.cache.objects.context import CacheContext
from hfs.mountd.cache.objects.file import StagedFile
from hfs.mountd.cache.objects.numbers import ObjectIdAllocator
from hfs.mountd.cache.writing import DIRECT_FROM_BYTES, WriteJob, fail_batch, hole_job, write_batch, write_holes
from hfs.mountd.core.background import call_guarded, note_fault
from hfs.policies.cache.admission import BLOCK_BYTES
from hfs.policies.cache.holes import data_of, hole_blocks

_FILLING = 4 / 5
"""Of the limit: what is fetched ahead takes half of the buffers at most, and the queue 5/8 of them. What is above was
fetched for readers, and is dropped when the queue is full."""

_BATCH_FILES = 128
_BATCH_BYTES = 8 << 20
"""One hop to a thread carries at most so much of small chunks: as long as one large chunk takes."""


class WriteQueue:
    """`locks`: who may change which object now."""

    def __init__(self, locks: ObjectLocks, limit_bytes: int) -> None:
        self._locks = locks
        self._limit_bytes = limit_bytes
        self._waiting: deque[WriteJob] = deque()
        self.held_bytes = 0
        """Queued and being written: data that is kept in memory for staging."""

    def has_place(self, size_bytes: int) -> bool:
        """Whether so much more may be queued. An empty queue takes a chunk of any size."""
        return self.held_bytes == 0 or self.held_bytes + size_bytes <= self._limit_bytes

    @property
    def is_filling(self) -> bool:
        """More is here than is fetched ahead at a time."""
        return self.held_bytes > _FILLING * self._limit_bytes

    def put_nowait(self, job: WriteJob) -> None:
        """Queue a chunk; `has_place` was asked before."""
        self.held_bytes += job.size_bytes
        self._waiting.append(job)
        self._locks.freed.unpark()

    async def take(self) -> list[WriteJob]:
        """What is written next: a large chunk, or some small ones. Each has its turn at its object, until `done`."""
        while not (batch := self._take_nowait()):
            await self._locks.freed.park()
        return batch

    def done(self, job: WriteJob) -> None:
        """A chunk that was taken is written, or failed."""
        self.held_bytes -= job.size_bytes
        self._locks.end(job.file)

    def _take_nowait(self) -> list[WriteJob]:
        """Empty if all that waits must wait for its turn."""
        batch: list[WriteJob] = []
        taken_bytes = position = 0
        while position < len(self._waiting) and len(batch) < _BATCH_FILES:
            job = self._waiting[position]
            if batch and (job.size_bytes >= DIRECT_FROM_BYTES or taken_bytes + job.size_bytes > _BATCH_BYTES):
                break
            job.change = self._locks.begin_nowait(job.file)
            if job.change is None:
                position += 1
                continue
            del self._waiting[position]
            job.create = not job.file.created
            job.element_bytes = job.file.element_bytes
            batch.append(job)
            taken_bytes += job.size_bytes
            if job.size_bytes >= DIRECT_FROM_BYTES:
                break
        return batch


_HOLES_AT_ONCE = 256
"""Chunks of zeros: 5 ms of the event loop before they are written, and 5 ms after it."""

_HOLES_A_COMMIT = 4 * _HOLES_AT_ONCE
"""10 ms of it, and a transaction."""


class StagedWriter:
    """`work` is a task of the cache's nursery, as many times as there are threads for it. Event loop only."""

    def __init__(
        self,
        context: CacheContext,
        object_ids: ObjectIdAllocator,
        admission: Admission,
        committer: Committer,
        reclaim_queue: ReclaimQueue,
        shrinking: Shrinking,
        in_flight_bytes: int,
    ) -> None:
        self._context = context
        self._object_ids = object_ids
        self._admission = admission
        self._committer = committer
        self._reclaim_queue = reclaim_queue
        self._shrinking = shrinking
        self._queue = WriteQueue(context.locks, in_flight_bytes)
        self._closing = False

    @property
    def queued_bytes(self) -> int:
        """Held in memory until they are written."""
        return self._queue.held_bytes

    def close(self) -> None:
        """Take on nothing more. What is queued is written."""
        self._closing = True

    def put_nowait(
        self,
        file: StagedFile,
        index: int,
        data: memoryview,
        on_done: Callable[[], object] | None = None,
        *,
        sparse: bool = False,
    ) -> bool:
        """Stage a whole chunk. True: it is present, or will be unless the disk fails. False: dropped, and counted.

        `sparse`: the file, of several chunks, has holes at the source; blocks of zeros are not written.

        Keeps `data` until it is written. `on_done` is called later, once the chunk can be read from here or was given
        up; not at all if nothing was queued. Raises ValueError if `data` is not as long as the chunk.
        """
        size = file.chunk_size(index)
        if len(data) != size:
            raise ValueError(f"chunk {index} has {size} bytes, not {len(data)}")
        if index in file.present:
            return True
        # Never while the kernel reads the object by itself, nor over what may still lie there.
        may_shrink = not file.passed and (file.stray is None or index not in file.stray)
        pieces = data_of(data) if sparse and may_shrink else None
        charge_bytes = self._charge_bytes(file, index)
        if pieces is not None:
            charge_bytes -= hole_blocks(size, pieces) * BLOCK_BYTES
        if file.is_barred(index) or not self._takes_on(file, size, charge_bytes):
            self._context.metrics.add("staging_dropped")
            return False
        # No checkpoint from the tests above to the queue: what is accounted is what was found free.
        if file.object_id is None:
            file.object_id = self._object_ids.take_nowait()
        if file.stray is not None:
            file.stray.pop(index, None)
        file.chunks.discard(index)
        file.room_bytes += charge_bytes
        file.unsettled += 1
        file.bar(index)
        number, may_shrink = self._committer.number(), may_shrink and pieces is None
        job = WriteJob(file, index, data, number, charge_bytes, on_done, may_shrink=may_shrink, pieces=pieces)
        self._queue.put_nowait(job)
        self._admission.charge(charge_bytes)
        return True

    async def put_holes(self, file: StagedFile, indexes: Sequence[int]) -> None:
        """Stage chunks that are zeros alone, of a file that is pinned: nothing is written, so they need no room. Those
        that cannot be staged now are left out. Returns when the others are committed."""
        for start in range(0, len(indexes), _HOLES_AT_ONCE):
            jobs = self._hole_jobs(file, indexes[start : start + _HOLES_AT_ONCE])
            if jobs:
                with trio.CancelScope(shield=True):  # what is accounted is written, or given up
                    await self._write_holes(file, jobs)
            if start % _HOLES_A_COMMIT == 0 or start + _HOLES_AT_ONCE >= len(indexes):
                await self._committer.wait_committed()

    def _hole_jobs(self, file: StagedFile, indexes: Sequence[int]) -> list[WriteJob]:
        # As in `put_nowait`.
        wanted = [index for index in indexes if index not in file.present and not file.is_barred(index)]
        charge_bytes = file.overhead_bytes() if file.object_id is None else 0
        if not wanted or file.passed or file.stray is not None or not self._takes_on(file, 0, charge_bytes):
            return []
        if file.object_id is None:
            file.object_id = self._object_ids.take_nowait()
        file.room_bytes += charge_bytes
        file.unsettled += len(wanted)
        jobs: list[WriteJob] = []
        for index in wanted:
            file.chunks.discard(index)
            file.bar(index)
            jobs.append(hole_job(file, index, self._committer.number(), 0 if jobs else charge_bytes))
        self._admission.charge(charge_bytes)
        return jobs

    async def _write_holes(self, file: StagedFile, jobs: list[WriteJob]) -> None:
        error: OSError | None = OSError(errno.EIO, "the writer has failed")
        change = await self._context.locks.begin(file)
        try:
            for job in jobs:
                job.change, job.create = change, not file.created
            await self._context.threads.write(write_holes, self._context.disk, jobs)
            error = None
        except OSError as fault:
            error = fault
        finally:
            self._context.locks.end(file)
            # No checkpoint: as in `work`.
            for job in jobs:
                job.error = error
                call_guarded("staging: writer", self._written, job)

    def _takes_on(self, file: StagedFile, size: int, charge_bytes: int) -> bool:
        if self._closing or file.present.too_many or not self._admission.open:
            return False
        if not self._admission.has_room(charge_bytes):
            return False
        if not self._queue.has_place(size) or self._committer.is_behind:
            self._context.metrics.add("staging_behind")
            return False
        return file.object_id is not None or self._object_ids.ready_nowait()

    def _charge_bytes(self, file: StagedFile, index: int) -> int:
        charged_bytes = file.stray.get(index, 0) if file.stray is not None else 0
        overhead_bytes = file.overhead_bytes() if file.object_id is None else 0
        return file.raw_room_bytes(index) - charged_bytes + overhead_bytes

    async def work(self) -> None:
        """Write what is queued. Never returns."""
        while True:
            batch = await self._queue.take()
            try:
                threads, shrinker = self._context.threads, self._shrinking.shrinker
                # Where the queue is nearly full chunks would be dropped that a reader has fetched: those go on.
                rests = not self._queue.is_filling
                await threads.write(write_batch, self._context.disk, batch, threads.pace, rests, shrinker)
            except Exception as error:  # noqa: BLE001 - a defect is noted, and the chunks are given up
                note_fault("staging: writer", error)
                fail_batch(batch)
            # No checkpoint below: what is on the disk is known before anybody else runs.
            for job in batch:
                self._queue.done(job)
                call_guarded("staging: writer", self._written, job)
            del batch, job  # nothing keeps a file alive while the worker waits

    def _written(self, job: WriteJob) -> None:
        """A chunk is on the disk, or it failed."""
        self._context.room.written(job.charged_bytes)
        job.file.unbar(job.index)
        if job.error is None:
            self._enter(job)
        else:
            self._give_up(job, job.error)
        if job.on_done is not None:
            job.on_done()

    def _enter(self, job: WriteJob) -> None:
        file, index = job.file, job.index
        file.created = True
        file.present.add(index)
        file.chunks.enter(ChunkRow(index, job.checksum, job.stored_bytes, job.hole_blocks))
        if file.stamp is not None:
            file.verify(index)
        if file.element_bytes == UNDECIDED:
            file.element_bytes = job.element_bytes
        if job.stored_bytes:
            # What was charged for the chunk as it is and was not needed goes back.
            self._give_back(file, job.room_bytes - file.chunk_room_bytes(index))
            self._context.metrics.add("staging_encoded_chunks")
        self._context.metrics.add("staging_put_chunks")
        self._context.metrics.add("staging_put_bytes", job.size_bytes)
        self._committer.written_nowait(job)

    def _give_up(self, job: WriteJob, error: OSError) -> None:
        file = job.file
        if isinstance(error, FileNotFoundError) and not job.create:
            self._reclaim_queue.lost(file)  # somebody else removed it
            self._context.health.broken(f"a staged file is gone from the cache: object {job.object_id}")
        else:
            self._context.health.failed(error, "staging a chunk")
        self._context.metrics.add("staging_dropped")
        if job.stray:
            file.stray = {**(file.stray or {}), job.index: job.room_bytes}
        else:
            self._give_back(file, job.room_bytes)
        file.unsettled -= 1
        self._committer.dropped(job.number)
        self._reclaim_queue.settled(file)

    def _give_back(self, file: StagedFile, room_bytes: int) -> None:
        file.room_bytes -= room_bytes
        self._context.room.release(room_bytes)
