"""The cache of one simulated node: its room, what is staged, and what goes when there is none.

As the daemon has it, in its steps: room is granted ahead of what is staged (mountd/cache/arrivals.py), and the evictor
frees some ahead, a page of the oldest rows at a time, which takes its time (evictor.py). What fits and what goes is
decided by `policies.cache`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hfs.policies.cache.admission import (
    COMMIT_BYTES,
    RoomFacts,
    admit,
    blocks_bytes,
    grant_bytes,
    object_overhead_bytes,
    shortfall_bytes,
)
from hfs.policies.cache.eviction import FRUITLESS_S, PAGE_ENTRIES, Entry, ahead_bytes, idle_before_s, victims
from hfs.policies.cache.evictions import POLICIES
from hfs.policies.simulation.index import SimulatedIndex, SimulatedRow
from hfs.policies.simulation.pieces import Pieces

_GRANT_EVERY_S = 0.02
"""How often the daemon looks whether room is to be granted (mountd/fetch/small_pipeline.py)."""

_EVICTION_S = 0.3
"""What an eviction takes until its room is free: it waits for the index, which is entering thousands of new files just
then, for a durable commit, and for some hundred unlinks. With this, lru fetches as many files in vain as was measured
(`scripts/bench trace`); where less is fetched at a time it makes no difference."""

_SYNC_S = 0.25
"""What it takes to make durable what was staged, where eviction waits for that."""

BEGIN_S = 10 * 24 * 3600.0
"""The simulated clock starts late enough that "not used for a day" can be told."""


class SimulatedCache:
    """Of one node. `part`: of a larger cache that this stands for. Times never go back."""

    def __init__(self, capacity_bytes: int, policy: str, pieces: Pieces, part: float = 1.0) -> None:
        self._capacity_bytes = capacity_bytes
        self._policy = POLICIES[policy]
        self._files: list[int] = pieces.files.tolist()
        whole_bytes = int(capacity_bytes / part)
        self._grant_bytes = int(grant_bytes(whole_bytes) * part)
        self._ahead_bytes = int(ahead_bytes(whole_bytes) * part) if self._policy.makes_room else 0
        self._used_bytes = 0
        """What is staged, and what is granted."""
        self.granted_bytes = 0
        self._leaving_bytes = 0
        """Of what is used: evicted, and free from `_free_s` on."""
        self._free_s = -math.inf
        self._index = SimulatedIndex(BEGIN_S, int(COMMIT_BYTES * part))
        self._staged: set[int] = set()
        self._grant_s = -math.inf
        self._fruitless_until_s = -math.inf

    def __contains__(self, piece: int) -> bool:
        return piece in self._staged

    def pieces(self) -> NDArray[np.int64]:
        """What is staged, in no order."""
        return np.fromiter(self._staged, np.int64, len(self._staged))

    @property
    def staged_bytes(self) -> int:
        """Bytes of files, without what they take besides."""
        return sum(row.bytes for row in self._index.rows.values())

    @property
    def free_bytes(self) -> int:
        """Room that is neither used nor granted."""
        return self._capacity_bytes - self._used_bytes

    def admits(self, size_bytes: int) -> bool:
        """Whether so much could be staged, as far as is known before it is tried."""
        needed = blocks_bytes(size_bytes) + object_overhead_bytes(1)
        return self._policy.makes_room or self.free_bytes + self.granted_bytes >= needed

    def stage(self, piece: int, size_bytes: int, now_s: float, *, by_itself: bool) -> bool:
        """Keep a piece that was fetched, if there is room or some can be made. `by_itself`: its room is accounted when
        it comes, not out of what was granted."""
        if piece in self._staged:
            return True
        file = self._files[piece]
        needed = blocks_bytes(size_bytes) + (0 if file in self._index.rows else object_overhead_bytes(1))
        if not (self._account(needed, now_s) if by_itself else self._take_granted(needed, now_s)):
            return False
        self._index.staged(file, piece, size_bytes, needed, now_s)
        self._staged.add(piece)
        return True

    def opened(self, piece: int, now_s: float, *, for_reader: bool) -> None:
        """A file was opened. `for_reader`: it was fetched for this open just now."""
        self._index.opened(self._files[piece], now_s, for_reader=for_reader)

    def grant(self, now_s: float) -> None:
        """Have some room granted for small files, if it is time."""
        if now_s < self._grant_s + _GRANT_EVERY_S:
            return
        self._grant_s = now_s
        if self.granted_bytes < self._grant_bytes // 2 and self._account(self._grant_bytes, now_s):
            self.granted_bytes += self._grant_bytes

    def drop(self, pieces: list[int]) -> None:
        """Evict the files of these by name, as an order says."""
        for file in {self._files[piece] for piece in pieces}:
            row = self._index.rows.get(file)
            if row is not None:
                self._evict_row(row)
        self._leave(math.inf)

    def _account(self, needed_bytes: int, now_s: float) -> bool:
        self._leave(now_s)
        if not admit(self._facts(), needed_bytes):
            self._make_room(now_s, needed_bytes)
        if not admit(self._facts(), needed_bytes):
            return False
        self._used_bytes += needed_bytes
        if self._policy.makes_room:
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

    def _facts(self) -> RoomFacts:
        return RoomFacts(self._used_bytes, self._capacity_bytes, 0, 0)

    def _make_room(self, now_s: float, wanted_bytes: int) -> None:
        """As the evictor does when a put found no room, or when less is free than the policy keeps free."""
        self._leave(now_s)
        if now_s < self._fruitless_until_s or self._leaving_bytes:
            return
        freed = self._evict(now_s, wanted_bytes)
        if freed:
            self._free_s = now_s + _EVICTION_S
        if freed or not self._need_bytes(wanted_bytes):
            return
        if self._policy.makes_room and self._index.has_waiting:
            # A small cache may be full of what is too new to go: the evictor has it synced, and waits for that.
            self._fruitless_until_s = now_s + _SYNC_S
            self._index.hurry(now_s)
        else:
            self._fruitless_until_s = now_s + FRUITLESS_S

    def _leave(self, now_s: float) -> None:
        if now_s >= self._free_s:
            self._used_bytes -= self._leaving_bytes
            self._leaving_bytes = 0

    def _need_bytes(self, wanted_bytes: int) -> int:
        short_bytes = shortfall_bytes(self._facts(), max(wanted_bytes, self._ahead_bytes)) - self._leaving_bytes
        return min(short_bytes, self._used_bytes - self._leaving_bytes)

    def _evict(self, now_s: float, wanted_bytes: int) -> bool:
        """Whether anything goes."""
        self._index.brought_up(now_s)
        kept: list[SimulatedRow] = []
        while (need := self._need_bytes(wanted_bytes)) > 0:
            page = self._index.oldest()
            before_s = idle_before_s(self._policy, int(now_s), forced=False)
            if not page or (before_s is not None and page[0].last_use_s >= before_s):
                kept += page
                break
            entries = [Entry(row.file, row.room_bytes, row.last_use_s) for row in page]
            chosen = {entry.key for entry in victims(entries, need, self._policy, now_s=int(now_s))}
            for row in page:
                if row.file in chosen:
                    self._evict_row(row)
                else:
                    kept.append(row)
            if len(page) < PAGE_ENTRIES:
                break
        self._index.put_back(kept)
        return self._leaving_bytes > 0

    def _evict_row(self, row: SimulatedRow) -> None:
        del self._index.rows[row.file]
        self._leaving_bytes += row.room_bytes
        self._staged.difference_update(row.pieces)
