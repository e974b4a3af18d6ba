"""Rows of the index as others need them: listed by path, brought up to date by and by, pinned, told to the data plane.

Pins are staged files that a person wants kept (`hfs cache warm --pin`), which go only by name or with a change at the
source. No room pressure takes them: neither the policy, nor neighbours of the same root, nor an age, nor the order of a
learner. The index has them, so they outlive restarts and crashes; memory knows their numbers, so that whoever evicts
for room asks here at the last moment, without waiting. What is open is something else (`StagedFile.pins`).

Event loop only.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial

import trio

from hfs.mountd.cache.index import Committed, IndexFailed, StagedRow, Stamp
from hfs.mountd.cache.objects.changes import stamp_to_keep
from hfs.mountd.cache.objects.context import CacheContext
from hfs.mountd.cache.objects.file import StagedFile
from hfs.mountd.cache.objects.numbers import NumberSet, StampsByNumber
from hfs.mountd.core.attributes import Version
from hfs.mountd.kernel import KnownObject
from hfs.policies.cache.admission import BLOCK_BYTES, object_overhead_bytes
from hfs.policies.cache.eviction import USES_FLUSHED_EVERY_S

_PAGE = 1000
"""Rows in memory at a time."""


class StagedListing:
    """What is committed."""

    def __init__(self, context: CacheContext) -> None:
        self._context = context

    async def rows(
        self, prefixes: Collection[bytes] = (b"",), source_ids: Collection[str] | None = None
    ) -> AsyncGenerator[StagedRow, None]:
        """All of it, in the order in which it was staged. Bounded memory, however much there is.

        `prefixes`: paths relative to the source, of files or directories; b"" is the source itself. `source_ids`:
        of these file systems only. Ends early, counted, if the index fails.
        """
        async with aclosing(pages_of(self._context, prefixes, source_ids)) as pages:
            async for rows in pages:
                for row in rows:
                    yield row

    def pinned_pages(
        self, prefixes: Collection[bytes], source_ids: Collection[str] | None
    ) -> AsyncGenerator[Sequence[StagedRow], None]:
        """Of those that are pinned, some hundreds at a time."""
        return pages_of(self._context, prefixes, source_ids, pinned=True)

    async def entered(self, numbers: Sequence[int]) -> set[int]:
        """Those of these objects that the index has. Raises StagingError."""
        found: set[int] = await self._context.threads.ask_index(self._context.index.reader.entered, numbers)
        return found

    async def still_staged(self, numbers: Sequence[int]) -> tuple[int, int]:
        """How many of these objects the index has, and the bytes of their files. Raises StagingError."""
        rows = await self._context.threads.ask_index(self._context.index.reader.rows, numbers)
        return len(rows), sum(row.version.size for row in rows)


async def pages_of(
    context: CacheContext, prefixes: Collection[bytes], source_ids: Collection[str] | None, *, pinned: bool = False
) -> AsyncGenerator[Sequence[StagedRow], None]:
    """Pages of the rows that `StagedListing.rows` gives one by one. `pinned`: of those that are pinned."""
    page = context.index.reader.pinned_rows if pinned else context.index.reader.page
    wanted = frozenset(prefix.strip(b"/") for prefix in prefixes)
    last = 0
    while True:
        rows: Sequence[StagedRow] = ()
        with context.health.index_faults("listing staged files"):
            rows = await context.threads.ask_index(page, last, _PAGE)
        if not rows:
            return
        last = rows[-1].object_id
        yield [
            row
            for row in rows
            if (source_ids is None or row.version.source_id in source_ids) and _is_below(row.path, wanted)
        ]


def _is_below(path: bytes, wanted: frozenset[bytes]) -> bool:
    """Whether one of `wanted` is the path, or a directory above it. As dear as the path is deep, however many they are:
    a request may name a million."""
    while path not in wanted and path:
        path = path.rpartition(b"/")[0]
    return path in wanted


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
        with self._context.health.index_faults("noting last uses"):
            await self._context.threads.change_index(self._context.index.writer.touch, uses, paths)
            await self._context.threads.change_index(self._context.index.writer.stamp, stamps)

    async def run(self) -> None:
        """Flush from time to time. Never returns."""
        while True:
            await trio.sleep(USES_FLUSHED_EVERY_S)
            await self.flush()


_AT_ONCE = 4096
"""In one durable commit: some 20 ms of the thread that changes the index."""


class Pins:
    """`number in pins`. `len()`: how many. What they take is `Room.pinned_bytes`."""

    def __init__(self, context: CacheContext) -> None:
        self._context = context
        numbers, blocks = context.index.opened_pins
        self._numbers = NumberSet(numbers)
        self._count = len(numbers)
        context.room.pinned_bytes = blocks * BLOCK_BYTES
        self._one_at_a_time = trio.Lock()

    def __contains__(self, number: int | None) -> bool:
        return number in self._numbers

    def __len__(self) -> int:
        return self._count

    def bits(self) -> bytes:
        """A bit for each number, of the first byte the lowest first; what lies beyond is not pinned."""
        return self._numbers.bits()

    async def pin(self, numbers: Sequence[int]) -> int:
        """Keep these objects. How many of them are pinned now, durably: those that are not in the index are not.

        Raises IndexFailed, and some may be pinned then.
        """
        pinned = 0
        for start in range(0, len(numbers), _AT_ONCE):
            pinned += await self._pin(numbers[start : start + _AT_ONCE])
        return pinned

    async def _pin(self, numbers: Sequence[int]) -> int:
        async with self._one_at_a_time:
            new = [number for number in dict.fromkeys(numbers) if number not in self._numbers]
            self._numbers.add(*new)  # from this moment on: what is being evicted already has no row
            missing, pin = new, self._context.index.writer.pin
            try:
                with trio.CancelScope(shield=True):  # what the index does memory knows
                    changed, missing = await self._context.threads.change_index(partial(pin, pinned=True), new)
                self._count += len(new) - len(missing)
                self._context.room.pinned_bytes += sum(changed.values())
            except IndexFailed as error:
                self._context.health.index_failed(error, "pinning staged files")
                raise
            finally:
                self._numbers.discard(*missing)
            return sum(number in self._numbers for number in numbers)

    async def unpin(
        self, prefixes: Collection[bytes] = (b"",), source_ids: Collection[str] | None = None
    ) -> tuple[int, int]:
        """Those at or below these paths may go again; see `StagedListing.rows` for both arguments. Returns (files,
        bytes of their room). Raises IndexFailed, and some may be unpinned then."""
        files = size_bytes = 0
        pin = self._context.index.writer.pin
        async with aclosing(pages_of(self._context, prefixes, source_ids, pinned=True)) as pages:
            async for rows in pages:
                numbers = [row.object_id for row in rows]
                async with self._one_at_a_time:
                    with trio.CancelScope(shield=True):
                        changed, _ = await self._context.threads.change_index(partial(pin, pinned=False), numbers)
                        self.gone(changed)
                files += len(changed)
                size_bytes += sum(changed.values())
        return files, size_bytes

    async def replaced(self, rows: Sequence[Committed]) -> Sequence[Version]:
        """What is pinned at the paths of these new rows, and was there before them: it is superseded. Nobody else may
        notice, as where the kernel has forgotten the file meanwhile."""
        new = [(row.path, row.version) for row in rows if row.is_new and row.path]
        if not new or not self._count:
            return ()
        found: Sequence[StagedRow] = ()
        with self._context.health.index_faults("looking for pinned files"):
            found = await self._context.threads.ask_index(self._context.index.reader.pinned_at, new)
        return [row.version for row in found]

    def gone(self, room_bytes: Mapping[int, int]) -> None:
        """These have no row any more, or are not pinned there; the room of each."""
        for number, size_bytes in room_bytes.items():
            if number in self._numbers:
                self._numbers.discard(number)
                self._count -= 1
                # What was repaired since takes another size: it is counted anew at the next start.
                self._context.room.pinned_bytes = max(0, self._context.room.pinned_bytes - size_bytes)


_TOLD_AT_ONCE = 4096
_MOST_TOLD = 1 << 20
"""Rows of the index that are told at the start: 200 MB of the data plane's memory. Of a larger one none is."""


