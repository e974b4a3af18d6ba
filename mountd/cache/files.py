"""Which StagedFile belongs to a version: from memory, else from the index, many look-ups in one hop to a thread.

There is one StagedFile per version at a time: whoever holds one keeps it findable, and the most recent ones are kept in
any case. Look-ups that wait at the same moment go to the index together, since a hop costs as much as fifty look-ups. A
broken index is no reason to fail: the file then counts as not staged.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from weakref import WeakValueDictionary

import trio

from hfs.mountd.cache.index import ChunkRow, Index, IndexFailed, StagedRow
from hfs.mountd.cache.objects.changes import ReclaimQueue
from hfs.mountd.cache.objects.codec import RAW
from hfs.mountd.cache.objects.context import CacheContext
from hfs.mountd.cache.objects.file import StagedFile
from hfs.mountd.cache.rows import RowUpdates
from hfs.mountd.core.background import note_fault
from hfs.mountd.core.version import Version


class DoomedRows:
    """By object number. `number in doomed`: its row is being deleted just now."""

    def __init__(self) -> None:
        self._deleting: set[int] = set()
        self._watches: list[set[int]] = []

    def __contains__(self, number: int) -> bool:
        return number in self._deleting

    def begin(self, numbers: Collection[int]) -> None:
        """Their rows are about to be deleted; `deleted` or `refused` comes next."""
        self._deleting.update(numbers)

    def refused(self, numbers: Collection[int]) -> None:
        """The index has kept these rows."""
        self._deleting.difference_update(numbers)

    def deleted(self, numbers: Collection[int]) -> None:
        """These rows are gone."""
        self._deleting.difference_update(numbers)
        for gone in self._watches:
            gone.update(numbers)

    @contextmanager
    def watching(self) -> Iterator[set[int]]:
        """The set of what is deleted while the block runs, for a look-up in a thread. It stays as it is afterwards."""
        gone: set[int] = set()
        self._watches.append(gone)
        try:
            yield gone
        finally:
            self._watches.remove(gone)


class Arriving:
    def __init__(self) -> None:
        self._coming: dict[Version, Callable[[StagedFile], object]] = {}
        self.any_came = False
        """There was one: the index has rows that nobody has looked at."""

    def __contains__(self, version: Version) -> bool:
        return version in self._coming

    def add(self, version: Version, give: Callable[[StagedFile], object]) -> bool:
        """An object of it is there, which `give` makes the object of a file. False: another one is coming already."""
        if version in self._coming:
            return False
        self.any_came = True
        self._coming[version] = give
        return True

    def take(self, version: Version, file: StagedFile) -> None:
        """Somebody wants it: the object is the file's."""
        self._coming.pop(version)(file)

    def landed(self, versions: Iterable[Version]) -> None:
        """They are in the index, or never will be."""
        for version in versions:
            del self._coming[version]


_KEEP = 65_536
"""StagedFiles kept although nobody holds them: about 40 MB, and more files than are open or fetched ahead at a time."""

_BATCH = 512
"""Look-ups in one hop: about 4 ms, so one look-up never waits long behind others."""

_PRELOAD_SHARE = 2
"""At most half of what is kept: the rest is for what this run finds."""

FoundRow = tuple[StagedRow, list[ChunkRow]]
"""A row and, of a file of several chunks, what is committed of it."""


class _Lookup:
    """A look-up under way and who waits for it."""

    __slots__ = ("done", "file", "path")

    def __init__(self, path: bytes) -> None:
        self.path = path
        self.done = trio.Event()
        self.file: StagedFile | None = None


