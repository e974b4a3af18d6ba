"""Attributes that are kept: of staged files of a source that never changes, so that later mounts need not ask for them.

Noted when a file is opened or warmed, written by and by, and read a directory at a time, as long as that directory is
as it was (`index.attribute_rows`). A mount that does not believe that its source never changes has them all forgotten.
What a kill costs is that the source is asked once more. Event loop only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import trio

from mountd.base.attributes import Attributes
from mountd.base.kept_page import KeptFile, KeptPage
from mountd.base.seen import SEEN_BYTES, attributes_of, is_plain, seen_as
from mountd.cache.index import AttributesRow, Folder, IndexFailed
from mountd.cache.objects import CacheContext, StagedFile
from mountd.cache.reading.objects_ahead import ObjectsAhead

Value = TypeVar("Value")

_MAX_WAITING = 65_536
"""Noted and not written: their files are not staged yet."""

_EVERY_S = 5.0
_AT_ONCE = 4096
"""Rows read, written or dropped together: some 20 ms of a thread."""

_DEVICE = struct.Struct("=Q")
_DEVICE_AT = 56
"""In a struct seen, mountd/native/seen.h."""


class _Noted(NamedTuple):
    directory: Attributes
    name: bytes
    attributes: Attributes


class KeptAttributes:
    """`run` is a task of the cache's nursery."""

    def __init__(self, context: CacheContext, ahead: ObjectsAhead, *, on: bool) -> None:
        """`on`: the source never changes."""
        self._on = on
        self._context = context
        self._ahead = ahead
        self._waiting: dict[StagedFile, _Noted] = {}
        self._known = bytearray()
        """A bit for each object whose attributes are kept already, as far as was read."""
        self._identity: int | None = None
        self._drops_lost = False

    def note(self, file: StagedFile, directory: Attributes, name: bytes, attributes: Attributes) -> None:
        """`file` has these attributes and this name in `directory`, and the source says so."""
        if not self._on or file in self._waiting or self._is_known(file.object_id):
            return
        is_of_file = attributes.version(file.version.source_id) == file.version
        if is_of_file and is_plain(attributes) and not attributes.file_system and not directory.file_system:
            self._waiting[file] = _Noted(directory, name, attributes)
            if len(self._waiting) > _MAX_WAITING:
                del self._waiting[next(iter(self._waiting))]  # it may never be staged

    def of_source(self, source_id: str, device: int, *, is_fresh: bool) -> KeptOfSource | None:
        """What is kept of this source; None: nothing is, or can be. `device`: what its file system is called now.
        `is_fresh`: no kernel holds anything that an earlier daemon has told."""
        if not self._on:
            return None
        try:
            self._identity = self._context.index.attributes.identity_nowait()
        except IndexFailed as error:
            self._context.health.index_failed(error, "opening the cache")
            return None
        self._drops_lost = is_fresh
        return KeptOfSource(self, self._identity, source_id, device)

    async def page(self, folder: Folder, device: int, after_name: bytes) -> KeptPage | None:
        """The next names in this directory; None: there are no more."""
        if not after_name:
            self._ahead.add(folder.number)
        asked = self._ask(self._context.index.attributes.after, folder.number, after_name, _AT_ONCE)
        rows: list[AttributesRow] = await asked or []
        if not rows:
            return None
        for row in rows:
            self._know(row.object_id)
        here = [row for row in rows if len(row.seen) == SEEN_BYTES and folder.proves(row)]
        seen = bytearray(b"".join(row.seen for row in here))
        for index in range(len(here)):
            _DEVICE.pack_into(seen, index * SEEN_BYTES + _DEVICE_AT, device)
        return KeptPage([row.name for row in here], bytes(seen), [row.object_id for row in here], rows[-1].name)

    def named_nowait(self, folder: Folder, device: int, name: bytes) -> Attributes | None:
        """Of the file with this name in this directory."""
        try:
            row = self._context.index.attributes.named_nowait(folder.number, name)
        except IndexFailed as error:
            self._context.health.index_failed(error, "looking for attributes")
            return None
        return _attributes(row, folder, device) if row is not None else None

    def of_object_nowait(self, object_id: int) -> AttributesRow | None:
        """What is kept of the file that is, or was, staged as this object. Not proven."""
        try:
            return self._context.index.attributes.of_object_nowait(object_id)
        except IndexFailed as error:
            self._context.health.index_failed(error, "looking for attributes")
            return None

    async def flush(self) -> None:
        """Tell the index what was noted, of files that are complete. A failure is counted, and the notes are lost."""
        if self._identity is None:
            return
        ready = [file for file in self._waiting if file.has_row and file.complete]
        for start in range(0, len(ready), _AT_ONCE):
            rows = [row for file in ready[start : start + _AT_ONCE] if (row := self._take(file, self._identity))]
            if await self._change(self._context.index.attributes.keep, rows):
                for row in rows:
                    self._know(row.object_id)

    async def run(self) -> None:
        """Flush from time to time, after what is of no use any more has gone. Never returns."""
        if not self._on:
            await self._forget_all()
        while True:
            await trio.sleep(_EVERY_S)
            if self._drops_lost:
                self._drops_lost = False
                await self._drop(lost_only=True)
            await self.flush()

    async def _forget_all(self) -> None:
        """What this mount does not see to stay right is never believed again."""
        rows = self._context.index.attributes
        if await self._ask(rows.last_object) and await self._change(rows.renew):
            await self._drop(lost_only=False)

    async def _drop(self, *, lost_only: bool) -> None:
        rows = self._context.index.attributes
        end = (await self._ask(rows.last_object) or 0) + 1
        for start in range(1, end, _AT_ONCE):
            objects = range(start, min(start + _AT_ONCE, end))
            await self._change(partial(rows.drop, objects, lost_only=lost_only))

    def _take(self, file: StagedFile, identity: int) -> AttributesRow | None:
        """Its row, if it is still noted, and still has an object."""
        noted = self._waiting.pop(file, None)
        if noted is None or file.object_id is None:
            return None
        folder = Folder(identity, file.version.source_id, noted.directory)
        return folder.row(file.object_id, noted.name, seen_as(noted.attributes._replace(device=0)))

    async def _ask(self, function: Callable[..., Value], *args: object) -> Value | None:
        try:
            return await self._context.threads.ask_index(function, *args)
        except IndexFailed as error:
            self._context.health.index_failed(error, "looking for attributes")
            return None

    async def _change(self, function: Callable[..., object], *args: object) -> bool:
        try:
            await self._context.threads.change_index(function, *args)
        except IndexFailed as error:
            self._context.health.index_failed(error, "keeping attributes")
            return False
        return True

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

    def __init__(self, kept: KeptAttributes, index_identity: int, source_id: str, device: int) -> None:
        """`device`: st_dev of its root."""
        self.identity = index_identity
        self._kept = kept
        self._source_id = source_id
        self._device = device

    def folder(self, directory: Attributes) -> int:
        """The number of a directory as it is."""
        return self._folder(directory).number

    async def page(self, directory: Attributes, after_name: bytes) -> KeptPage | None:
        """The next names in this directory; None: there are no more."""
        return await self._kept.page(self._folder(directory), self._device, after_name)

    def named_nowait(self, directory: Attributes, name: bytes) -> Attributes | None:
        """Of the file with this name in this directory, if they are kept."""
        return self._kept.named_nowait(self._folder(directory), self._device, name)

    def of_object_nowait(
        self, object_id: int, attributes_of_folder: Callable[[int], Attributes | None]
    ) -> KeptFile | None:
        """The file that is, or was, staged as this object."""
        row = self._kept.of_object_nowait(object_id)
        directory = attributes_of_folder(row.folder) if row is not None else None
        if row is None or directory is None:
            return None
        attributes = _attributes(row, self._folder(directory), self._device)
        return KeptFile(row.folder, row.name, attributes) if attributes is not None else None

    def _folder(self, directory: Attributes) -> Folder:
        return Folder(self.identity, self._source_id, directory)


def _attributes(row: AttributesRow, folder: Folder, device: int) -> Attributes | None:
    """None if it is not a row that was written of a file in this directory."""
    if len(row.seen) != SEEN_BYTES or not folder.proves(row):
        return None
    found = attributes_of(row.seen, 0)
    return found._replace(device=device) if found is not None else None
