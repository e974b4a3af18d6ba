"""What the index of a simulated cache knows of staged files: which are durable, and when they were used last.

Both late, as in the daemon: what is staged is committed in groups (mountd/cache/committer.py), and uses are noted now
and then and flushed together (mountd/cache/table/row_updates.py, and NOTED_EVERY_S). The oldest rows are told a page at
a time. Times never go back.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable

from hfs.policies.cache.admission import COMMIT_EVERY_S
from hfs.policies.cache.eviction import NOTED_EVERY_S, PAGE_ENTRIES, USES_FLUSHED_EVERY_S


class SimulatedRow:
    """A staged file."""

    __slots__ = ("bytes", "file", "last_use_s", "number", "pieces", "room_bytes")

    def __init__(self, number: int, file: int, now_s: float) -> None:
        self.number = number
        self.file = file
        self.last_use_s = int(now_s)
        """As the index knows it."""
        self.room_bytes = 0
        self.bytes = 0
        self.pieces: list[int] = []


class SimulatedIndex:
    """`rows`: by file, durable or not. `commit_bytes`: so much is committed before its time."""

    def __init__(self, now_s: float, commit_bytes: int) -> None:
        self._commit_bytes = commit_bytes
        self.rows: dict[int, SimulatedRow] = {}
        self._numbers = 0
        self._by_age: list[tuple[int, int, int]] = []
        """(last use, number, file) of what is durable; some are out of date."""
        self._waiting: deque[tuple[float, int, int]] = deque()
        """(staged at, file, bytes) of what is not durable."""
        self._waiting_bytes = 0
        self._hurried_s = -math.inf
        self._noted_s: dict[int, float] = {}
        self._uses: dict[int, int] = {}
        self._flush_s = now_s + USES_FLUSHED_EVERY_S

    @property
    def has_waiting(self) -> bool:
        """Something is not durable yet."""
        return bool(self._waiting)

    def staged(self, file: int, piece: int, size_bytes: int, room_bytes: int, now_s: float) -> None:
        """One more piece of a file was written."""
        row = self.rows.get(file)
        if row is None:
            self._numbers += 1
            row = self.rows[file] = SimulatedRow(self._numbers, file, now_s)
        row.room_bytes += room_bytes
        row.bytes += size_bytes
        row.pieces.append(piece)
        self._waiting.append((now_s, file, size_bytes))
        self._waiting_bytes += size_bytes

    def opened(self, file: int, now_s: float, *, for_reader: bool) -> None:
        """A file was opened. `for_reader`: it was fetched for this open just now, which is no news."""
        noted_s = self._noted_s.get(file)
        if noted_s is not None and now_s - noted_s <= NOTED_EVERY_S:
            return
        self._noted_s[file] = now_s
        if not for_reader and file in self.rows:
            self._uses[file] = int(now_s)

    def hurry(self, now_s: float) -> None:
        """What was staged until now is to be durable as soon as may be."""
        self._hurried_s = now_s

    def brought_up(self, now_s: float) -> None:
        """All that the index is told until now."""
        self._commit(now_s)
        if now_s < self._flush_s:
            return
        self._flush_s = now_s + USES_FLUSHED_EVERY_S
        for file, use_s in self._uses.items():
            row = self.rows.get(file)
            if row is not None and use_s > row.last_use_s:
                row.last_use_s = use_s
                self.put_back([row])
        self._uses.clear()

    def oldest(self) -> list[SimulatedRow]:
        """The next page, which is taken off."""
        page: dict[int, SimulatedRow] = {}
        while self._by_age and len(page) < PAGE_ENTRIES:
            last_use_s, number, file = heapq.heappop(self._by_age)
            row = self.rows.get(file)
            if row is not None and (row.number, row.last_use_s) == (number, last_use_s):
                page[file] = row
        return list(page.values())

    def put_back(self, rows: Iterable[SimulatedRow]) -> None:
        """Of a page that was taken off, or with another last use."""
        for row in rows:
            heapq.heappush(self._by_age, (row.last_use_s, row.number, row.file))

    def _commit(self, now_s: float) -> None:
        while self._waiting:
            begun_s = self._waiting[0][0]
            is_due = begun_s <= self._hurried_s or self._waiting_bytes >= self._commit_bytes
            if begun_s + COMMIT_EVERY_S > now_s and not is_due:
                return
            until_s = now_s if is_due else begun_s + COMMIT_EVERY_S
            while self._waiting and self._waiting[0][0] <= until_s:
                _, file, size_bytes = self._waiting.popleft()
                self._waiting_bytes -= size_bytes
                row = self.rows.get(file)
                if row is not None:
                    self.put_back([row])
