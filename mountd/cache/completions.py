"""Completions: objects that the data plane has written by itself, from numbers and room that it was granted.

They are synced and entered in the index as what the writer has written, many in one group, but a StagedFile is made of
one only for whoever wants it before its row is there. One whose version somebody else has staged meanwhile goes again.

Event loop only.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import trio

from hfs.mountd.cache.committer import Committer
from hfs.mountd.cache.evictor import Admission
from hfs.mountd.cache.files import StagedFileTable
from hfs.mountd.cache.index import ChunkRow, Committed, Stamp
from hfs.mountd.cache.objects.changes import ReclaimQueue
from hfs.mountd.cache.objects.codec import RAW
from hfs.mountd.cache.objects.context import CacheContext
from hfs.mountd.cache.objects.file import StagedFile
from hfs.mountd.cache.objects.numbers import ObjectIdAllocator
from hfs.mountd.cache.rows import KnownObjects
from hfs.mountd.core.attributes import Version
from hfs.policies.cache.admission import blocks_bytes, grant_bytes, object_overhead_bytes

_NUMBERS = 4096
"""Granted at a time: half a second of the fastest fetching."""

_AGAIN_S = 0.05
"""For who waits: the index has given new numbers by then, or the disk has synced some of what it was given."""

_SECOND_NS = 1_000_000_000


class Completion(NamedTuple):
    """A new object with all bytes of one version."""

    version: Version
    path: bytes
    number: int
    stamp: Stamp
    checksum: int


class Completions:
    def __init__(
        self,
        context: CacheContext,
        object_ids: ObjectIdAllocator,
        admission: Admission,
        committer: Committer,
        files: StagedFileTable,
        reclaim_queue: ReclaimQueue,
        known: KnownObjects,
        chunk_bytes: int,
    ) -> None:
        self._context = context
        self._maker = context.others.maker
        self._object_ids = object_ids
        self._admission = admission
        self._committer = committer
        self._files = files
        self._reclaim_queue = reclaim_queue
        self._chunk_bytes = chunk_bytes
        self._attached: dict[int, StagedFile] = {}
        """By number: those of a file that somebody has, until they are in the index."""
        self._closed = False
        self._known = known

    # -- what is granted ----------------------------------------------------------------------------------------------

    def grant_nowait(self) -> None:
        """Have some numbers and room granted, if staging goes on. To be called every now and then."""
        maker = self._maker
        if maker is None or self._closed or not self._known.told.is_set():
            return
        numbers, room_bytes = maker.granted()
        if numbers < _NUMBERS // 2 and self._object_ids.ready_nowait():
            self._unused(maker.grant(self._object_ids.grant_nowait(_NUMBERS)))
        wanted = self._wanted_bytes
        is_open = self._admission.open and not self._committer.is_behind
        if is_open and room_bytes < wanted // 2 and self._admission.has_room(wanted):
            self._admission.charge(wanted)
            maker.grant_room(wanted)

    async def wait_granted(self) -> bool:
        """Until there are numbers and room for the next second. False: there will not be, as things are."""
        maker = self._maker
        while maker is not None and self.on and self._admission.open and not self._closed:
            self.grant_nowait()
            numbers, room_bytes = maker.granted()
            has_room = room_bytes >= self._wanted_bytes // 4
            if has_room and numbers >= _NUMBERS // 4:
                return True
            if not has_room and not self._admission.has_room(self._wanted_bytes):
                return False
            await trio.sleep(_AGAIN_S)
        return False

    @property
    def _wanted_bytes(self) -> int:
        return grant_bytes(self._context.room.limit_bytes())

    @property
    def on(self) -> bool:
        """Files may be made: the data plane knows what is staged."""
        return self._known.told.is_set()

    @property
    def granted_bytes(self) -> int:
        """Room that is granted and not used."""
        return self._maker.granted()[1] if self._maker is not None and not self._closed else 0

    def close(self) -> None:
        """Nothing is granted any more; the data plane has ended. What it has not used comes back."""
        maker, self._closed = self._maker, True
        if maker is None:
            return
        _, room_bytes = maker.granted()
        self._unused(maker.grant(range(0)))
        self._context.room.written(room_bytes)
        self._context.room.release(room_bytes)

    def _unused(self, numbers: range) -> None:
        for number in numbers:
            self._object_ids.settle(number)

    # -- what has arrived ---------------------------------------------------------------------------------------------

    def enter(self, completions: Sequence[Completion]) -> None:
        """These were written just now."""
        rows = []
        now_s = int(self._context.clock())
        for completion in completions:
            room_bytes = self._room_bytes(completion.version.size)
            self._object_ids.used(completion.number)
            self._context.room.written(room_bytes)
            file = self._files.peek(completion.version)
            if file is not None:
                is_taken = self._attach(file, completion, room_bytes)
            else:
                attach = partial(self._attach, completion=completion, room_bytes=room_bytes)
                is_taken = self._files.coming(completion.version, attach)
            if not is_taken:
                self.broken(completion.number, completion.version.size, is_charged=True)
                continue
            rows.append(self._row(completion, room_bytes, now_s))
        if rows:
            self._context.metrics.add("staging_put_chunks", len(rows))
            self._context.metrics.add("staging_put_bytes", sum(row.size_bytes for row in rows))
            self._committer.arrived_nowait(rows, self._entered)

    def _attach(self, file: StagedFile, completion: Completion, room_bytes: int) -> bool:
        """Somebody asked a moment ago what is staged of it, when nothing was: this object is its own from now on.

        False: it has one, or is about to.
        """
        if file.object_id is not None or file.unsettled or file.stray is not None or file.present.count != 1:
            return False
        file.object_id, file.path, file.room_bytes = completion.number, completion.path, room_bytes
        file.created = True
        file.unsettled += 1
        file.stamp = completion.stamp
        file.element_bytes = RAW
        file.chunks.enter(ChunkRow(0, completion.checksum))
        file.present.add(0)
        file.verify(0)
        self._attached[completion.number] = file
        return True

    def broken(self, number: int, size: int, *, is_charged: bool = False) -> None:
        """Of an object of so many bytes nothing is to be used."""
        room_bytes = self._room_bytes(size)
        if not is_charged:
            self._object_ids.used(number)
            self._context.room.written(room_bytes)
        self._reclaim_queue.changes(number)
        self._reclaim_queue.retired.append((number, room_bytes))
        self._reclaim_queue.more.set()

    def _room_bytes(self, size: int) -> int:
        return blocks_bytes(size) + object_overhead_bytes(1)

    def _row(self, completion: Completion, room_bytes: int, now_s: int) -> Committed:
        size = completion.version.size
        stamp = completion.stamp if completion.stamp.ctime_ns % _SECOND_NS else None  # see `objects.stamps`
        return Committed(
            completion.number,
            True,
            completion.version,
            completion.path,
            self._chunk_bytes,
            True,
            size,
            room_bytes,
            now_s,
            (ChunkRow(0, completion.checksum),),
            stamp,
        )

    def _entered(self, rows: Sequence[Committed], is_durable: bool) -> None:
        """They are in the index, or never will be."""
        for row in rows:
            file = self._attached.pop(row.object_id, None)
            if is_durable:
                self._object_ids.settle(row.object_id)
            elif file is None:
                self.broken(row.object_id, row.version.size, is_charged=True)
            if file is not None:
                self._settle(file, row, is_durable=is_durable)
            else:
                self._files.landed(row.version)

    def _settle(self, file: StagedFile, row: Committed, *, is_durable: bool) -> None:
        if is_durable:
            file.has_row = True
            file.recorded, file.stored_path, file.stored_use_s = row.stamp, row.path, row.last_use_s
            if 0 in file.present:
                file.committed.add(0)
        else:
            self._reclaim_queue.give_up(file, [0])
        file.unsettled -= 1
        self._reclaim_queue.settled(file)
