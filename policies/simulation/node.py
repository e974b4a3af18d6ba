"""One simulated node: its readers' reads, its cache, what is on its way, and what it fetches ahead.

Asked when a reader comes to a piece, and told when a fetch has ended; it says when the bytes are there. Whom it asks,
source or owner node, is `Job`'s (policies/simulation/job.py).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable

from hfs.policies.iomode import SMALL_BYTES
from hfs.policies.simulation.ahead import Ahead, Neighbours, Orders
from hfs.policies.simulation.cache import SimulatedCache
from hfs.policies.simulation.pieces import HINTED, Epoch, Pieces, SimulatedMount


class SimulatedNode:
    """`fetch(node, piece, bytes, now_s)`: begin to fetch; when it will have come. `later(at_s, node, piece)`: have
    `arrived` called then. `stages(node, piece)`: whether it is staged on this node, and not only on its owner."""

    def __init__(
        self,
        number: int,
        pieces: Pieces,
        mount: SimulatedMount,
        fetch: Callable[[int, int, int, float], float],
        later: Callable[[float, int, int], None],
        stages: Callable[[int, int], bool],
    ) -> None:
        self.number = number
        self._mount = mount
        self._sizes = pieces.sizes.tolist()
        self._fetch = fetch
        self._later = later
        self._stages = stages
        self.cache = SimulatedCache(mount.cache_bytes, mount.eviction, pieces, mount.part)
        self._held: OrderedDict[int, int] = OrderedDict()
        """In memory until their reader comes: bytes."""
        self._held_bytes = 0
        self._coming: dict[int, tuple[float, bool]] = {}
        """When it comes, and whether that is ahead of its reader."""
        self._awaited: set[int] = set()
        self._ahead: Ahead
        self._orders: Orders | None = None
        if mount.way == HINTED:
            self._ahead = self._orders = Orders(pieces, mount, self.cache)
        else:
            self._ahead = Neighbours(pieces, mount, self.cache, lambda: self._held_bytes)
        self._memory_bytes = math.inf if mount.way == HINTED else mount.buffer_bytes // 4
        self._least_bytes = mount.least_bytes(pieces)
        self._running = 0
        self._homeless: set[int] = set()
        """Of those that run: for which there was no room in the cache when they began."""
        self._directories = pieces.directories.tolist()
        self._lent: set[int] = set()
        """Directories of small files in which something was staged: room for more is granted from then on."""
        self._known: set[int] = set()
        """What was opened since the kernel forgot it last."""
        self._was_staged: set[int] = set()
        """What the data plane takes for here when it is asked for ahead: it learns of evictions from readers only."""
        self._looked_s: dict[int, float] = {}
        """When the source was asked last what a file is."""

    def begin(self, epoch: Epoch, following: Epoch | None, now_s: float) -> None:
        """An epoch begins. Of data larger than memory the kernel has forgotten what it knew."""
        self._known.clear()
        self._ahead.begin(epoch, following, now_s)
        self.fetch_ahead(now_s)

    def has(self, piece: int) -> bool:
        """It is staged here, or in memory."""
        return piece in self.cache or piece in self._held

    def have(self, piece: int, now_s: float) -> float:
        """Have it here for another node, which is told when."""
        if self.has(piece):
            return now_s
        found = self._coming.get(piece)
        if found is not None:
            return found[0]
        self._awaited.add(piece)
        return self._begin(piece, self._sizes[piece], now_s, ahead=False)

    def read(self, piece: int, size_bytes: int, now_s: float) -> tuple[float, bool]:
        """A reader comes to a piece: when its bytes are there, and whether a look at the source was due besides."""
        known_s = self._looked_s.get(piece)
        here = self.has(piece)
        self._ahead.opened(piece, now_s, staged=here or piece in self._known)
        self._known.add(piece)
        ready_s, is_due = now_s, False
        if here:
            is_due = known_s is not None and now_s > known_s + self._mount.ttl_s
            self.cache.opened(piece, now_s, for_reader=False)
            self._release(piece)
        else:
            self._awaited.add(piece)
            found = self._coming.get(piece)
            if found is None:
                ready_s = self._begin(piece, self._wanted_bytes(piece, size_bytes), now_s, ahead=False)
            else:
                ready_s = found[0]
        if is_due or known_s is None or not here:
            self._looked_s[piece] = ready_s
        self.fetch_ahead(now_s)
        return ready_s, is_due

    def _wanted_bytes(self, piece: int, size_bytes: int) -> int:
        """What the source gives when a reader comes to so many bytes of a piece that is not here."""
        return self._sizes[piece] if self.cache.admits(self._sizes[piece]) else size_bytes

    def _begin(self, piece: int, size_bytes: int, now_s: float, *, ahead: bool) -> float:
        end_s = self._fetch(self.number, piece, size_bytes, now_s)
        self._coming[piece] = end_s, ahead
        self._later(end_s, self.number, piece)
        return end_s

    def arrived(self, piece: int, now_s: float) -> None:
        """A fetch has ended."""
        _, ahead = self._coming.pop(piece)
        size_bytes = self._sizes[piece]
        is_awaited = piece in self._awaited
        self._awaited.discard(piece)
        is_to_stay = self._stages(self.number, piece)
        if ahead:
            self._running -= 1
            self._homeless.discard(piece)
            is_to_stay &= self._ahead.came(piece, now_s)
            self._looked_s.setdefault(piece, now_s)
        if is_awaited:
            self.cache.opened(piece, now_s, for_reader=True)
        if not (is_to_stay and self._stage(piece, size_bytes, now_s)) and not is_awaited:
            self._hold(piece, size_bytes)
        self.fetch_ahead(now_s)

    def _stage(self, piece: int, size_bytes: int, now_s: float) -> bool:
        directory = self._directories[piece]
        by_itself = self._orders is not None or directory < 0 or directory not in self._lent
        self._lent.add(directory)
        is_staged = self.cache.stage(piece, size_bytes, now_s, by_itself=by_itself)
        (self._was_staged.add if is_staged else self._was_staged.discard)(piece)
        return is_staged

    def fetch_ahead(self, now_s: float) -> None:
        """Begin what is worth fetching now."""
        if self._orders is None:
            self.cache.grant(now_s)
        while self._running < self._mount.fetches_ahead:
            piece = self._ahead.next(len(self._coming), now_s)
            if piece is None:
                return
            if self._is_here(piece) or piece in self._coming or not self._has_place(piece):
                self._ahead.not_needed(piece)
                continue
            self._running += 1
            self._begin(piece, self._sizes[piece], now_s, ahead=True)

    def _is_here(self, piece: int) -> bool:
        return self.has(piece) or (self._orders is None and piece in self._was_staged)

    def _has_place(self, piece: int) -> bool:
        """Whether a file may be fetched ahead though the cache has no room for the largest just now: as has_place in
        mountd/native/plane/workers.c."""
        if self._orders is not None or self._directories[piece] < 0 or self.cache.granted_bytes >= self._least_bytes:
            return True
        has_place = self._held_bytes + (len(self._homeless) + 1) * SMALL_BYTES <= self._memory_bytes / 2
        if has_place:
            self._homeless.add(piece)
        return has_place

    def _hold(self, piece: int, size_bytes: int) -> None:
        self._held[piece] = size_bytes
        self._held_bytes += size_bytes
        while self._held_bytes > self._memory_bytes:
            _, dropped = self._held.popitem(last=False)
            self._held_bytes -= dropped

    def _release(self, piece: int) -> None:
        """It was read: what only memory had goes."""
        size_bytes = self._held.pop(piece, None)
        if size_bytes is not None:
            self._held_bytes -= size_bytes
            if self._orders is not None and piece not in self.cache:
                self._orders.forgotten([piece])
