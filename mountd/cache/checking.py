"""Checking what is staged: everything that is committed is read from the disk, its checksums compared.

For `hfs cache check`, and for the scrub. What is damaged is forgotten, as when a reader meets
it; what could not be looked at (no descriptor left, nothing here to expand it with) is told and kept. An object without
its stamp, or from before there were any, all of whose chunks are right is believed from then on. Reads from the disk
only (`cache.objects.around`); whether the source has the same bytes is asked elsewhere (`control.cache_commands`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from hfs.mountd.base.version import Version
from hfs.mountd.cache.committer import Committer
from hfs.mountd.cache.index import ChunkRow, Index, IndexFailed, StagedRow, Stamp
from hfs.mountd.cache.objects import CacheContext, Looked, StagedFile, look_at
from hfs.mountd.cache.objects.reclaim_queue import ReclaimQueue
from hfs.mountd.cache.table.files import StagedFileTable
from hfs.mountd.cache.table.listing import pages_of
from hfs.mountd.cache.table.row_updates import RowUpdates
from hfs.policies.cache.admission import BLOCK_BYTES
from hfs.policies.geometry import chunk_extent

_STEP_FILES = 64
_STEP_BYTES = 8 << 20
"""Looked at in one hop to a thread: the chunk of a large file, or some small files."""

Pace = Callable[[int], Awaitable[object]]
"""Called before so many bytes are read, to wait until it is their turn."""


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """What `check` found of one file."""

    version: Version
    path: bytes
    chunks: int
    """Chunks that were looked at."""
    bytes: int
    """Theirs."""
    broken: tuple[int, ...]
    """Indexes of damaged or unreadable chunks; they are forgotten."""
    unchecked: str = ""
    """Why some chunks could not be looked at, which says nothing about them; "": all were."""

    @property
    def fault(self) -> str | None:
        """What is wrong with it, in words; None: nothing."""
        if self.broken:
            return f"{len(self.broken)} of {self.chunks} chunks were damaged and are dropped"
        return f"not checked: {self.unchecked}" if self.unchecked else None


class Checker:
    """Event loop only; what it reads is read in threads."""

    def __init__(
        self,
        context: CacheContext,
        files: StagedFileTable,
        committer: Committer,
        queue: ReclaimQueue,
        updates: RowUpdates,
    ) -> None:
        self._context = context
        self._files = files
        self._committer = committer
        self._queue = queue
        self._updates = updates

    async def check(
        self, prefixes: Collection[bytes] = (b"",), source_ids: Collection[str] | None = None
    ) -> AsyncGenerator[CheckedFile, None]:
        """Everything committed that `StagedListing.rows` lists of these; one record a file, as it is done."""
        await self._committer.wait_committed()
        async with aclosing(pages_of(self._context, prefixes, source_ids)) as pages:
            async for rows in pages:
                async with aclosing(self.check_rows(rows)) as checks:
                    async for checked in checks:
                        yield checked

    async def check_rows(
        self, rows: Sequence[StagedRow], pace: Pace | None = None
    ) -> AsyncGenerator[CheckedFile, None]:
        """Check what these rows name. With a `pace` it reads only when the disk has nothing else to do."""
        context = self._context
        try:
            chunks = await context.threads.ask_index(_all_chunks, context.index, rows)
        except IndexFailed as error:
            context.health.index_failed(error, "checking staged files")
            return
        found: list[Looked] = []
        for step in _steps(rows, chunks):
            if pace is not None:
                await pace(sum(_bytes(row, chunk) for row, part, _ in step for chunk in part))
            parts = [(row, part) for row, part, _ in step]
            looked = await context.threads.look(look_at, context.disk, parts, pace is not None)
            for (row, _, listed), one in zip(step, looked, strict=True):
                found.append(one)
                if listed is None:
                    continue  # more of the file comes with the next step
                checked = await self._concluded(row, listed, found)
                found = []
                if checked is not None:
                    yield checked

    async def _concluded(
        self, row: StagedRow, listed: Sequence[ChunkRow], found: Sequence[Looked]
    ) -> CheckedFile | None:
        """None: it was evicted meanwhile."""
        broken = [index for one in found for index in one.broken]
        unchecked = next((one.unchecked for one in found if one.unchecked), "")
        sizes = [chunk_extent(chunk.number, row.version.size, row.chunk_bytes).size for chunk in listed]
        if not row.proven:
            self._queue.evict(row.object_id, row.version)
            broken = [chunk.number for chunk in listed] or [0]
        elif broken:
            dropped = await self._dropped(row, listed, broken)
            if dropped is None:
                return None
            broken = dropped
        elif not unchecked and listed and len({one.stamp for one in found}) == 1 and found[0].stamp != row.stamp:
            await self._believed(row, listed, found[0].stamp)
        return CheckedFile(row.version, row.path, len(listed), sum(sizes), tuple(broken), unchecked)

    async def _dropped(self, row: StagedRow, listed: Sequence[ChunkRow], broken: list[int]) -> list[int] | None:
        """Those of the broken chunks that are staged still; they are forgotten. None: nothing of the file is."""
        file = await self._files.get(row.version)
        if file.object_id != row.object_id:
            return None
        same = _unchanged(file, listed)
        broken = [index for index in broken if index in same]
        self._context.metrics.add("staged_checksum_failures", len(broken))
        self._queue.give_up(file, broken)
        return broken

    async def _believed(self, row: StagedRow, listed: Sequence[ChunkRow], stamp: Stamp | None) -> None:
        """All of an object was right, with a stamp that the index does not have."""
        file = await self._files.get(row.version)
        if stamp is None or file.object_id != row.object_id or file.changing is not None:
            return
        if file.stamp not in {None, row.stamp, stamp}:
            return  # we have changed it since
        if file.stamp != stamp:
            file.doubt()
            file.stamp = stamp
        for index in _unchanged(file, listed):
            file.verify(index)
        self._updates.note(file)


Step = list[tuple[StagedRow, Sequence[ChunkRow], Sequence[ChunkRow] | None]]
"""A row, some of its chunks, and if they are the last, all of them."""


def _steps(rows: Sequence[StagedRow], chunks: Sequence[list[ChunkRow]]) -> Iterator[Step]:
    step: Step = []
    size = 0
    for row, listed in zip(rows, chunks, strict=True):
        begin = 0
        for position, chunk in enumerate(listed):
            if size and size + _bytes(row, chunk) > _STEP_BYTES:
                if begin < position:
                    step.append((row, listed[begin:position], None))
                    begin = position
                yield step
                step, size = [], 0
            size += _bytes(row, chunk)
        step.append((row, listed[begin:], listed))
        if len(step) >= _STEP_FILES:
            yield step
            step, size = [], 0
    if step:
        yield step


def _bytes(row: StagedRow, chunk: ChunkRow) -> int:
    """What is read of it, about: where nothing is on the disk it is looked whether that is so."""
    size = chunk_extent(chunk.number, row.version.size, row.chunk_bytes).size
    return BLOCK_BYTES if chunk.hole_blocks * BLOCK_BYTES >= size else chunk.stored_bytes or size


def _unchanged(file: StagedFile, listed: Sequence[ChunkRow]) -> set[int]:
    """One that was staged again since it was listed, perhaps in the other form, was not what was looked at."""
    return {
        chunk.number for chunk in listed if chunk.number in file.committed and chunk == file.chunks.row(chunk.number)
    }


def _all_chunks(index: Index, rows: Sequence[StagedRow]) -> list[list[ChunkRow]]:
    return [
        ([] if row.checksum is None else [ChunkRow(0, row.checksum, row.stored_bytes)])
        if row.version.size <= row.chunk_bytes
        else index.reader.chunks(row.object_id)
        for row in rows
    ]
