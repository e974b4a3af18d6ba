"""Committer: makes groups of written chunks durable, then enters them in the index.

Every two seconds, or when a quarter of a gigabyte has come together, or when somebody waits: one sync of the objects,
then one transaction. Only after both is a chunk committed. If the sync or the transaction fails, the whole group is
given up: after a failed sync nobody knows which pages reached the disk, and asking again would be answered with
success.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from math import inf

import trio

from hfs.mountd.cache.files import StagedFileTable
from hfs.mountd.cache.index import Committed, IndexFailed
from hfs.mountd.cache.objects.changes import ReclaimQueue, stamp_to_keep
from hfs.mountd.cache.objects.context import CacheContext
from hfs.mountd.cache.objects.disk import Disk
from hfs.mountd.cache.objects.file import StagedFile
from hfs.mountd.cache.objects.io import WritePace, staging_io
from hfs.mountd.cache.objects.numbers import ObjectIdAllocator
from hfs.mountd.cache.rows import KnownObjects, Pins
from hfs.mountd.cache.writing import DIRECT_FROM_BYTES, WriteJob
from hfs.mountd.core.attributes import Version
from hfs.mountd.core.background import note_fault
from hfs.policies.cache.admission import COMMIT_BYTES, COMMIT_EVERY_S

_GROUP_CHUNKS = 16_384
"""A group is one transaction: 16 384 rows take about 0.2 s, in which evictions wait."""

_MAX_UNCOMMITTED_BYTES = 1 << 30

_WRITE_BACK_S = 30.0
"""After that the rest of a group is synced at once, readers or not. The kernel writes back what is so old, too."""

_EACH_UP_TO = 16
"""So many objects are synced one by one. For more, one sync of the file system is cheaper, although it also writes what
other programs have dirty there: each sync of a new file is a commit of the journal."""


class Committer:
    """`run` is a task of the cache's nursery. Event loop only."""

    def __init__(
        self,
        context: CacheContext,
        object_ids: ObjectIdAllocator,
        reclaim_queue: ReclaimQueue,
        known: KnownObjects,
        pins: Pins,
        files: StagedFileTable,
    ) -> None:
        self._context = context
        self._known = known
        self._pins = pins
        self._files = files
        self._object_ids = object_ids
        self._reclaim_queue = reclaim_queue
        self._held: dict[Version, list[WriteJob]] = {}
        """Written, and in doubt: neither outstanding nor in a group until they are confirmed."""
        self._wrong: list[WriteJob] = []
        """They are not, and somebody has their files open."""
        self._written: list[WriteJob] = []
        self._latest: dict[tuple[int, int], WriteJob] = {}
        """By object and chunk. One that was given up and put again while it waits here is that of its last put alone:
        entered for each, it would be counted twice, and the first time before it was synced."""
        self._first_s = inf
        self._outstanding: OrderedDict[int, None] = OrderedDict()
        self._next_number = 0
        self._waiters = 0
        self._arrived: list[tuple[int, Sequence[Committed], Callable[[Sequence[Committed], bool], object]]] = []
        """Whole files that others have written: the place of each batch in the order of all, and who is to be told."""
        self._wake = trio.Event()
        self._progress = trio.Event()
        self.uncommitted_bytes = 0
        """Written and not yet committed."""
        self.entered_bytes = 0
        """Of what the index has entered: no longer counted in `uncommitted_bytes`."""

    @property
    def is_behind(self) -> bool:
        """The disk takes so long to sync that it should not be given more."""
        return self.uncommitted_bytes > _MAX_UNCOMMITTED_BYTES

    @property
    def idle(self) -> bool:
        """Nothing is outstanding."""
        return not self._outstanding

    def number(self) -> int:
        """The place of a new put in the order of all; it counts as outstanding until it is committed or dropped."""
        number = self._next_number
        self._next_number += 1
        self._outstanding[number] = None
        return number

    def dropped(self, number: int) -> None:
        """A put came to nothing."""
        del self._outstanding[number]
        self._tell()

    def written_nowait(self, job: WriteJob) -> None:
        """A chunk is on the disk; take it into the next group."""
        version = job.file.version
        trust = self._context.others.trust
        if trust is not None and (trust.holds(version) or trust.refutes(version)):
            del self._outstanding[job.number]
            self._held.setdefault(version, []).append(job)
            if trust.refutes(version):
                self.disbelieve(version)
            self._tell()
            return
        if not self._written:
            self._first_s = trio.current_time()
            self._wake.set()  # the timer starts
        self._written.append(job)
        self._latest[job.object_id, job.index] = job
        self.uncommitted_bytes += job.size_bytes
        if self._waiters or self._due():
            self._wake.set()

    def arrived_nowait(self, rows: Sequence[Committed], entered: Callable[[Sequence[Committed], bool], object]) -> None:
        """Others have written these files whole; take them into the next group. `entered` is told of them in the end:
        whether they are durable, or given up."""
        if not self._written and not self._arrived:
            self._first_s = trio.current_time()
            self._wake.set()
        self._arrived.append((self.number(), rows, entered))
        self.uncommitted_bytes += sum(row.size_bytes for row in rows)
        if self._waiters or self._due():
            self._wake.set()

    def confirm(self, version: Version) -> None:
        """What was written of this version is right after all."""
        for job in self._held.pop(version, ()):
            job.number = self.number()
            self.written_nowait(job)
        self._tell()

    def disbelieve(self, version: Version) -> None:
        """It is not, or nobody will ever know: none of it is committed. Who has it open goes on with it: see
        `ReclaimQueue.settled`."""
        jobs = self._held.pop(version, [])
        self._give_up([job for job in jobs if not job.file.pins])
        self._wrong = [job for job in self._wrong + jobs if job.file.pins]
        for job in jobs:
            job.file.unsettled -= 1
            self._reclaim_queue.settled(job.file)
        self._tell()

    def disbelieve_all(self) -> None:
        """The end: what is still in doubt will not be looked at again."""
        for version in list(self._held):
            self.disbelieve(version)
        self._give_up(self._wrong)

    async def wait_confirmed(self, version: Version) -> None:
        """Until nothing that was written of this version is in doubt."""
        while version in self._held:
            if self._context.others.trust is not None:
                self._context.others.trust.hurry(version)
            await self._progress.wait()

    async def wait_committed(self) -> None:
        """Until everything put before is committed, or dropped."""
        target = self._next_number
        self._waiters += 1
        self._wake.set()
        try:
            while self._outstanding and next(iter(self._outstanding)) < target:
                await self._progress.wait()
        finally:
            self._waiters -= 1

    async def run(self) -> None:
        """Commit group after group. Never returns."""
        while True:
            await self._wait_ripe()
            await self._commit()

    def _due(self) -> bool:
        return self.uncommitted_bytes >= COMMIT_BYTES or len(self._written) >= _GROUP_CHUNKS

    async def _wait_ripe(self) -> None:
        while not ((is_any := bool(self._written or self._arrived)) and (self._waiters or self._due())):
            self._wake = trio.Event()
            with trio.move_on_at(self._first_s + COMMIT_EVERY_S if is_any else inf) as waiting:
                await self._wake.wait()
            if waiting.cancelled_caught:
                return

    async def _commit(self) -> None:
        group, self._written = self._written[:_GROUP_CHUNKS], self._written[_GROUP_CHUNKS:]
        arrived, self._arrived = self._arrived, []
        new = [row for _, rows, _ in arrived for row in rows]
        objects = sorted({job.object_id for job in group} | {row.object_id for row in new})
        entered: list[WriteJob] = []
        is_durable = False
        try:
            threads = self._context.threads
            await threads.sync(sync_objects, self._context.disk, objects, threads.pace)
            # No checkpoint from here to the index: what was given up meanwhile is left out, and what is given up from
            # now on is deleted after it was entered, because calls that change the index keep their order.
            entered = [job for job in group if job.index in job.file.present and self._is_latest(job)]
            rows = _rows_of(entered, int(self._context.clock()))
            await self._context.threads.change_index(self._context.index.writer.commit_chunks, [*rows.values(), *new])
        except OSError as error:
            self._context.health.failed(error, "making staged chunks durable")
            self._give_up(group)
        except IndexFailed as error:
            self._context.health.index_failed(error, "entering staged chunks in the index")
            self._give_up(group)
        except Exception as error:  # noqa: BLE001 - a defect is noted, and nobody waits for this group for ever
            note_fault("staging: committer", error)
            self._give_up(group)
        else:
            is_durable = True
            self.entered_bytes += sum(row.size_bytes for row in (*rows.values(), *new))
            for job in entered:
                self._enter(job)
            for file, row in rows.items():
                file.recorded = row.stamp
            self._known.entered([*rows.values(), *new])
            for version in await self._pins.replaced([*rows.values(), *new]):
                await self._files.supersede(version)
            if entered or new:
                self._context.health.succeeded()
        for number, whole, tell in arrived:
            self.uncommitted_bytes -= sum(row.size_bytes for row in whole)
            tell(whole, is_durable)
            del self._outstanding[number]
        for job in group:
            self.uncommitted_bytes -= job.size_bytes
            job.file.unsettled -= 1
            if self._is_latest(job):
                del self._latest[job.object_id, job.index]
            del self._outstanding[job.number]
            self._reclaim_queue.settled(job.file)
        self._tell()

    def _is_latest(self, job: WriteJob) -> bool:
        return self._latest.get((job.object_id, job.index)) is job

    def _enter(self, job: WriteJob) -> None:
        file = job.file  # unsettled until the end of this group: still the same object
        self._object_ids.settle(job.object_id)
        file.has_row = True
        if job.index in file.present:
            file.committed.add(job.index)

    def _give_up(self, group: Sequence[WriteJob]) -> None:
        lost: dict[StagedFile, list[int]] = {}
        for job in group:
            if job.index in job.file.present:
                lost.setdefault(job.file, []).append(job.index)
        for file, indexes in lost.items():
            self._reclaim_queue.give_up(file, indexes)

    def _tell(self) -> None:
        self._progress.set()
        self._progress = trio.Event()


