"""Which StagedFile belongs to a version: from memory, else from the index, many look-ups in one hop to a thread.

There is one StagedFile per version at a time: whoever holds one keeps it findable, and the most recent ones are kept in
any case. Look-ups that wait at the same moment go to the index together, since a hop costs as much as fifty look-ups. A
broken index is no reason to fail: the file then counts as not staged.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from weakref import WeakValueDictionary

import trio

from mountd.base.version import Version
from mountd.cache.index import ChunkRow, Index, IndexFailed, StagedRow, Stamp
from mountd.cache.objects import RAW, CacheContext, StagedFile, stamp_to_keep
from mountd.core.background import note_fault

__all__ = ["StagedFileTable"]

_KEEP = 65_536
"""StagedFiles kept although nobody holds them: about 40 MB, and more files than are open or fetched ahead at a time."""

_BATCH = 512
"""Look-ups in one hop: about 4 ms, so one look-up never waits long behind others."""

_PRELOAD_SHARE = 2
"""At most half of what is kept: the rest is for what this run finds."""

_MAX_TOUCHED = 65_536
"""Last uses waiting to be written; beyond it they are dropped, as they only order evictions."""


class _Wish:
    """A look-up under way and who waits for it."""

    __slots__ = ("done", "file", "path")

    def __init__(self, path: bytes) -> None:
        self.path = path
        self.done = trio.Event()
        self.file: StagedFile | None = None


class StagedFileTable:
    """`superseded` is called, on the event loop, with rows that a newer version replaces. `believes`: what is in an
    object that has its stamp counts as verified."""

    def __init__(
        self,
        context: CacheContext,
        chunk_bytes: int,
        use_every_s: int,
        superseded: Callable[[StagedRow], None],
        keep: int = _KEEP,
        *,
        believes: bool = False,
    ) -> None:
        self._context = context
        self._chunk_bytes = chunk_bytes
        self._use_every_s = use_every_s
        self._superseded = superseded
        self._believes = believes
        self._keep = keep
        self._known: WeakValueDictionary[Version, StagedFile] = WeakValueDictionary()
        self._recent: OrderedDict[Version, StagedFile] = OrderedDict()
        self._wishes: OrderedDict[Version, _Wish] = OrderedDict()
        self._wanted = trio.Event()
        # True while the index has no row that memory does not have: then a look-up needs no index.
        self._all_in_memory = context.index.opened.files == 0
        self.dooming: set[int] = set()
        """Objects whose rows are being deleted; a look-up may still see them."""
        self._doomed_meanwhile: set[int] = set()
        self._doomed_since_asked: set[int] = set()
        """The same, for `preload`, while it asks."""
        self._preloading = False
        self._uses: dict[int, int] = {}
        self._paths: dict[int, bytes] = {}
        self._stamps: dict[int, tuple[Version, Stamp]] = {}

    @property
    def all_in_memory(self) -> bool:
        """Memory knows all that is staged: an unknown file is not."""
        return self._all_in_memory

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
                if not self._all_in_memory:
                    return self._look(version, path)
                file = StagedFile(version, self._chunk_bytes, path)
            self._remember(file)
        if path:
            file.path = path
        return file

    def _look(self, version: Version, path: bytes) -> StagedFile | None:
        """Of a file of one chunk the index has all in one row; None: it must be asked in a thread."""
        if version.size > self._chunk_bytes or version in self._wishes:
            return None
        try:
            rows = self._context.index.find_quickly(version)
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
        wish = self._wish(version, path)
        await wish.done.wait()
        assert wish.file is not None
        return wish.file

    async def load(self, versions: Iterable[Version]) -> None:
        """Have all of these in memory, as far as they fit."""
        wishes = [self._wish(version, b"") for version in versions if self.get_nowait(version) is None]
        for wish in wishes:
            await wish.done.wait()

    async def preload(self) -> None:
        """Have what an earlier run staged in memory, if all of it fits: an open then needs no look at the index.

        Files of one chunk only, which the index has in one row each.
        """
        if self._context.index.files * _PRELOAD_SHARE > self._keep:
            return
        after_id = 0
        self._preloading = True
        while rows := await self._page(after_id):
            for row in rows:
                gone = row.object_id in self.dooming or row.object_id in self._doomed_since_asked
                if not gone and row.proven and row.checksum is not None and row.version not in self._known:
                    self._remember(self._file_from(row, []))
            after_id = rows[-1].object_id
        self._preloading = False

    async def _page(self, after_id: int) -> list[StagedRow]:
        self._doomed_since_asked = set()
        try:
            rows: list[StagedRow] = await self._context.threads.ask_index(self._context.index.page, after_id, _BATCH)
        except IndexFailed:
            return []  # whoever needs it meets it again
        return rows

    async def run(self) -> None:
        """Answer look-ups. Never returns."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            while self._wishes:
                batch = dict(list(self._wishes.items())[:_BATCH]) if len(self._wishes) > _BATCH else dict(self._wishes)
                # Rows doomed before now are not seen any more; those doomed while the thread looks may be.
                self._doomed_meanwhile.clear()
                try:
                    found = await self._context.threads.ask_index(_find, self._context.index, list(batch))
                except IndexFailed as error:
                    self._context.health.index_failed(error, "looking up staged files")
                    found = [[] for _ in batch]
                except Exception as error:  # noqa: BLE001 - who waits goes on as if nothing of it were staged
                    note_fault("staging: look-ups", error)
                    found = [[] for _ in batch]
                for (version, wish), rows in zip(batch.items(), found, strict=True):
                    wish.file = StagedFile(version, self._chunk_bytes, wish.path)
                    try:
                        wish.file = self._adopt(version, wish.path, rows)
                    except Exception as error:  # noqa: BLE001 - as above
                        note_fault("staging: look-ups", error)
                    finally:
                        del self._wishes[version]
                        wish.done.set()

    def doomed(self, object_ids: Iterable[int]) -> None:
        """The rows of these objects are gone from the index."""
        for number in object_ids:
            self.dooming.discard(number)
            self._doomed_meanwhile.add(number)
            if self._preloading:
                self._doomed_since_asked.add(number)
            self._uses.pop(number, None)
            self._paths.pop(number, None)
            self._stamps.pop(number, None)
        if not self._wishes:
            self._doomed_meanwhile.clear()

    def note_use(self, file: StagedFile) -> None:
        """Remember what of the file the index should learn: its last use, now and then, a new path, a new stamp."""
        if file.object_id is None or not file.has_row:
            return
        use_s = file.last_use_ns // 1_000_000_000
        if use_s >= file.stored_use_s + self._use_every_s and len(self._uses) < _MAX_TOUCHED:
            file.stored_use_s = use_s
            self._uses[file.object_id] = use_s
        if file.path and file.path != file.stored_path and len(self._paths) < _MAX_TOUCHED:
            file.stored_path = file.path
            self._paths[file.object_id] = file.path
        stamp = stamp_to_keep(file, len(file.committed))
        if stamp is not None and stamp != file.recorded and len(self._stamps) < _MAX_TOUCHED:
            file.recorded = stamp
            self._stamps[file.object_id] = file.version, stamp

    def note_all(self) -> None:
        """`note_use` of every file in memory."""
        for file in list(self._known.values()):
            self.note_use(file)

    async def flush_uses(self) -> None:
        """Bring the index up to date with what was noted. A failure is counted, and the notes are lost."""
        if not self._uses and not self._paths and not self._stamps:
            return
        uses = [(use_s, number) for number, use_s in self._uses.items()]
        paths = [(path, number) for number, path in self._paths.items()]
        stamps = [(number, *known) for number, known in self._stamps.items()]
        self._uses, self._paths, self._stamps = {}, {}, {}
        try:
            await self._context.threads.change_index(self._context.index.touch, uses, paths)
            await self._context.threads.change_index(self._context.index.stamp, stamps)
        except IndexFailed as error:
            self._context.health.index_failed(error, "noting last uses")

    def _wish(self, version: Version, path: bytes) -> _Wish:
        wish = self._wishes.get(version)
        if wish is None:
            wish = self._wishes[version] = _Wish(path)
            self._wanted.set()
        return wish

    def _adopt(self, version: Version, path: bytes, found: list[tuple[StagedRow, list[ChunkRow]]]) -> StagedFile:
        file = self._known.get(version)
        if file is not None:
            return file
        mine: tuple[StagedRow, list[ChunkRow]] | None = None
        for row, chunks in found:
            if row.object_id in self.dooming or row.object_id in self._doomed_meanwhile:
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
                self.note_use(file)
        self._remember(file)
        return file

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
                self.note_use(oldest)


def _find(index: Index, versions: list[Version]) -> list[list[tuple[StagedRow, list[ChunkRow]]]]:
    """In a thread: rows of each version, with the chunks of those that are wanted."""
    answers = []
    for version, rows in zip(versions, index.find(versions), strict=True):
        answer = []
        for row in rows:
            several = row.version == version and version.size > row.chunk_bytes
            answer.append((row, index.chunks(row.object_id) if several else []))
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
    for index, checksum, stored_bytes in chunks:
        if index < file.present.count:
            file.present.add(index)
            file.committed.add(index)
            file.set_checksum(index, checksum)
            file.set_stored(index, stored_bytes)
    file.sound = row.stamp is not None and len(file.present) > 0
    if file.present and not file.encoded:
        file.element_bytes = RAW  # one encoded chunk would take the whole file from the kernel
    return file
