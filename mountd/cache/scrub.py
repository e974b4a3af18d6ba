"""Checking what is staged, and the scrub: all of it is read from the disk, again and again; what has rotted is dropped.

Stamps show what other programs change. A bit that turns on the disk, or is written below the file system, leaves no
trace: where the kernel reads a staged file by itself nobody would notice, and what the daemon reads it notices only
when a reader waits. So every object is read around the page cache (`cache.objects.reads`) and compared with its
checksums once a round, and for `hfs cache check`. What is damaged is forgotten, as when a reader meets it, and fetched
again when somebody wants it, at once where the kernel is reading it just now (its readers see the right bytes from then
on; what they have read they have read); what could not be looked at (no descriptor left, nothing here to expand it
with) is told and kept. An object without its stamp, or from before there were any, all of whose chunks are right is
believed from then on. Whether the source has the same bytes is asked elsewhere (`control.cache_commands`).

The scrub reads at a fixed rate, at idle I/O priority, and waits while readers wait for the disk; a round begins a day
after the one before began. How far it is stands in the index, since few daemons live as long as a round takes.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

import trio

from hfs.mountd.cache.committer import Committer
from hfs.mountd.cache.files import StagedFileTable
from hfs.mountd.cache.index import ChunkRow, Index, IndexFailed, ScrubRow, StagedRow, Stamp
from hfs.mountd.cache.objects.changes import ReclaimQueue
from hfs.mountd.cache.objects.context import CacheContext
from hfs.mountd.cache.objects.file import StagedFile
from hfs.mountd.cache.objects.reads import Looked, look_at
from hfs.mountd.cache.rows import RowUpdates, pages_of
from hfs.mountd.core.attributes import Version
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


@dataclasses.dataclass(eq=False)
class Checker:
    """Event loop only; what it reads is read in threads."""

    context: CacheContext
    files: StagedFileTable
    committer: Committer
    queue: ReclaimQueue
    updates: RowUpdates

    async def check(
        self, prefixes: Collection[bytes] = (b"",), source_ids: Collection[str] | None = None
    ) -> AsyncGenerator[CheckedFile, None]:
        """Everything committed that `StagedListing.rows` lists of these; one record a file, as it is done."""
        await self.committer.wait_committed()
        async with aclosing(pages_of(self.context, prefixes, source_ids)) as pages:
            async for rows in pages:
                async with aclosing(self.check_rows(rows)) as checks:
                    async for checked in checks:
                        yield checked

    async def check_rows(
        self, rows: Sequence[StagedRow], pace: Pace | None = None
    ) -> AsyncGenerator[CheckedFile, None]:
        """Check what these rows name. With a `pace` it reads only when the disk has nothing else to do."""
        context = self.context
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
            self.queue.evict(row.object_id, row.version)
            broken = [chunk.number for chunk in listed] or [0]
        elif broken:
            dropped = await self._dropped(row, listed, broken)
            if dropped is None:
                return None
            broken = dropped
        elif not unchecked and listed and len({one.stamp for one in found}) == 1 and found[0].stamp != row.stamp:
            await self._confirmed(row, listed, found[0].stamp)
        return CheckedFile(row.version, row.path, len(listed), sum(sizes), tuple(broken), unchecked)

    async def _dropped(self, row: StagedRow, listed: Sequence[ChunkRow], broken: list[int]) -> list[int] | None:
        """Those of the broken chunks that are staged still; they are forgotten. None: nothing of the file is."""
        file = await self.files.get(row.version)
        if file.object_id != row.object_id:
            return None
        same = _unchanged(file, listed)
        broken = [index for index in broken if index in same]
        self.context.metrics.add("staged_checksum_failures", len(broken))
        self.queue.give_up(file, broken)
        return broken

    async def _confirmed(self, row: StagedRow, listed: Sequence[ChunkRow], stamp: Stamp | None) -> None:
        """All of an object was right, with a stamp that the index does not have."""
        file = await self.files.get(row.version)
        if stamp is None or file.object_id != row.object_id or file.changing is not None:
            return
        if file.stamp not in {None, row.stamp, stamp}:
            return  # we have changed it since
        if file.stamp != stamp:
            file.suspect()
            file.stamp = stamp
        for index in _unchanged(file, listed):
            file.verify(index)
        self.updates.note(file)


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


_ROUND_S = 86_400
"""Between the beginnings of two rounds: a small cache need not be read all day."""

_FIRST_S = 5.0
"""A mount that has just begun has other things to read."""

_YIELD_S = 1.0
_LOOK_S = 0.02
"""While readers wait for the disk a step waits for them, but not longer: some jobs read all the time."""

_NOTE_EVERY_S = 30.0
"""What is read again after a kill."""

_RETRY_S = 60.0
"""After the index has failed, or as long as nothing is staged."""

_PAGE = 64
"""Rows of the index at a time."""

State = Literal["off", "reading", "resting"]


class Scrub:
    """`rate_bytes_s`: 0 reads nothing. `run` is a task of the cache's nursery. Event loop only."""

    def __init__(self, context: CacheContext, checker: Checker, rate_bytes_s: int) -> None:
        self._context = context
        self._checker = checker
        self._rate_bytes_s = rate_bytes_s
        self._at = ScrubRow(0, 0, 0, 0)
        self._reading = False
        self._next_s = 0.0
        """When the next bytes may be read, in trio's time."""
        self._noted_s = 0.0
        self._read_s = 0.0
        """Time spent in rounds by this daemon."""

    def figures(self) -> dict[str, object]:
        """For `hfs status`."""
        metrics, index = self._context.metrics, self._context.index
        state: State = "off" if not self._rate_bytes_s else "reading" if self._reading else "resting"
        read_bytes = metrics["scrubbed_bytes"]
        return {
            "state": state,
            "rate_bytes_s": self._rate_bytes_s,
            "measured_bytes_s": round(read_bytes / self._read_s) if self._read_s else 0,
            "round_bytes": self._at.bytes,
            "staged_bytes": index.counts.bytes - index.counts.shrunk_bytes + index.counts.shrunk_stored_bytes,
            "read_bytes": read_bytes,
            "damaged_chunks": metrics["scrub_damaged_chunks"],
            "round_began": _shown(self._at.began_s),
            "last_round_ended": _shown(self._at.ended_s),
            "rounds": metrics["scrub_rounds"],
        }

    async def run(self) -> None:
        """Round after round. Never returns."""
        if not self._rate_bytes_s:
            return
        await trio.sleep(_FIRST_S)
        while True:
            try:
                await self._rounds()
            except IndexFailed as error:
                self._reading = False
                self._context.health.index_failed(error, "scrubbing")
                await trio.sleep(_RETRY_S)

    async def _rounds(self) -> None:
        self._at = await self._context.threads.ask_index(self._context.index.reader.scrubbed)
        while True:
            if self._at.began_s <= self._at.ended_s or not self._at.began_s:
                await self._wait_for_next()
            self._reading = True
            began_s = trio.current_time()
            try:
                await self._round()
            finally:
                self._reading = False
                self._read_s += trio.current_time() - began_s

    async def _wait_for_next(self) -> None:
        while True:
            wait_s = self._at.began_s + _ROUND_S - self._context.clock()
            is_due = wait_s <= 0 or wait_s > _ROUND_S  # the clock may have been set back
            if is_due and self._context.index.counts.files:
                break
            await trio.sleep(_RETRY_S if is_due else wait_s)
        await self._note(ScrubRow(0, 0, int(self._context.clock()), self._at.ended_s))

    async def _round(self) -> None:
        """From where the round is to its end."""
        while rows := await self._page():
            async with aclosing(self._checker.check_rows(rows, self._wait_idle)) as found:
                async for checked in found:
                    self._context.metrics.add("scrubbed_files")
                    self._context.metrics.add("scrub_damaged_chunks", len(checked.broken))
            self._at = self._at._replace(object_id=rows[-1].object_id)
            if trio.current_time() >= self._noted_s + _NOTE_EVERY_S:
                await self._note(self._at)
        ended_s = max(int(self._context.clock()), self._at.began_s)
        await self._note(self._at._replace(ended_s=ended_s))
        self._context.metrics.add("scrub_rounds")

    async def _page(self) -> list[StagedRow]:
        rows: list[StagedRow] = await self._context.threads.ask_index(
            self._context.index.reader.page, self._at.object_id, _PAGE
        )
        return rows

    async def _wait_idle(self, size_bytes: int) -> None:
        await trio.sleep_until(self._next_s)
        with trio.move_on_after(_YIELD_S):
            while self._context.threads.readers_wait:  # noqa: ASYNC110 - an event at each read would cost the readers
                await trio.sleep(_LOOK_S)
        self._next_s = max(self._next_s, trio.current_time()) + size_bytes / self._rate_bytes_s
        self._at = self._at._replace(bytes=self._at.bytes + size_bytes)
        self._context.metrics.add("scrubbed_bytes", size_bytes)

    async def _note(self, at: ScrubRow) -> None:
        self._at = at
        self._noted_s = trio.current_time()
        await self._context.threads.change_index(self._context.index.writer.note_scrubbed, at)


def _shown(moment_s: int) -> str | None:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment_s)) if moment_s else None
