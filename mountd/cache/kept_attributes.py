"""Attributes that are kept: of staged files of a source that never changes, so that later mounts need not ask for them.

Noted when a file is opened or warmed, written by and by, and read a directory at a time, as long as that directory is
as it was (`index.attributes`). A mount that does not believe that its source never changes has them all forgotten.
What a kill costs is that the source is asked once more. Event loop only.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal, NamedTuple, TypeVar

import trio

from hfs.mountd.cache.index import AttributesRow, Folder, IndexFailed, StagedRow
from hfs.mountd.cache.objects.context import CacheContext
from hfs.mountd.cache.objects.file import StagedFile
from hfs.mountd.cache.objects.numbers import NumberSet
from hfs.mountd.cache.objects.reads import right_objects
from hfs.mountd.core.attributes import SEEN_BYTES, Attributes, attributes_of, has_one_name, seen_as
from hfs.mountd.kernel import DataPlane

AttributesWanted = Literal["kept", "forgotten", "left"]

Value = TypeVar("Value")

_MAX_WAITING = 65_536
"""Noted and not written: their files are not staged yet."""

_EVERY_S = 5.0
_AT_ONCE = 1024
"""Rows read or written together: some 5 ms of a thread, and as much of the event loop."""

_DROPPED_AT_ONCE = 4096

_DEVICE = struct.Struct("=Q")
_DEVICE_AT = 56
"""In a struct seen, mountd/native/seen.h."""


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
    """Small objects of directories that a job has come to, compared and in memory before they are read.

    Whoever answers reads without us compares nothing (`native/plane/staged.c`): it is told here which objects are
    right. Directories are gone through, the last one first, while no reader waits for the disk and as far as the memory
    goes that there was at first. Event loop only. What is damaged is forgotten when a reader meets it.

    `run` is a task of the cache's nursery.
    """

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


class StoredPage(NamedTuple):
    """Some names: regular files with one name, on the file system of the source's root."""

    names: list[bytes]
    seen: bytes
    """What was seen of each; see `core.attributes`."""
    objects: list[int]
    """The number of what is staged of each."""
    last_name: bytes
    """Where the next page begins."""


class SeenObject(NamedTuple):
    """A file as its directory shows it, that is, or will be, an object."""

    number: int
    """0: of a file that has none yet."""
    source_id: str
    directory: Attributes
    name: bytes
    seen: bytes
    """As in `core.attributes`, of a file that is plain, on the file system of its directory."""


