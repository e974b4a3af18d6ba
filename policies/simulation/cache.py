"""The cache of one simulated node: its room, what is staged, and what `policies.cache` says goes when there is none.

The daemon learns of uses late, does not evict what is not durable yet, and grants the data plane room ahead of what it
stages: so it is here too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from hfs.policies.cache.admission import COMMIT_EVERY_S, blocks_bytes, grant_bytes, object_overhead_bytes
from hfs.policies.cache.eviction import NOTED_EVERY_S, Entry, ahead_bytes, idle_before_s, victims
from hfs.policies.cache.evictions import POLICIES
from hfs.policies.simulation.pieces import Pieces

_PAGE = 16
"""Of the oldest files are asked about together. The index's pages are larger, and it is asked as seldom."""


@dataclass(slots=True)
class _Row:
    """A staged file."""

    staged_s: float
    last_use_s: float
    """As the index knows it."""
    room_bytes: int = 0
    pieces: list[int] = field(default_factory=list)


class SimulatedCache:
    """Of one node. `part`: of a larger cache that this stands for. Times never go back."""

    def __init__(self, capacity_bytes: int, policy: str, pieces: Pieces, part: float = 1.0) -> None:
        self._policy = POLICIES[policy]
        self._files: list[int] = pieces.files.tolist()
        self._sizes: list[int] = pieces.sizes.tolist()
        whole_bytes = int(capacity_bytes / part)
        self._ahead_bytes = int(ahead_bytes(whole_bytes) * part) if self._policy.makes_room else 0
        self.granted_bytes = int(grant_bytes(whole_bytes) * part) // 2
        """Room is granted in lumps: so much is on average ready for small files that come, and unused in the end."""
        self.free_bytes = capacity_bytes - self.granted_bytes
        self._rows: OrderedDict[int, _Row] = OrderedDict()
        """By file, the one whose last use is oldest first."""
        self._staged: set[int] = set()
        self.staged_bytes = 0

    def __contains__(self, piece: int) -> bool:
        return piece in self._staged

    def pieces(self) -> NDArray[np.int64]:
        """What is staged, in no order."""
        return np.fromiter(self._staged, np.int64, len(self._staged))

    def has_room(self, size_bytes: int) -> bool:
        """Whether so much could be staged, as far as is known before it is tried."""
        return self._policy.makes_room or self.free_bytes >= blocks_bytes(size_bytes) + object_overhead_bytes(1)

    def stage(self, piece: int, now_s: float) -> bool:
        """Keep a piece that was fetched, if there is room or some can be made."""
        if piece in self._staged:
            return True
        file = self._files[piece]
        needed = blocks_bytes(self._sizes[piece]) + (0 if file in self._rows else object_overhead_bytes(1))
        if self.free_bytes < needed + self._ahead_bytes:
            self._make_room(needed + self._ahead_bytes - self.free_bytes, now_s)
        if self.free_bytes < needed:
            return False
        row = self._rows.setdefault(file, _Row(now_s, now_s))
        row.room_bytes += needed
        row.pieces.append(piece)
        self.free_bytes -= needed
        self._staged.add(piece)
        self.staged_bytes += self._sizes[piece]
        return True

    def opened(self, piece: int, now_s: float) -> None:
        """A file was opened. Of those that were opened, or fetched, just before nobody is told."""
        row = self._rows.get(self._files[piece])
        if row is not None and now_s > row.last_use_s + NOTED_EVERY_S:
            row.last_use_s = now_s
            self._rows.move_to_end(self._files[piece])

    def drop(self, pieces: Iterable[int]) -> None:
        """Evict the files of these."""
        for file in {self._files[piece] for piece in pieces}:
            row = self._rows.pop(file, None)
            if row is not None:
                self.free_bytes += row.room_bytes
                self._staged.difference_update(row.pieces)
                self.staged_bytes -= sum(self._sizes[piece] for piece in row.pieces)

    def _make_room(self, need_bytes: int, now_s: float) -> None:
        before_s = idle_before_s(self._policy, int(now_s), forced=False)
        page = list(islice(self._rows.items(), _PAGE))
        if not page or (before_s is not None and page[0][1].last_use_s >= before_s):
            return
        entries = [
            Entry(file, row.room_bytes, int(row.last_use_s), pinned=now_s < row.staged_s + COMMIT_EVERY_S)
            for file, row in page
        ]
        going = victims(entries, need_bytes, self._policy, now_s=int(now_s))
        self.drop(self._rows[entry.key].pieces[0] for entry in going)
