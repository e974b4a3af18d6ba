"""Row updates: what of staged files the index should learn by and by: last uses, paths, stamps.

None of it decides which bytes are whose, so it waits up to half a minute and is written for many files together. What a
kill costs is the order of some evictions, and that some objects are verified once more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import trio

from hfs.mountd.base.version import Version
from hfs.mountd.cache.index import IndexFailed, Stamp
from hfs.mountd.cache.objects import CacheContext, StagedFile, stamp_to_keep
from hfs.mountd.cache.objects.stamps_by_number import StampsByNumber
from hfs.policies.cache.eviction import USES_FLUSHED_EVERY_S

_MAX_WAITING = 65_536
"""Of each kind; beyond it they are dropped, as they only order evictions."""


class RowUpdates:
    """`use_every_s`: how exactly the index knows last uses. `run` is a task of the cache's nursery. Event loop only."""

    def __init__(self, context: CacheContext, use_every_s: int) -> None:
        self._context = context
        self._use_every_s = use_every_s
        self._uses: dict[int, int] = {}
        self._paths: dict[int, bytes] = {}
        self._stamps: dict[int, tuple[Version, Stamp]] = {}
        self._told = StampsByNumber()
        """In which time of `use_every_s` overlays were told of an object last; 0: never."""

    def note(self, file: StagedFile) -> None:
        """Remember what is new of the file: its last use, if that is not known exactly enough, its path, its stamp."""
        if file.object_id is None or not file.has_row:
            return
        use_s = file.last_use_ns // 1_000_000_000
        if use_s >= file.stored_use_s + self._use_every_s and len(self._uses) < _MAX_WAITING:
            file.stored_use_s = use_s
            self._uses[file.object_id] = use_s
        if file.path and file.path != file.stored_path and len(self._paths) < _MAX_WAITING:
            file.stored_path = file.path
            self._paths[file.object_id] = file.path
        stamp = stamp_to_keep(file, len(file.committed))
        if stamp is not None and stamp != file.recorded and len(self._stamps) < _MAX_WAITING:
            file.recorded = stamp
            self._stamps[file.object_id] = file.version, stamp

    def used(self, object_id: int) -> None:
        """The data plane has answered with this object, for the first time in a while."""
        if len(self._uses) < _MAX_WAITING:
            self._uses[object_id] = int(self._context.clock())

    def told(self, object_ids: Iterable[int]) -> None:
        """Overlays were told of these: whoever has asked is about to use them."""
        now = 1 + int(self._context.clock() // self._use_every_s)
        for number in object_ids:
            if self._told[number] != now:
                self._told[number] = now
                self.used(number)

    def drop(self, object_ids: Collection[int]) -> None:
        """These objects have no row any more."""
        self._told.forget(object_ids)
        for number in object_ids:
            self._uses.pop(number, None)
            self._paths.pop(number, None)
            self._stamps.pop(number, None)

    async def flush(self) -> None:
        """Tell the index what was noted. A failure is counted, and the notes are lost."""
        if not self._uses and not self._paths and not self._stamps:
            return
        uses = [(use_s, number) for number, use_s in self._uses.items()]
        paths = [(path, number) for number, path in self._paths.items()]
        stamps = [(number, *known) for number, known in self._stamps.items()]
        self._uses, self._paths, self._stamps = {}, {}, {}
        try:
            await self._context.threads.change_index(self._context.index.writer.touch, uses, paths)
            await self._context.threads.change_index(self._context.index.writer.stamp, stamps)
        except IndexFailed as error:
            self._context.health.index_failed(error, "noting last uses")

    async def run(self) -> None:
        """Flush from time to time. Never returns."""
        while True:
            await trio.sleep(USES_FLUSHED_EVERY_S)
            await self.flush()
