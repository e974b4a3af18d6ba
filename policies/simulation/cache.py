"""The cache of one simulated node: room, what is staged, what the index knows of uses, and what goes when.

As the daemon has it, in its steps: room is granted ahead of what is staged (mountd/cache/arrivals.py), what is staged
may be evicted once it is durable (committer.py), the index learns of uses late (table/row_updates.py, and
NOTED_EVERY_S), and the evictor frees some room ahead, a page of the oldest rows at a time (evictor.py). What fits and
what goes is decided by `policies.cache`.
"""

from __future__ import annotations

import heapq
import math
from collections import deque

import numpy as np
from numpy.typing import NDArray

from policies.cache.admission import (
    COMMIT_BYTES,
    COMMIT_EVERY_S,
    RoomFacts,
    admit,
    blocks_bytes,
    grant_bytes,
    object_overhead_bytes,
    shortfall_bytes,
)
from policies.cache.eviction import (
    FRUITLESS_S,
    NOTED_EVERY_S,
    PAGE_ENTRIES,
    USES_FLUSHED_EVERY_S,
    Entry,
    Policy,
    ahead_bytes,
    idle_before_s,
    victims,
)
from policies.simulation.pieces import Pieces

_GRANT_EVERY_S = 0.02
"""How often the daemon looks whether room is to be granted (mountd/fetch/small_pipeline.py)."""

_EVICTION_S = 0.1
"""What an eviction takes until its room is free: a durable commit, and some hundred unlinks."""

_SYNC_S = 0.25
"""What it takes to make durable what was staged, where eviction waits for that: thousands of files on a usual disk."""

BEGIN_S = 10 * 24 * 3600.0
"""The simulated clock starts late enough that "not used for a day" can be told."""


class _Row:
    """A file of the index."""

    __slots__ = ("bytes", "file", "last_use_s", "number", "pieces", "room_bytes")

    def __init__(self, number: int, file: int, now_s: float) -> None:
        self.number = number
        self.file = file
        self.last_use_s = int(now_s)
        self.room_bytes = 0
        self.bytes = 0
        self.pieces: list[int] = []


