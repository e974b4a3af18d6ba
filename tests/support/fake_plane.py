"""The data plane's table as a plain dictionary: what the one in C is compared with, and what tests open files by."""

from __future__ import annotations

import errno
from collections import Counter
from dataclasses import dataclass
from itertools import count

import trio

from hfs.mountd.kernel.plane import (
    Attached,
    Backing,
    Counted,
    OpenCounts,
    Opened,
    PlaneFigures,
    ReadProgress,
    Served,
    StagedObject,
)


@dataclass
class Entry:
    handle: int
    counter: int
    until_s: float
    backing: Backing | None
    opened: int = 0
    last_ns: int = 0


class _News:
    async def wait(self) -> None:
        await trio.sleep(0.05)  # virtual: tests put events into the lists


class FakePlane:
    """`now_s` is the clock of the table. `open` and `release` are what the kernel does."""

    events_at_most = 512

    def __init__(self, *, runs: bool = True) -> None:
        self.news = _News()
        self.runs = runs
        self.full = False
        """It takes nothing more."""
        self.now_s = 0.0
        self.entries: dict[int, Entry] = {}
        self.counts: dict[int, list[int]] = {}
        """Handle and count by counter: what outlives the daemon."""
        self.events: list[Opened] = []
        self.reads: dict[int, StagedObject] = {}
        self.progresses: dict[int, ReadProgress] = {}
        self.served: list[Served] = []
        self.staged_in = -1
        """Where reads of slots find their objects; -1: they are not answered."""
        self._counters = count()

    def attach(self, _table_fd: int, _terms: int = 0) -> Attached:
        self.entries.clear()
        self.reads.clear()
        handles = {handle: Counted(counter, opened) for counter, (handle, opened) in self.counts.items()}
        return Attached(handles, Counter())

    def put_opens(self, node_id: int, handle: int, *, size: int, valid_s: float, backing: Backing | None) -> int | None:
        if self.full or valid_s <= 0:
            return None
        if node_id in self.entries:
            raise OSError(errno.EEXIST, "twice")
        counter = next(self._counters)
        self.counts[counter] = [handle, 0]
        self.entries[node_id] = Entry(handle, counter, self.now_s + valid_s, backing)
        return counter

    def take_opens(self, node_id: int) -> OpenCounts:
        entry = self.entries.pop(node_id)
        return OpenCounts(self.count(entry.counter), entry.opened, entry.last_ns)

    def count(self, counter: int) -> int:
        return self.counts[counter][1]

    def closed(self, counter: int) -> int:
        self.counts[counter][1] -= 1
        return self.counts[counter][1]

    def free_counter(self, counter: int) -> None:
        del self.counts[counter]

    def put_reads(self, node_id: int, staged: StagedObject) -> bool:
        if self.full:
            return False
        assert node_id not in self.reads
        self.reads[node_id] = staged
        return True

    def take_reads(self, node_id: int) -> None:
        del self.reads[node_id]

    def progress(self, node_id: int) -> ReadProgress | None:
        return self.progresses.get(node_id) if node_id in self.reads else None

    def read_staged(self, directory_fd: int) -> None:
        self.staged_in = directory_fd

    def take_served(self) -> list[Served]:
        taken, self.served = self.served, []
        return taken

    def take_events(self) -> tuple[list[Opened], int]:
        taken, self.events = self.events, []
        return taken, 0

    def figures(self) -> PlaneFigures:
        return PlaneFigures(0, len(self.entries), len(self.reads))

    def open(self, node_id: int, thread_id: int = 1) -> int | None:
        """The handle; None: the open goes to the daemon."""
        entry = self.entries.get(node_id)
        if entry is None or self.now_s >= entry.until_s:
            return None
        self.counts[entry.counter][1] += 1
        entry.opened += 1
        entry.last_ns = 1
        self.events.append(Opened(node_id, thread_id))
        return entry.handle

    def release(self, node_id: int, handle: int) -> bool:
        """False: the close goes to the daemon."""
        entry = self.entries.get(node_id)
        if entry is None or entry.handle != handle:
            return False
        self.counts[entry.counter][1] -= 1
        return True
