"""The queue of chunks that wait to be written, bounded in bytes.

A worker takes one large chunk, or as many small ones as are queued, to a thread in one hop: a hop costs about 100 us, a
small file 50. Of one object one chunk is written at a time, so that its stamp tells our changes from those of others
(`cache.objects.stamps`); the kernel would do no more of them at once either. Event loop only.
"""

from __future__ import annotations

from collections import deque

from hfs.mountd.cache.objects import Turns
from hfs.mountd.cache.writing import DIRECT_FROM_BYTES, WriteJob

_FILLING = 4 / 5
"""Of the limit: what is fetched ahead takes half of the buffers at most, and the queue 5/8 of them. What is above was
fetched for readers, and is dropped when the queue is full."""

_BATCH_FILES = 128
_BATCH_BYTES = 8 << 20
"""One hop to a thread carries at most so much of small chunks: as long as one large chunk takes."""


class WriteQueue:
    """`turns`: who may change which object now."""

    def __init__(self, turns: Turns, limit_bytes: int) -> None:
        self._turns = turns
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
        self._turns.freed.unpark()

    async def take(self) -> list[WriteJob]:
        """What is written next: a large chunk, or some small ones. Each has its turn at its object, until `done`."""
        while not (batch := self._take_nowait()):
            await self._turns.freed.park()
        return batch

    def done(self, job: WriteJob) -> None:
        """A chunk that was taken is written, or failed."""
        self.held_bytes -= job.size_bytes
        self._turns.end(job.file)

    def _take_nowait(self) -> list[WriteJob]:
        """Empty if all that waits must wait for its turn."""
        batch: list[WriteJob] = []
        taken_bytes = position = 0
        while position < len(self._waiting) and len(batch) < _BATCH_FILES:
            job = self._waiting[position]
            if batch and (job.size_bytes >= DIRECT_FROM_BYTES or taken_bytes + job.size_bytes > _BATCH_BYTES):
                break
            job.change = self._turns.begin_nowait(job.file)
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