class SimulatedCache:
    """Of one node. Times never go back."""

    def __init__(self, capacity_bytes: int, policy: Policy, pieces: Pieces) -> None:
        self._capacity_bytes = capacity_bytes
        self._policy: Policy = policy
        self._files: list[int] = pieces.files.tolist()
        self._grant_bytes = grant_bytes(capacity_bytes)
        self._ahead_bytes = ahead_bytes(capacity_bytes) if policy == "lru" else 0
        self._used_bytes = 0
        """What is staged, and what is granted."""
        self.granted_bytes = 0
        self._leaving_bytes = 0
        """Of what is used: evicted, and free from `_free_s` on."""
        self._free_s = -math.inf
        self._rows: dict[int, _Row] = {}
        self._staged: set[int] = set()
        self._by_age: list[tuple[int, int, int]] = []
        """(last use, number, file) of what is durable; some are out of date."""
        self._waiting: deque[tuple[float, int, int]] = deque()
        """(staged at, file, bytes) of what is not durable."""
        self._waiting_bytes = 0
        self._noted_s: dict[int, float] = {}
        self._uses: dict[int, int] = {}
        self._flush_s = BEGIN_S + USES_FLUSHED_EVERY_S
        self._grant_s = -math.inf
        self._fruitless_until_s = self._hurried_s = -math.inf
        self._numbers = 0
        self.gone: list[int] = []
        """Pieces that were evicted and nobody has asked about."""

    def __contains__(self, piece: int) -> bool:
        return piece in self._staged

    def pieces(self) -> NDArray[np.int64]:
        """What is staged, in no order."""
        return np.fromiter(self._staged, np.int64, len(self._staged))

    def admits(self, size_bytes: int) -> bool:
        """Whether so much could be staged, as far as is known before it is tried."""
        return self._policy == "lru" or self.free() >= blocks_bytes(size_bytes) + object_overhead_bytes(1)

    @property
    def staged_bytes(self) -> int:
        """Bytes of files, without what they take besides."""
        return sum(row.bytes for row in self._rows.values())

    def stage(self, piece: int, size_bytes: int, now_s: float, *, by_itself: bool) -> bool:
        """Keep a piece that was fetched, if there is room or some can be made. `by_itself`: its room is accounted when
        it comes, not out of what was granted."""
        if piece in self._staged:
            return True
        row = self._rows.get(self._files[piece])
        needed = blocks_bytes(size_bytes) + (object_overhead_bytes(1) if row is None else 0)
        if not (self._account(needed, now_s) if by_itself else self._take_granted(needed, now_s)):
            return False
        if row is None:
            self._numbers += 1
            row = self._rows[self._files[piece]] = _Row(self._numbers, self._files[piece], now_s)
        row.room_bytes += needed
        row.bytes += size_bytes
        row.pieces.append(piece)
        self._staged.add(piece)
        self._waiting.append((now_s, row.file, size_bytes))
        self._waiting_bytes += size_bytes
        return True

    def _account(self, needed_bytes: int, now_s: float) -> bool:
        self._leave(now_s)
        if not admit(self._facts(), needed_bytes):
            self._make_room(now_s, needed_bytes)
        if not admit(self._facts(), needed_bytes):
            return False
        self._used_bytes += needed_bytes
        if self._policy == "lru":
            self._make_room(now_s, 0)
        return True

    def _take_granted(self, needed_bytes: int, now_s: float) -> bool:
        self.grant(now_s)
        if self.granted_bytes < needed_bytes:
            self._grant_s = -math.inf  # a thread waits for the next grant, which comes in 20 ms
            self.grant(now_s)
        if self.granted_bytes < needed_bytes:
            return False
        self.granted_bytes -= needed_bytes
        return True

    def opened(self, piece: int, now_s: float, *, for_reader: bool) -> None:
        """A file was opened. `for_reader`: it was fetched for this open just now, which is no news to the index."""
        file = self._files[piece]
        noted_s = self._noted_s.get(file)
        if noted_s is not None and now_s - noted_s <= NOTED_EVERY_S:
            return
        self._noted_s[file] = now_s
        if not for_reader and file in self._rows:
            self._uses[file] = int(now_s)

    def grant(self, now_s: float) -> None:
        """Have some room granted for small files, if it is time."""
        if now_s < self._grant_s + _GRANT_EVERY_S:
            return
        self._grant_s = now_s
        if self.granted_bytes < self._grant_bytes // 2 and self._account(self._grant_bytes, now_s):
            self.granted_bytes += self._grant_bytes

    def drop(self, pieces: list[int]) -> int:
        """Evict these by name, as an order says; the bytes that are given back."""
        freed = 0
        for file in {self._files[piece] for piece in pieces}:
            row = self._rows.pop(file, None)
            if row is not None:
                freed += self._gone(row)
        self._leave(math.inf)
        return freed

    def free(self) -> int:
        """Room that is not accounted, and what is granted of it."""
        return self._capacity_bytes - self._used_bytes + self.granted_bytes

    def _facts(self) -> RoomFacts:
        return RoomFacts(self._used_bytes, self._capacity_bytes, 0, 0)

    def _make_room(self, now_s: float, wanted_bytes: int) -> None:
        """As the evictor does when a put found no room, or when lru has less than it keeps free."""
        self._leave(now_s)
        if now_s < self._fruitless_until_s or self._leaving_bytes:
            return
        freed = self._evict(now_s, wanted_bytes)
        if freed:
            self._free_s = now_s + _EVICTION_S
        if freed or not self._need_bytes(wanted_bytes):
            return
        if self._policy == "lru" and self._waiting:
            # A small cache may be full of what is too new to go: the evictor has it synced, and waits for that.
            self._fruitless_until_s = now_s + _SYNC_S
            self._hurried_s = now_s
        else:
            self._fruitless_until_s = now_s + FRUITLESS_S

    def _leave(self, now_s: float) -> None:
        if now_s >= self._free_s:
            self._used_bytes -= self._leaving_bytes
            self._leaving_bytes = 0

    def _need_bytes(self, wanted_bytes: int) -> int:
        short_bytes = shortfall_bytes(self._facts(), max(wanted_bytes, self._ahead_bytes)) - self._leaving_bytes
        return min(short_bytes, self._used_bytes - self._leaving_bytes)

    def _evict(self, now_s: float, wanted_bytes: int) -> int:
        self._commit(now_s)
        self._flush(now_s)
        freed = 0
        kept: list[tuple[int, int, int]] = []
        while (need := self._need_bytes(wanted_bytes)) > 0:
            page = self._oldest()
            before_s = idle_before_s(self._policy, int(now_s), forced=False)
            if not page or (before_s is not None and page[0].last_use_s >= before_s):
                kept += [(row.last_use_s, row.number, row.file) for row in page]
                break
            entries = [Entry(row.file, row.room_bytes, row.last_use_s) for row in page]
            chosen = {entry.key for entry in victims(entries, need, self._policy, now_s=int(now_s))}
            for row in page:
                if row.file in chosen:
                    del self._rows[row.file]
                    freed += self._gone(row)
                else:
                    kept.append((row.last_use_s, row.number, row.file))
            if len(page) < PAGE_ENTRIES:
                break
        for entry in kept:
            heapq.heappush(self._by_age, entry)
        return freed

    def _oldest(self) -> list[_Row]:
        """The next page, taken off."""
        page: dict[int, _Row] = {}
        while self._by_age and len(page) < PAGE_ENTRIES:
            last_use_s, number, file = heapq.heappop(self._by_age)
            row = self._rows.get(file)
            if row is not None and (row.number, row.last_use_s) == (number, last_use_s):
                page[file] = row
        return list(page.values())

    def _gone(self, row: _Row) -> int:
        self._leaving_bytes += row.room_bytes
        self._staged.difference_update(row.pieces)
        self.gone += row.pieces
        return row.room_bytes

    def _commit(self, now_s: float) -> None:
        """What became durable until now."""
        while self._waiting:
            begun_s = self._waiting[0][0]
            is_due = begun_s <= self._hurried_s or self._waiting_bytes >= COMMIT_BYTES
            if begun_s + COMMIT_EVERY_S > now_s and not is_due:
                return
            until_s = now_s if is_due else begun_s + COMMIT_EVERY_S
            while self._waiting and self._waiting[0][0] <= until_s:
                _, file, size_bytes = self._waiting.popleft()
                self._waiting_bytes -= size_bytes
                row = self._rows.get(file)
                if row is not None:
                    heapq.heappush(self._by_age, (row.last_use_s, row.number, row.file))

    def _flush(self, now_s: float) -> None:
        """Uses of which the index has been told until now."""
        if now_s < self._flush_s:
            return
        self._flush_s = now_s + USES_FLUSHED_EVERY_S
        for file, use_s in self._uses.items():
            row = self._rows.get(file)
            if row is not None and use_s > row.last_use_s:
                row.last_use_s = use_s
                heapq.heappush(self._by_age, (row.last_use_s, row.number, row.file))
        self._uses.clear()
