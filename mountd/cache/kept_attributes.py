"""Attributes that are kept: of staged files of a source that never changes, so that later mounts need not ask for them.

Noted when a file is opened or warmed, written by and by, and read a directory at a time. What a kill costs is that the
source is asked once more. Event loop only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import trio

from mountd.base.attributes import Attributes
from mountd.base.kept_page import KeptPage
from mountd.base.seen import SEEN_BYTES, attributes_of, is_plain, seen_as
from mountd.cache.index import AttributesRow, IndexFailed, StagedRow, Stamp
from mountd.cache.objects import CacheContext, StagedFile
from mountd.cache.reading.whole_objects import right_objects

_MAX_WAITING = 65_536
"""Noted and not written: their files are not staged yet."""

_EVERY_S = 5.0
_AT_ONCE = 4096
"""Rows read or written together: some 20 ms."""

READ_AT_ONCE = 32
"""Objects that a thread should read and compare together: some 2 ms."""

_ROOM = 64
"""What is read ahead stops while so many times as much is still left."""

_DEVICE = _SIZE = struct.Struct("=Q")
_SIZE_AT, _DEVICE_AT = 32, 56
"""In a struct seen, mountd/native/seen.h."""


class KeptAttributes:
    """`run` is a task of the cache's nursery."""

    def __init__(self, context: CacheContext, *, on: bool) -> None:
        """`on`: the source never changes."""
        self.on = on
        self._context = context
        self._waiting: dict[StagedFile, Attributes] = {}
        self._known = bytearray()
        """A bit for each object whose attributes are kept already, as far as was read."""

    def note(self, file: StagedFile, attributes: Attributes) -> None:
        """`file` has these, and the source says so."""
        if not self.on or file in self._waiting or self._is_known(file.object_id):
            return
        if is_plain(attributes) and not attributes.file_system:
            self._waiting[file] = attributes
            if len(self._waiting) > _MAX_WAITING:
                del self._waiting[next(iter(self._waiting))]  # it may never be staged

    async def page(self, source_id: str, device: int, folder: bytes, after_id: int) -> KeptPage | None:
        """The next names in this directory; None: there are no more. `device`: what its file system is called now."""
        reader = self._context.index.reader
        try:
            rows = await self._context.threads.ask_index(reader.attributes_in, folder, source_id, after_id, _AT_ONCE)
        except IndexFailed as error:
            self._context.health.index_failed(error, "looking for attributes")
            return None
        if not rows:
            return None
        for row in rows:
            self._know(row.object_id)
        here = [row for row in rows if row.path.rpartition(b"/")[0] == folder and len(row.seen) == SEEN_BYTES]
        seen = bytearray(b"".join(row.seen for row in here))
        for index in range(len(here)):
            _DEVICE.pack_into(seen, index * SEEN_BYTES + _DEVICE_AT, device)
        names = [row.path.rpartition(b"/")[2] for row in here]
        return KeptPage(names, bytes(seen), [row.object_id for row in here], rows[-1].object_id)

    async def right(self, objects: Sequence[int]) -> list[StagedRow]:
        """Of these objects those that are right, and in memory then: see `whole_objects`."""
        context = self._context
        try:
            rows = await context.threads.ask_index(context.index.reader.rows, objects)
        except IndexFailed as error:
            context.health.index_failed(error, "looking for objects")
            return []
        return await context.threads.look(right_objects, context.disk, rows)

    def of_source(self, source_id: str, device: int, room_bytes: Callable[[], int]) -> KeptOfSource | None:
        """What is kept of this source; None: nothing is, or can be."""
        if not self.on:
            return None
        try:
            identity = self._context.index.reader.identity()
        except IndexFailed as error:
            self._context.health.index_failed(error, "opening the cache")
            return None
        return KeptOfSource(self, identity, source_id, device, room_bytes)

    def find_nowait(self, source_id: str, device: int, object_id: int) -> tuple[bytes, Attributes] | None:
        """The path of a staged file, and its attributes, if they are kept."""
        try:
            row = self._context.index.reader.attributes_of_quickly(object_id, source_id)
        except IndexFailed:
            return None
        attributes = attributes_of(row.seen, 0) if row is not None and len(row.seen) == SEEN_BYTES else None
        return (row.path, attributes._replace(device=device)) if row is not None and attributes is not None else None

    async def flush(self) -> None:
        """Tell the index what was noted, of files that are complete. A failure is counted, and the notes are lost."""
        ready = [file for file in self._waiting if file.has_row and file.complete and file.stored_path]
        for start in range(0, len(ready), _AT_ONCE):
            part = ready[start : start + _AT_ONCE]
            rows = [_row(file, self._waiting.pop(file)) for file in part]
            try:
                await self._context.threads.change_index(self._context.index.writer.keep_attributes, rows)
            except IndexFailed as error:
                self._context.health.index_failed(error, "keeping attributes")
                continue
            for row in rows:
                self._know(row.object_id)

    async def run(self) -> None:
        """Flush from time to time. Never returns."""
        while True:
            await trio.sleep(_EVERY_S)
            await self.flush()

    def _is_known(self, object_id: int | None) -> bool:
        if object_id is None:
            return False
        byte, bit = divmod(object_id, 8)
        return byte < len(self._known) and bool(self._known[byte] >> bit & 1)

    def _know(self, object_id: int) -> None:
        byte, bit = divmod(object_id, 8)
        if byte >= len(self._known):
            self._known.extend(bytes(byte + 1 + (1 << 10) - len(self._known)))
        self._known[byte] |= 1 << bit


class KeptOfSource:
    """What is kept of the source of one mount: `namespace.kept.KeptFiles`."""

    def __init__(
        self, kept: KeptAttributes, index_identity: int, source_id: str, device: int, room_bytes: Callable[[], int]
    ) -> None:
        """`device`: st_dev of its root. `room_bytes()`: memory for pages that nobody has asked for yet."""
        self.identity = index_identity
        self._kept = kept
        self._source_id = source_id
        self._device = device
        self._room_bytes = room_bytes

    async def page(self, folder: bytes, after_id: int) -> KeptPage | None:
        """The next names in this directory; None: there are no more."""
        return await self._kept.page(self._source_id, self._device, folder, after_id)

    async def right(self, page: KeptPage, begin: int) -> tuple[list[tuple[bytes, Stamp]], int]:
        """Of some of its names from index `begin` on those whose objects are right, with their stamps; where the next
        ones begin. None are, and it is the end, where there is no memory for their bytes."""
        end = min(begin + READ_AT_ONCE, len(page.names))
        objects = page.objects[begin:end]
        sizes = sum(_size(page.seen, index) for index in range(begin, end))
        if sizes * _ROOM > self._room_bytes():
            return [], len(page.names)
        names = dict(zip(objects, page.names[begin:end], strict=True))
        found = await self._kept.right(objects)
        return [(names[row.object_id], row.stamp) for row in found if row.stamp is not None], end

    def find_nowait(self, object_id: int) -> tuple[bytes, Attributes] | None:
        """The path and the attributes of a staged file."""
        return self._kept.find_nowait(self._source_id, self._device, object_id)


def _size(seen: bytes, index: int) -> int:
    return int(_SIZE.unpack_from(seen, index * SEEN_BYTES + _SIZE_AT)[0])


def _row(file: StagedFile, attributes: Attributes) -> AttributesRow:
    assert file.object_id is not None
    assert file.stored_path is not None
    return AttributesRow(file.object_id, file.stored_path, seen_as(attributes._replace(device=0)))
