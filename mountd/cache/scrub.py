"""The scrub: reads everything staged from the disk, again and again, slowly, and drops what has rotted.

Stamps show what other programs change. A bit that turns on the disk, or is written below the file system, leaves no
trace: where the kernel reads a staged file by itself nobody would notice, and what the daemon reads it notices only
when a reader waits. So every object is read around the page cache and compared with its checksums once a round; what
is damaged is forgotten and fetched again when somebody wants it, at once where the kernel is reading it just now (its
readers see the right bytes from then on; what they have read they have read).

It reads at a fixed rate, at idle I/O priority, and waits while readers wait for the disk; a round begins a day after
the one before began. How far it is stands in the index, since few daemons live as long as a round takes.
"""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import Literal

import trio

from hfs.mountd.cache.checking import Checker
from hfs.mountd.cache.index import IndexFailed, ScrubRow, StagedRow
from hfs.mountd.cache.objects import CacheContext

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
            async with aclosing(self._checker.check_rows(rows, self._wait_turn)) as found:
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

    async def _wait_turn(self, size_bytes: int) -> None:
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
