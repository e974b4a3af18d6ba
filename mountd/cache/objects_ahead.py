"""`ObjectsAhead`: small objects of directories that a job has come to, compared and in memory before they are read.

Whoever answers reads without us compares nothing (`native/plane/staged.c`): it is told here which objects are right.
Directories are gone through, the last one first, while no reader waits for the disk and as far as the memory goes that
there was at first. Event loop only. What is damaged is forgotten when a reader meets it.
"""

from __future__ import annotations

from collections import deque

import trio

from hfs.mountd.cache.index import StagedRow
from hfs.mountd.cache.objects.context import CacheContext
from hfs.mountd.cache.objects.reads import right_objects
from hfs.mountd.kernel import DataPlane

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
        with context.health.index_faults("reading ahead"):
            while rows := await context.threads.ask_index(context.index.attributes.after, folder, name, _ROWS):
                name = rows[-1].name
                for begin in range(0, len(rows), _OBJECTS):
                    if self._left_bytes <= 0:
                        return
                    await self._compare([row.object_id for row in rows[begin : begin + _OBJECTS]])

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
