"""The table of slots as a plain dictionary: what the one in C is compared with, and what namespaces are tested by."""

from __future__ import annotations

import errno
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from hfs.mountd.core.attributes import SEEN_BYTES, SeenNames, Version, attributes_of
from hfs.mountd.kernel import TakenSlot
from hfs.mountd.namespace.journal import Journal
from hfs.mountd.namespace.nodes.slots import Slots
from hfs.mountd.namespace.nodes.table import NodeTable
from tests.support.fake_source import FakeSource

_NOT_SEEN = struct.pack("=i", errno.ENOENT) + bytes(SEEN_BYTES - 4)


@dataclass
class Kept:
    node_id: int
    directory_id: int
    name: bytes
    until_s: float
    seen: bytes
    look_ups: int = 0

    @property
    def version(self) -> Version:
        found = attributes_of(self.seen, 0)
        assert found is not None
        return found.version("")


class FakeSlotTable:
    """`clock` is that of the table. `look_up`, `attributes` and `forget` are what the kernel does."""

    def __init__(self, clock: Callable[[], float] = trio.current_time) -> None:
        self.runs = True
        self.is_stateless = False
        self.slots: dict[tuple[int, bytes], Kept] = {}
        self._clock = clock
        self._next_id = 0
        self._hand = 0

    def begin(self, first_id: int) -> None:
        self.slots.clear()
        self._next_id = first_id

    def become_stateless(self) -> None:
        self.is_stateless = True

    def put(
        self, directory_id: int, found: SeenNames, skip: bytearray, *, valid_s: float, objects: Sequence[int] = ()
    ) -> tuple[int, list[int]]:
        added, left = 0, []
        for index, name in enumerate(found.names):
            seen = found.seen[index * SEEN_BYTES : (index + 1) * SEEN_BYTES]
            kept = self.slots.get((directory_id, name))
            fresh = Kept(self._next_id, directory_id, name, self._clock() + valid_s, seen)
            if skip[index] or not name or len(name) > 255 or (kept is not None and kept.version != fresh.version):
                left.append(index)
            elif kept is not None:
                kept.until_s, kept.seen = fresh.until_s, seen
            else:
                self.slots[directory_id, name] = fresh
                self._next_id += 1
                added += 1
        return added, left

    def take(self, directory_id: int, name: bytes) -> TakenSlot | None:
        kept = self.slots.pop((directory_id, name), None)
        if kept is None:
            return None
        return TakenSlot(kept.node_id, directory_id, name, kept.look_ups, kept.until_s - self._clock(), kept.seen)

    def take_id(self, node_id: int) -> TakenSlot | None:
        kept = self.by_id(node_id)
        return self.take(kept.directory_id, kept.name) if kept is not None else None

    def written_down(self, _slot: TakenSlot) -> None:
        """Nobody comes after us."""

    def unknown(self, directory_id: int, names: Sequence[bytes]) -> list[bytes]:
        known = [(name, self.slots.get((directory_id, name))) for name in names]
        return [name for name, kept in known if kept is None or not self._is_told(kept)]

    def _is_told(self, kept: Kept) -> bool:
        return kept.until_s > self._clock()

    def seen(self, directory_id: int, names: Sequence[bytes]) -> bytes:
        known = [self.slots.get((directory_id, name)) for name in names]
        return b"".join(kept.seen if kept is not None and kept.until_s > self._clock() else _NOT_SEEN for kept in known)

    def expire(self, directory_ids: Sequence[int]) -> list[tuple[int, list[bytes]]]:
        held: dict[int, list[bytes]] = {}
        for (directory_id, name), kept in self.slots.items():
            if directory_id in directory_ids:
                kept.until_s = -math.inf
                if kept.look_ups:
                    held.setdefault(directory_id, []).append(name)
        return list(held.items())

    def sweep(self, at_most: int) -> list[int]:
        """All of it at once, one time in 1024."""
        self._hand += 1
        if self._hand % 1024:
            return []
        gone = []
        for key, kept in list(self.slots.items()):
            if not kept.look_ups and (kept.until_s <= self._clock() or self.unheld > at_most):
                del self.slots[key]
                gone.append(kept.directory_id)
        return gone

    @property
    def unheld(self) -> int:
        return sum(not kept.look_ups for kept in self.slots.values())

    def by_id(self, node_id: int) -> Kept | None:
        return next((kept for kept in self.slots.values() if kept.node_id == node_id), None)

    def look_up(self, directory_id: int, name: bytes) -> Kept | None:
        """None: the look-up goes to the daemon."""
        kept = self.slots.get((directory_id, name))
        if kept is None or not self._is_told(kept) or (self.is_stateless and not kept.version.size):
            return None
        kept.look_ups += 1
        return kept

    def attributes(self, node_id: int) -> Kept | None:
        kept = self.by_id(node_id)
        is_sized = kept is not None and (kept.version.size or not self.is_stateless)
        return kept if kept is not None and is_sized and self._is_told(kept) else None

    def forget(self, node_id: int, count: int) -> bool:
        """False: it goes to the daemon."""
        kept = self.by_id(node_id)
        if kept is not None:
            kept.look_ups = max(0, kept.look_ups - count)
        return kept is not None


def no_slots() -> Slots:
    """For whoever needs no namespace."""
    nodes = NodeTable(Journal(), lambda _version: False)
    fake: Any = FakeSource()
    return Slots(None, nodes, fake, at_most=0, ttl_s=1, clock=trio.current_time)