class KnownObjects:
    """What the data plane is told of staged files, so that it fetches none: the index at the start, then what is
    entered. Files of one chunk, of the file system of the source's root; those that hold them in another form it leaves
    to us. One that changes or goes is taken out by the reclaim queue, as all that others answer from."""

    def __init__(self, context: CacheContext, source_id: str) -> None:
        self._context = context
        self._source_id = source_id
        self.told = trio.Event()
        """All that is staged was told: what is fetched from now on is not."""

    async def load(self) -> None:
        """Tell of what an earlier run has staged."""
        maker, context = self._context.others.maker, self._context
        if maker is None:
            return
        maker.store_in(context.disk.directory, object_overhead_bytes(1))
        if context.index.counts.files > _MOST_TOLD:
            return
        after_id = 0
        try:
            while rows := await context.threads.ask_index(context.index.reader.page, after_id, _TOLD_AT_ONCE):
                maker.know(filter(None, map(self._of_row, rows)))
                after_id = rows[-1].object_id
        except IndexFailed:
            return  # whoever needs it meets it again
        self.told.set()

    def entered(self, rows: Iterable[Committed]) -> None:
        """These are in the index now."""
        if self._context.others.maker is not None and self.told.is_set():
            self._context.others.maker.know(filter(None, map(self._of_committed, rows)))

    def _of_row(self, row: StagedRow) -> KnownObject | None:
        if not row.proven or not row.complete or row.checksum is None:
            return None
        return self._known(row.object_id, row.version, row.stamp, row.checksum, is_pythons=bool(row.stored_bytes))

    def _of_committed(self, row: Committed) -> KnownObject | None:
        if not row.complete or row.version.size > row.chunk_bytes or len(row.chunks) != 1:
            return None
        (chunk,) = row.chunks
        return self._known(row.object_id, row.version, row.stamp, chunk.checksum, is_pythons=bool(chunk.stored_bytes))

    def _known(
        self, number: int, version: Version, stamp: Stamp | None, checksum: int, *, is_pythons: bool
    ) -> KnownObject | None:
        if version.source_id != self._source_id or (stamp is None and not is_pythons):
            return None
        inode, ctime_ns = (stamp.inode, stamp.ctime_ns) if stamp is not None else (0, 0)
        times_ns = ctime_ns, version.mtime_ns, version.ctime_ns
        return KnownObject(number, inode, checksum, version.inode, version.size, *times_ns, is_pythons)
