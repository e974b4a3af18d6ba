"""Which StagedFile belongs to a version: from memory, else from the index.

There is one StagedFile per version at a time: whoever holds one keeps it findable, and the most recent ones are kept in
any case. The index is asked from the event loop; for a file of very many chunks in a thread, once however many ask. A
broken index is no reason to fail: the file then counts as not staged.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from weakref import WeakValueDictionary

import trio

from hfs.mountd.cache.index import ChunkRow, FoundRow, IndexFailed, StagedRow
from hfs.mountd.cache.objects.changes import ReclaimQueue
from hfs.mountd.cache.objects.codec import RAW
from hfs.mountd.cache.objects.context import CacheContext
from hfs.mountd.cache.objects.file import StagedFile
from hfs.mountd.cache.objects.numbers import NumberSet
from hfs.mountd.cache.rows import RowUpdates
from hfs.mountd.core.attributes import Version
from hfs.mountd.core.background import note_fault
from hfs.mountd.core.flight import SingleFlight

_KEEP = 65_536
"""StagedFiles kept although nobody holds them: about 40 MB, and more files than are open or fetched ahead at a time."""

_QUICK_CHUNKS = 512
"""Of so many the rows are read in a millisecond, and most files have less; 4 GiB as a rule."""


_AT_ONCE = 64
"""Look-ups in one turn of the event loop: two milliseconds."""


class StagedFileTable:
    """`chunk_bytes`: of files that are staged from now on. `trusts_stamps`: what an object with its stamp holds counts
    as verified. Event loop only."""

    def __init__(
        self,
        context: CacheContext,
        chunk_bytes: int,
        reclaim_queue: ReclaimQueue,
        updates: RowUpdates,
        nursery: trio.Nursery,
        *,
        trusts_stamps: bool = False,
    ) -> None:
        self._context = context
        self._chunk_bytes = chunk_bytes
        self._reclaim_queue = reclaim_queue
        self.doomed = NumberSet()
        """Objects whose rows are being deleted, or were: whoever read them before has not seen it."""
        self._updates = updates
        self._trusts_stamps = trusts_stamps
        self._keep = _KEEP
        self._known: WeakValueDictionary[Version, StagedFile] = WeakValueDictionary()
        self._recent: OrderedDict[Version, StagedFile] = OrderedDict()
        self._looking: SingleFlight[Version, StagedFile] = SingleFlight(nursery)
        self._coming: dict[Version, Callable[[StagedFile], object]] = {}
        """Objects that are there and have no row yet: each is made that of the file which is given."""

    def __len__(self) -> int:
        return len(self._known)

    @property
    def is_empty(self) -> bool:
        """Nothing is staged that memory does not know."""
        return not (self._context.index.counts.files or self._coming)

    def peek(self, version: Version) -> StagedFile | None:
        """The StagedFile in memory, if there is one; does not count as a use."""
        return self._known.get(version)

    def coming(self, version: Version, give: Callable[[StagedFile], object]) -> bool:
        """An object of it is there, which `give` makes the object of a file once somebody asks for that. False: another
        one is coming already."""
        return self._coming.setdefault(version, give) is give

    def landed(self, version: Version) -> None:
        """What was coming is in the index, or never will be."""
        del self._coming[version]

    def get_nowait(self, version: Version, path: bytes = b"") -> StagedFile | None:
        """The StagedFile, if that needs no long look at the index; None: ask with `get`."""
        file = self._known.get(version)
        if file is None and version in self._coming:
            file = StagedFile(version, self._chunk_bytes, path)
            self._coming.pop(version)(file)
        if file is None:
            return self._look(version, path)
        self._remember(file)
        if path:
            file.path = path
        return file

    def _look(self, version: Version, path: bytes) -> StagedFile | None:
        if version in self._looking:
            return None
        try:
            found = self._context.index.reader.find_quickly(version, _QUICK_CHUNKS)
        except IndexFailed:
            return None  # the thread that looks next meets it again and deals with it
        except Exception as error:  # noqa: BLE001 - who asks goes on as if it were not known yet
            note_fault("staging: look-ups", error)
            return None
        return self._attach(version, path, found) if found is not None else None

    async def get(self, version: Version, path: bytes = b"") -> StagedFile:
        """The StagedFile of a version, one without any chunk if nothing is staged or the index cannot be read."""
        file = self.get_nowait(version, path)
        if file is None:
            file = await self._looking.run(version, partial(self._ask, version, path))
        return file

    async def load(self, versions: Iterable[Version]) -> None:
        """Have all of these in memory, as far as they fit. Others go on meanwhile."""
        for number, version in enumerate(versions, 1):
            await self.get(version)
            if number % _AT_ONCE == 0:
                await trio.lowlevel.checkpoint()

    async def _ask(self, version: Version, path: bytes) -> StagedFile:
        found: list[FoundRow] = []
        try:
            found = await self._context.threads.ask_index(self._context.index.reader.find, version)
        except IndexFailed as error:
            self._context.health.index_failed(error, "looking up staged files")
        except Exception as error:  # noqa: BLE001 - who waits goes on as if nothing of it were staged
            note_fault("staging: look-ups", error)
        return self._attach(version, path, found)

    def in_memory(self) -> list[StagedFile]:
        """All files that memory knows."""
        return list(self._known.values())

    def pin(self, file: StagedFile) -> None:
        """The file is open: it is not evicted until `unpin`."""
        file.pins += 1
        file.last_use_ns = int(self._context.clock() * 1e9)

    def unpin(self, file: StagedFile) -> None:
        """Undo one `pin`."""
        file.pins -= 1
        self._updates.note(file)
        self._reclaim_queue.settled(file)

    async def supersede(self, version: Version) -> None:
        """A newer version of this file exists: what is staged of this one goes as soon as it is not open."""
        self._reclaim_queue.supersede(await self.get(version))

    def _attach(self, version: Version, path: bytes, found: list[FoundRow]) -> StagedFile:
        file = self._known.get(version)
        if file is not None:
            return file
        mine: FoundRow | None = None
        for row, chunks in found:
            if row.object_id in self.doomed:
                continue
            if not row.proven:
                self._superseded(row)
            elif row.version == version:
                if mine is not None:
                    # Two rows of one version: an eviction failed half way. The bytes are the same, one is enough.
                    self._superseded(mine[0])
                mine = (row, chunks)
            elif row.version.ctime_ns < version.ctime_ns:
                self._superseded(row)
        if mine is None:
            file = StagedFile(version, self._chunk_bytes, path)
        else:
            file = _file_from(*mine)
            if self._trusts_stamps and file.sound:
                for index in file.present:
                    file.verify(index)
            if path:
                file.path = path
                self._updates.note(file)
        self._remember(file)
        return file

    def _superseded(self, row: StagedRow) -> None:
        """A newer version replaces this row, or it is of no use."""
        file = self.peek(row.version)
        if file is not None and file.object_id == row.object_id:
            self._reclaim_queue.supersede(file)
        else:
            self._reclaim_queue.evict(row.object_id, row.version)

    def _remember(self, file: StagedFile) -> None:
        self._known[file.version] = self._recent[file.version] = file
        self._recent.move_to_end(file.version)
        while len(self._recent) > self._keep:
            _, oldest = self._recent.popitem(last=False)
            self._updates.note(oldest)


def _file_from(row: StagedRow, chunks: list[ChunkRow]) -> StagedFile:
    file = StagedFile(row.version, row.chunk_bytes, row.path)
    file.object_id = row.object_id
    file.created = file.has_row = True
    file.room_bytes = row.room_bytes
    file.last_use_ns = row.last_use_s * 1_000_000_000
    file.stored_use_s = row.last_use_s
    file.stored_path = row.path
    file.stamp = file.recorded = row.stamp
    if row.checksum is not None:
        chunks = [ChunkRow(0, row.checksum, row.stored_bytes)]
    for chunk in chunks:
        if chunk.number < file.present.count:
            file.present.add(chunk.number)
            file.committed.add(chunk.number)
            file.chunks.enter(chunk)
    file.sound = row.stamp is not None and len(file.present) > 0
    if file.present and file.plain:
        file.element_bytes = RAW  # one chunk that is not plain would take the whole file from the kernel
    return file