class StagedFileTable:
    """`chunk_bytes`: of files that are staged from now on. `believes`: what an object with its stamp holds counts as
    verified. `run` is a task of the cache's nursery. Event loop only."""

    def __init__(
        self,
        context: CacheContext,
        chunk_bytes: int,
        reclaim_queue: ReclaimQueue,
        doomed: DoomedRows,
        updates: RowUpdates,
        *,
        believes: bool = False,
    ) -> None:
        self._context = context
        self._chunk_bytes = chunk_bytes
        self._reclaim_queue = reclaim_queue
        self._doomed = doomed
        self._updates = updates
        self._believes = believes
        self._keep = _KEEP
        self._known: WeakValueDictionary[Version, StagedFile] = WeakValueDictionary()
        self._recent: OrderedDict[Version, StagedFile] = OrderedDict()
        self._lookups: OrderedDict[Version, _Lookup] = OrderedDict()
        self.arriving = Arriving()
        self._wanted = trio.Event()
        # True while the index has no row that memory does not have: then a look-up needs no index.
        self._all_in_memory = context.index.opened.files == 0

    @property
    def all_in_memory(self) -> bool:
        """Memory knows all that is staged: an unknown file is not."""
        return self._all_in_memory and not self.arriving.any_came

    def __len__(self) -> int:
        return len(self._known)

    def peek(self, version: Version) -> StagedFile | None:
        """The StagedFile in memory, if there is one; does not count as a use."""
        return self._known.get(version)

    def get_nowait(self, version: Version, path: bytes = b"") -> StagedFile | None:
        """The StagedFile, if that needs no long look at the index; None: ask with `get`."""
        file = self._recent.get(version)
        if file is not None:
            self._recent.move_to_end(version)
        else:
            file = self._known.get(version)
            if file is None:
                is_arriving = version in self.arriving
                if not is_arriving and not self.all_in_memory:
                    return self._look(version, path)
                file = StagedFile(version, self._chunk_bytes, path)
                if is_arriving:
                    self.arriving.take(version, file)
            self._remember(file)
        if path:
            file.path = path
        return file

    def _look(self, version: Version, path: bytes) -> StagedFile | None:
        """Of a file of one chunk the index has all in one row; None: it must be asked in a thread."""
        if version.size > self._chunk_bytes or version in self._lookups:
            return None
        try:
            rows = self._context.index.reader.find_quickly(version)
        except IndexFailed:
            return None  # the thread that looks next meets it again and deals with it
        if any(row.version == version and version.size > row.chunk_bytes for row in rows):
            return None
        return self._adopt(version, path, [(row, []) for row in rows])

    async def get(self, version: Version, path: bytes = b"") -> StagedFile:
        """The StagedFile of a version, one without any chunk if nothing is staged or the index cannot be read."""
        file = self.get_nowait(version, path)
        if file is not None:
            return file
        lookup = self._lookup(version, path)
        await lookup.done.wait()
        assert lookup.file is not None
        return lookup.file

    async def load(self, versions: Iterable[Version]) -> None:
        """Have all of these in memory, as far as they fit."""
        lookups = [self._lookup(version, b"") for version in versions if self.get_nowait(version) is None]
        for lookup in lookups:
            await lookup.done.wait()

    async def preload(self) -> None:
        """Have what an earlier run staged in memory, if all of it fits: an open then needs no look at the index.

        Files of one chunk only, which the index has in one row each.
        """
        if self._context.index.counts.files * _PRELOAD_SHARE > self._keep:
            return
        after_id = 0
        while True:
            try:
                with self._doomed.watching() as gone:
                    rows = await self._context.threads.ask_index(self._context.index.reader.page, after_id, _BATCH)
            except IndexFailed:
                return  # whoever needs it meets it again
            if not rows:
                return
            for row in rows:
                is_there = row.proven and row.object_id not in self._doomed and row.object_id not in gone
                if is_there and row.checksum is not None and row.version not in self._known:
                    self._remember(self._file_from(row, []))
            after_id = rows[-1].object_id

    async def run(self) -> None:
        """Answer look-ups. Never returns."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            while self._lookups:
                await self._answer(dict(islice(self._lookups.items(), _BATCH)))

    async def _answer(self, batch: dict[Version, _Lookup]) -> None:
        found: list[list[FoundRow]] = [[] for _ in batch]
        with self._doomed.watching() as gone:
            try:
                found = await self._context.threads.ask_index(_find, self._context.index, list(batch))
            except IndexFailed as error:
                self._context.health.index_failed(error, "looking up staged files")
            except Exception as error:  # noqa: BLE001 - who waits goes on as if nothing of it were staged
                note_fault("staging: look-ups", error)
        for (version, lookup), rows in zip(batch.items(), found, strict=True):
            lookup.file = StagedFile(version, self._chunk_bytes, lookup.path)
            try:
                lookup.file = self._adopt(version, lookup.path, [row for row in rows if row[0].object_id not in gone])
            except Exception as error:  # noqa: BLE001 - as above
                note_fault("staging: look-ups", error)
            finally:
                del self._lookups[version]
                lookup.done.set()

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

    def _lookup(self, version: Version, path: bytes) -> _Lookup:
        lookup = self._lookups.get(version)
        if lookup is None:
            lookup = self._lookups[version] = _Lookup(path)
            self._wanted.set()
        return lookup

    def _adopt(self, version: Version, path: bytes, found: list[FoundRow]) -> StagedFile:
        file = self._known.get(version)
        if file is not None:
            return file
        mine: FoundRow | None = None
        for row, chunks in found:
            if row.object_id in self._doomed:
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
            file = self._file_from(*mine)
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

    def _file_from(self, row: StagedRow, chunks: list[ChunkRow]) -> StagedFile:
        file = _file_from(row, chunks)
        if self._believes and file.sound:
            for index in file.present:
                file.verify(index)
        return file

    def _remember(self, file: StagedFile) -> None:
        self._known[file.version] = file
        self._recent[file.version] = file
        while len(self._recent) > self._keep:
            _, oldest = self._recent.popitem(last=False)
            if oldest.object_id is not None:
                self._all_in_memory = False
                self._updates.note(oldest)


def _find(index: Index, versions: list[Version]) -> list[list[FoundRow]]:
    """In a thread: rows of each version, with the chunks of those that are wanted."""
    answers = []
    for version, rows in zip(versions, index.reader.find(versions), strict=True):
        answer = []
        for row in rows:
            several = row.version == version and version.size > row.chunk_bytes
            answer.append((row, index.reader.chunks(row.object_id) if several else []))
        answers.append(answer)
    return answers


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
