"""Reclaim queue: what is to be given up, decided at once and carried out by the reclaimer later.

Here everything is plain state on the event loop: a chunk that is given up is not used from that very moment on, and
nobody can pin or use a file between the look at it and the mark on it. The disk and the index are the reclaimer's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from hfs.mountd.base.version import Version
from hfs.mountd.cache.objects import CacheContext, Descriptors, StagedFile, recall


@dataclass(frozen=True, slots=True)
class Repair:
    """Chunks of one file that were given up: forgotten by the index first, then punched."""

    file: StagedFile
    object_id: int
    indexes: list[int]


class ReclaimQueue:
    """`more` is set whenever something is added; the reclaimer takes out of the other public attributes."""

    def __init__(
        self, context: CacheContext, descriptors: Descriptors, changing: Sequence[Callable[[int], object]] = ()
    ) -> None:
        """All of `changing` are told of each object before it changes or goes."""
        self._changing = changing
        self._context = context
        self.descriptors = descriptors
        self.more = trio.Event()
        self.repairs: deque[Repair] = deque()
        self.retired: deque[tuple[int, int]] = deque()
        """Objects that never got a row: (number, bytes of room)."""
        self.evictions: dict[int, Version] = {}
        """Files that go as a whole, by object number."""
        self.emptied: set[int] = set()
        """Of these, what goes only if it holds nothing when its turn comes: a put may come before."""

    @property
    def empty(self) -> bool:
        """Nothing waits for the reclaimer."""
        return not (self.repairs or self.retired or self.evictions)

    def changes(self, object_id: int) -> None:
        """This object is about to change or to go."""
        for tell in self._changing:
            tell(object_id)

    def evict(self, object_id: int, version: Version) -> None:
        """This object goes, unless it is busy when its turn comes."""
        self.evictions[object_id] = version
        self.emptied.discard(object_id)
        self.more.set()

    def give_up(self, file: StagedFile, indexes: Sequence[int]) -> None:
        """Chunks of the file are not to be used any more, from this moment on. Those not present are ignored."""
        dropped = [index for index in indexes if index in file.present]
        if not dropped or file.object_id is None:
            return
        for index in dropped:
            file.drop(index)
            file.bar(index)
        self.changes(file.object_id)
        file.unsettled += 1
        self.repairs.append(Repair(file, file.object_id, dropped))
        self.more.set()

    def lost(self, file: StagedFile) -> None:
        """The object of the file is gone from the disk: so are all its chunks. The next put makes it anew."""
        if file.object_id is not None:
            file.created = False
            file.doubt()
            fd = self.descriptors.discard(file.object_id)
            if fd is not None:
                self._context.disk.io.close(fd)
            self.give_up(file, list(file.present))

    def supersede(self, file: StagedFile) -> None:
        """A newer version of the file exists: what is staged of this one goes as soon as it is not open."""
        recall(file)
        file.superseded = True
        self.settled(file)

    def settled(self, file: StagedFile) -> None:
        """Something about the file came to an end: look whether it is still wanted."""
        self.retire_if_empty(file)
        if file.object_id is None or file.busy:
            return
        if file.superseded and not file.has_row:
            self.give_up(file, list(file.present))  # it was open when it was found wrong
        elif file.superseded:
            self.evict(file.object_id, file.version)
        elif not file.present and file.object_id not in self.evictions:
            self.evict(file.object_id, file.version)
            self.emptied.add(file.object_id)

    def retire_if_empty(self, file: StagedFile) -> None:
        """Remove the object of a file that has no chunk and no row, and none on the way."""
        if file.object_id is None or file.has_row or file.unsettled or file.present:
            return
        number, room_bytes = file.detach()
        assert number is not None
        self.retired.append((number, room_bytes))
        self.more.set()
