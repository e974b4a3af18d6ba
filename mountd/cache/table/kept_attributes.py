"""Attributes that are kept: of staged files of a source that never changes, so that later mounts need not ask for them.

Noted when a file is opened or warmed, written by and by, and read a directory at a time. What a kill costs is that the
source is asked once more. Event loop only.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import trio

from mountd.base.attributes import Attributes
from mountd.base.seen import SEEN_BYTES, is_plain, seen_as
from mountd.cache.index import AttributesRow, IndexFailed
from mountd.cache.objects import CacheContext, StagedFile

_MAX_WAITING = 65_536
"""Noted and not written: their files are not staged yet."""

_EVERY_S = 5.0
_AT_ONCE = 4096
"""Rows read or written together: some 20 ms."""

_DEVICE = struct.Struct("=Q")
_DEVICE_AT = 56
"""In a struct seen, mountd/native/seen.h."""


class KeptPage(NamedTuple):
    """Some names of one directory."""

    names: list[bytes]
    seen: bytes
    last_id: int


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
        return KeptPage([row.path.rpartition(b"/")[2] for row in here], bytes(seen), rows[-1].object_id)

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


def _row(file: StagedFile, attributes: Attributes) -> AttributesRow:
    assert file.object_id is not None
    assert file.stored_path is not None
    return AttributesRow(file.object_id, file.stored_path, seen_as(attributes._replace(device=0)))