class StoredAttributes:
    """Of the source of one mount, once that is known: `namespace.kept.StoredFiles`. `run` is a task of the cache's
    nursery."""

    def __init__(self, context: CacheContext, ahead: ObjectsAhead, wanted: AttributesWanted) -> None:
        self._wanted = wanted
        self.on = wanted == "kept"
        """They are kept in this mount."""
        self._context = context
        self._ahead = ahead
        self._waiting: dict[StagedFile | int, SeenObject] = {}
        """By number those without a StagedFile."""
        self._written = NumberSet()
        """Kept already, as far as we know."""
        self._forgetting = 0
        """Somebody has some forgotten: none is noted or found meanwhile."""
        self._flushing = trio.Lock()
        self._identity: int | None = None
        self._source_id, self._device = "", 0

    @property
    def identity(self) -> int:
        """A number that another index hardly has; see `AttributeRows.identity_nowait`."""
        assert self._identity is not None, "of_source comes first"
        return self._identity

    def note(self, file: StagedFile, directory: Attributes, name: bytes, attributes: Attributes) -> None:
        """`file` has these attributes and this name in `directory`, and the source says so."""
        if not self.on or self._forgetting or file in self._waiting or file.object_id in self._written:
            return
        is_of_file = attributes.version(file.version.source_id) == file.version and not attributes.file_system
        if is_of_file and has_one_name(seen := seen_as(attributes)) and not directory.file_system:
            self._note(file, SeenObject(0, file.version.source_id, directory, name, seen))

    def note_object(self, one: SeenObject) -> None:
        """`note` of a file without a StagedFile."""
        if not self.on or self._forgetting or one.number in self._written or one.directory.file_system:
            return
        if has_one_name(one.seen):  # else who says that one of its names has changed need not say so of this one
            self._note(one.number, one)

    def _note(self, what: StagedFile | int, seen: SeenObject) -> None:
        self._waiting[what] = seen
        if len(self._waiting) > _MAX_WAITING:
            del self._waiting[next(iter(self._waiting))]  # it may never be staged

    def of_source(self, source_id: str, device: int) -> StoredAttributes | None:
        """What is kept of this source; None: nothing is, or can be. `device`: what its file system is called now."""
        if not self.on:
            return None
        try:
            self._identity = self._context.index.attributes.identity_nowait()
        except IndexFailed as error:
            self._context.health.index_failed(error, "opening the cache")
            return None
        self._source_id, self._device = source_id, device
        return self

    async def page(self, directory: Attributes, after_name: bytes) -> StoredPage | None:
        """The next names in this directory; None: there are no more."""
        if self._forgetting:
            return None
        folder = self._folder(directory)
        if not after_name:
            self._ahead.add(folder.number)
        asked = self._ask(self._context.index.attributes.after, folder.number, after_name, _AT_ONCE)
        rows: list[AttributesRow] = await asked or []
        if not rows:
            return None
        self._written.add(*(row.object_id for row in rows))
        here = [row for row in rows if len(row.seen) == SEEN_BYTES and folder.proves(row)]
        seen = bytearray(b"".join(row.seen for row in here))
        for index in range(len(here)):
            _DEVICE.pack_into(seen, index * SEEN_BYTES + _DEVICE_AT, self._device)
        return StoredPage([row.name for row in here], bytes(seen), [row.object_id for row in here], rows[-1].name)

    def named_nowait(self, directory: Attributes, name: bytes) -> Attributes | None:
        """Of the file with this name in this directory, if they are kept."""
        folder = self._folder(directory)
        find = self._context.index.attributes.named_nowait
        row = None if self._forgetting else self._look(find, folder.number, name)
        return _attributes(row, folder, self._device) if row is not None else None

    def _look(self, find: Callable[..., AttributesRow | None], *what: object) -> AttributesRow | None:
        try:
            return find(*what)
        except IndexFailed as error:
            self._context.health.index_failed(error, "looking for attributes")
            return None

    def _folder(self, directory: Attributes) -> Folder:
        return Folder.of(self.identity, self._source_id, directory)

    async def flush(self) -> None:
        """Tell the index what was noted, of files that are complete. A failure is counted, and the notes are lost."""
        if self._identity is None:
            return
        async with self._flushing:
            waiting = [what for what in self._waiting if isinstance(what, int)]
            ready: list[StagedFile | int] = [
                what for what in self._waiting if isinstance(what, StagedFile) and what.has_row and what.complete
            ]
            for start in range(0, len(waiting), _AT_ONCE):
                part = waiting[start : start + _AT_ONCE]
                ready += await self._ask(self._context.index.reader.entered, part) or ()
            for start in range(0, len(ready), _AT_ONCE):
                rows = [row for what in ready[start : start + _AT_ONCE] if (row := self._take(what))]
                if rows and await self._change(self._context.index.attributes.keep, rows):
                    self._written.add(*(row.object_id for row in rows))

    @asynccontextmanager
    async def forgetting_below(self, path: bytes) -> AsyncIterator[None]:
        """What is kept of files at and below this path is not found by its name any more, in this mount nor in later
        ones. Until the block ends nothing is noted or found. Raises IndexFailed."""
        self._forgetting += 1
        try:
            async with self._flushing:
                self._waiting.clear()
                identity, after = self._identity, 0
                rows, threads = self._context.index.attributes, self._context.threads
                while identity is not None and (
                    found := await threads.ask_index(rows.below, path.strip(b"/"), after, _AT_ONCE)
                ):
                    after = found[-1].object_id
                    await threads.change_index(rows.forget_those, [row.object_id for row in found])
                    self._written.discard(*(row.object_id for row in found))
                yield
        finally:
            self._forgetting -= 1

    async def run(self) -> None:
        """Flush from time to time, after what is of no use any more has gone. Never returns."""
        if self._wanted == "forgotten":  # nobody finds them any more: see `opening`
            while await self._change(self._context.index.attributes.drop_some, _DROPPED_AT_ONCE):
                pass
        while True:
            await trio.sleep(_EVERY_S)
            await self.flush()

    def _take(self, what: StagedFile | int) -> AttributesRow | None:
        """Its row, if it is still noted, and still has an object."""
        noted = self._waiting.pop(what, None)
        number = what if isinstance(what, int) else what.object_id
        if noted is None or number is None:
            return None
        seen = bytearray(noted.seen)
        _DEVICE.pack_into(seen, _DEVICE_AT, 0)
        return Folder.of(self.identity, noted.source_id, noted.directory).row(number, noted.name, bytes(seen))

    async def _ask(self, function: Callable[..., Value], *args: object) -> Value | None:
        try:
            return await self._context.threads.ask_index(function, *args)
        except IndexFailed as error:
            self._context.health.index_failed(error, "looking for attributes")
            return None

    async def _change(self, function: Callable[..., int], *args: object) -> int:
        """How many rows it has changed."""
        try:
            return await self._context.threads.change_index(function, *args)
        except IndexFailed as error:
            self._context.health.index_failed(error, "keeping attributes")
            return 0


def _attributes(row: AttributesRow, folder: Folder, device: int) -> Attributes | None:
    """None if it is not a row that was written of a file in this directory."""
    if len(row.seen) != SEEN_BYTES or not folder.proves(row):
        return None
    found = attributes_of(row.seen, 0)
    return found._replace(device=device) if found is not None else None
