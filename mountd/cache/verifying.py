"""Verifying before anybody waits for it: whole files, what a sequential reader wants next, small files of a directory.

`Verifying`: files that somebody wants passed through and of which nobody knows enough. An object without its stamp, or
from before there were stamps, is read by chunks meanwhile, each verified when it is first used. Once all of them were
found right the file is sound, and its new stamp is noted for later daemons.

`VerifyingAhead`: a chunk is verified whole when its first byte is wanted, and that reader waits for it: 3 ms for 8 MiB
in memory, more from a disk. Read by chunks without any ahead a file took 1.5 times as long as one that is not verified.
So whoever reads the first bytes of a chunk is taken to go on, and the next two are verified meanwhile. A random reader
begins at the start of a chunk once in 64 reads; for it no more than two chunks are read that it may want later. Never
waits and never fails; what does not fit into the queue is verified by its reader.

`ObjectsAhead`: whoever answers reads without us compares nothing (`native/plane/staged.c`): it is told here which
objects are right. Directories that a job has come to are gone through, the last one first, while no reader waits for
the disk and as far as the memory goes that there was at first. They are in memory then.

Event loop only. What is damaged is forgotten as when a reader meets it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING

import trio

from hfs.mountd.cache.index import IndexFailed, StagedRow
from hfs.mountd.cache.objects.context import CacheContext
from hfs.mountd.cache.objects.file import StagedFile
from hfs.mountd.cache.objects.reads import right_objects
from hfs.mountd.core.background import guarded
from hfs.mountd.core.errors import StagingError
from hfs.mountd.kernel import DataPlane
from hfs.policies.geometry import Extent

if TYPE_CHECKING:
    from hfs.mountd.cache.reader import StagedReader

_STREAMS = 4
"""Chunks of a file at a time: two are hashed while two come from the disk."""

_MAX_WAITING = 4096
"""Files that are asked for and wait; further ones are asked for again when they are opened again."""


class Verifying:
    """`run` is a task of the cache's nursery. Event loop only."""

    def __init__(self, reader: StagedReader) -> None:
        self._reader = reader
        self._wanted: OrderedDict[StagedFile, trio.Event] = OrderedDict()
        self._more = trio.Event()

    async def wait_verified(self, file: StagedFile) -> None:
        """Have the chunks of `file` verified that were not yet; who gives up leaves that going on. Never fails."""
        await self.verify_soon(file).wait()

    def verify_soon(self, file: StagedFile) -> trio.Event:
        """The same, for later; set when it is done."""
        done = self._wanted.get(file)
        if done is None:
            done = trio.Event()
            if len(self._wanted) < _MAX_WAITING:
                self._wanted[file] = done
                self._more.set()
            else:
                done.set()
        return done

    async def run(self) -> None:
        """Verify file after file. Never returns."""
        while True:
            await self._more.wait()
            self._more = trio.Event()
            while self._wanted:
                file, done = next(iter(self._wanted.items()))
                try:
                    await guarded("staging: verifying", self._verify, file)
                finally:
                    del self._wanted[file]
                    done.set()
                del file, done

    async def _verify(self, file: StagedFile) -> None:
        left = [index for index in file.present if index not in file.verified]
        left.reverse()

        async def stream() -> None:
            while left:
                try:
                    await self._reader.verify(file, left.pop())
                except StagingError:
                    pass  # it is forgotten, or the file has gone

        async with trio.open_nursery() as nursery:
            for _ in range(min(_STREAMS, len(left))):
                nursery.start_soon(stream)


_CHUNKS = 2
"""One is hashed while the disk brings the other."""

_MAX_QUEUED = 64
"""Of all readers."""