def _rows_of(entered: Sequence[WriteJob], now_s: int) -> dict[StagedFile, Committed]:
    """What the index is to say of the files that these belong to."""
    chunks: dict[StagedFile, list[int]] = {}
    for job in entered:
        chunks.setdefault(job.file, []).append(job.index)
    rows = {}
    for file, indexes in chunks.items():
        assert file.object_id is not None
        if not file.has_row:
            file.stored_use_s = file.last_use_ns // 1_000_000_000 or now_s
            file.stored_path = file.path
        committed = len(file.committed) + len(indexes)
        rows[file] = Committed(
            file.object_id,
            not file.has_row,
            file.version,
            file.path,
            file.chunk_bytes,
            committed == file.committed.count,
            sum(file.chunk_size(index) for index in indexes),
            sum(map(file.chunk_room_bytes, indexes)) + (0 if file.has_row else file.overhead_bytes()),
            file.stored_use_s,
            [file.chunks.row(index) for index in indexes],
            stamp_to_keep(file, committed),
        )
    return rows


def sync_objects(disk: Disk, object_ids: Sequence[int], pace: WritePace) -> None:
    """In a thread: the bytes of these objects, durable, and little by little while readers wait (`pace`). Raises
    OSError.

    An object that is gone was lost meanwhile, which the caller sees: nothing of it is entered.
    """
    with staging_io():
        _write_back(disk, object_ids, pace)
        _sync(disk, object_ids)


def _write_back(disk: Disk, object_ids: Sequence[int], pace: WritePace) -> None:
    until_s = time.monotonic() + _WRITE_BACK_S
    for number in object_ids:
        if pace.share >= 1 or time.monotonic() > until_s:
            return
        try:
            fd = disk.open_read(number)
        except FileNotFoundError:
            continue
        try:
            size_bytes = os.fstat(fd).st_size
            if size_bytes < DIRECT_FROM_BYTES or not disk.direct:  # larger chunks went around the page cache
                pace.write_back(disk.io, fd, size_bytes)
        finally:
            disk.io.close(fd)


def _sync(disk: Disk, object_ids: Sequence[int]) -> None:
    if len(object_ids) > _EACH_UP_TO:
        disk.sync_all()
        return
    for number in object_ids:
        try:
            fd = disk.open_read(number)
        except FileNotFoundError:
            continue
        try:
            disk.io.sync(fd)
        finally:
            disk.io.close(fd)