class VerifyingAhead:
    """`run` is a task of the cache's nursery. Event loop only."""

    def __init__(self) -> None:
        self._queue, self._queued = trio.open_memory_channel[tuple[StagedFile, int]](_MAX_QUEUED)
        self._waiting: set[tuple[StagedFile, int]] = set()

    def reads_nowait(self, file: StagedFile, extent: Extent) -> None:
        """Somebody reads `extent` of a file of several chunks."""
        if extent.start % file.chunk_bytes:
            return
        index = extent.start // file.chunk_bytes
        for wanted in range(index + 1, index + 1 + _CHUNKS):
            if wanted not in file.present or wanted in file.verified or (file, wanted) in self._waiting:
                continue
            try:
                self._queue.send_nowait((file, wanted))
            except trio.WouldBlock:
                return
            self._waiting.add((file, wanted))

    async def run(self, reader: StagedReader) -> None:
        """Verify one after the other; two of these run side by side. Never returns."""
        async for file, index in self._queued:
            if index in file.present and index not in file.verified:
                await guarded("staging: verifying ahead", _verify, reader, file, index)
            self._waiting.discard((file, index))


async def _verify(reader: StagedReader, file: StagedFile, index: int) -> None:
    try:
        await reader.verify(file, index)
    except StagingError:
        pass  # forgotten, or gone: its reader will see


_ROWS = 4096
"""Names read from the index at a time: some 20 ms of a thread."""

_OBJECTS, _OBJECTS_BYTES = 32, 4 << 20
"""Compared at a time: some 2 ms."""

_LEAST_BYTES = 4096
"""What the smallest of them takes of the memory."""

_FOLDERS = 4096
"""That wait. More: the first ones are left to their readers."""

_REST_S = 0.002
"""While a reader waits for the disk."""


class ObjectsAhead:
    """`run` is a task of the cache's nursery."""

    def __init__(self, context: CacheContext, answers: DataPlane | None) -> None:
        """`answers`: who answers; None: nobody."""
        self._context = context
        self._answers = answers
        self._folders: deque[int] = deque(maxlen=_FOLDERS)
        self._left_bytes = 0
        self._more = trio.Event()
        self._gone: set[int] | None = None
        """While objects are compared: those that are not what they were meanwhile."""

    def begin(self, room_bytes: int) -> None:
        """Files are read without being opened: so many bytes of them may be read ahead."""
        self._left_bytes = room_bytes
        self._more.set()

    def add(self, folder: int) -> None:
        """Somebody looks at the files of this directory; see `index.Folder`."""
        if self._answers is not None:
            self._folders.append(folder)
            self._more.set()

    def take(self, object_id: int) -> None:
        """This object is about to change or go."""
        if self._answers is not None:
            if self._gone is not None:
                self._gone.add(object_id)
            self._answers.take_object(object_id)

    async def run(self) -> None:
        """Never returns."""
        while True:
            await self._more.wait()
            self._more = trio.Event()
            while self._folders and self._left_bytes > 0:
                await self._read(self._folders.pop())

    async def _read(self, folder: int) -> None:
        context, name = self._context, b""
        try:
            while rows := await context.threads.ask_index(context.index.attributes.after, folder, name, _ROWS):
                name = rows[-1].name
                for begin in range(0, len(rows), _OBJECTS):
                    if self._left_bytes <= 0:
                        return
                    await self._compare([row.object_id for row in rows[begin : begin + _OBJECTS]])
        except IndexFailed as error:
            context.health.index_failed(error, "reading ahead")

    async def _compare(self, objects: list[int]) -> None:
        context = self._context
        while context.threads.readers_wait:  # noqa: ASYNC110 - an event at each read would cost the readers
            await trio.sleep(_REST_S)
        gone: set[int] = set()
        self._gone = gone
        found: list[StagedRow] = []
        try:
            rows = await context.threads.ask_index(context.index.reader.rows, objects)
            while rows:
                part, left_bytes = [rows.pop()], _OBJECTS_BYTES
                while rows and (left_bytes := left_bytes - part[-1].version.size) >= rows[-1].version.size:
                    part.append(rows.pop())
                found += await context.threads.look(right_objects, context.disk, part)
        finally:
            self._gone = None
        for row in found:
            self._left_bytes -= max(row.version.size, _LEAST_BYTES)
            if self._answers is not None and row.stamp is not None and row.object_id not in gone:
                self._answers.put_object(row.object_id, *row.stamp, row.version.size)
