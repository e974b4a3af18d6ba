"""The table of slots: regular files, each hard link by itself, that nobody in Python has a node of.

Kept by the data plane, which answers look-ups of their names and counts them (mountd/native/plane/slots.c); filled and
emptied by the namespace alone.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from hfs.mountd.core.seen import SeenNames
from hfs.mountd.kernel.plane import DataPlane
from hfs.mountd.native.extension import EXTENSION

_LONGEST_S = 86_400.0 * 365 * 100
"""In nanoseconds it has room in 63 bits; the kernel is told of a day at most."""

_SHARDS = 1024
"""SLOT_SHARDS in mountd/native/plane/plane.h: so many calls go over all of the table."""
_HELD = struct.Struct("=QB")

_Taken = tuple[int, int, bytes, int, int, bytes, int, int]


class TakenSlot(NamedTuple):
    """One that was taken out of the table."""

    node_id: int
    """As the kernel knows it."""
    directory_id: int
    name: bytes
    look_ups: int
    """That the kernel holds."""
    valid_s: float
    """For how long its name and attributes are good, from now on; not positive: they are past their time."""
    seen: bytes
    """Its attributes, as in `core.seen`."""
    opens: int = 0
    """Handles of it that are open, all with its id for a number."""
    number: int = -1
    """Of one that is, or may be, open: where the next daemon would find it until it is `written_down`."""


class SlotFigures(NamedTuple):
    """For the status."""

    known: int = 0
    held: int = 0
    """By the kernel."""
    open: int = 0
    look_ups: int = 0
    """That were answered."""
    attributes: int = 0


class SlotTable:
    """The one table of this process; directories are known by their node ids. Waits only for answers under way."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane

    @property
    def runs(self) -> bool:
        """The threads of the data plane answer."""
        return self._plane.runs

    def begin(self, first_id: int) -> None:
        """It is empty, and gives out node ids from this one on, 2**38 at most."""
        EXTENSION.plane_slots_begin(first_id)

    def become_stateless(self) -> None:
        """Opens do not reach us any more: look-ups of empty files come to us."""
        EXTENSION.plane_slots_become_stateless()

    def put(
        self, directory_id: int, found: SeenNames, skip: bytearray, *, valid_s: float, objects: Sequence[int] = ()
    ) -> tuple[int, list[int]]:
        """Each name is a slot from now on, for so long, unless its byte of `skip` is 1.

        `objects`: none, or the number of what is staged of each.

        How many are new; the indexes of those that are none now: skipped, or another version is there, which stays.
        """
        valid_ns = int(min(valid_s, _LONGEST_S) * 1e9)
        added, left = EXTENSION.plane_slots_put(
            directory_id, found.names, found.seen, skip, array("Q", objects), valid_ns
        )
        return added, [index for index, is_left in enumerate(left) if is_left]

    def take(self, directory_id: int, name: bytes) -> TakenSlot | None:
        """It is ours from now on: requests for it come to us."""
        return _slot(EXTENSION.plane_slots_take(directory_id, name))

    def take_id(self, node_id: int) -> TakenSlot | None:
        """The same, by the id that the kernel knows."""
        return _slot(EXTENSION.plane_slots_take_id(node_id))

    def count(self, handle: int, opens: int) -> int:
        """Where so many that have this handle open are counted from now on (`DataPlane.count`); -1: there are too many
        handles."""
        counter: int = EXTENSION.plane_new_count(handle, opens)
        return counter

    def written_down(self, slot: TakenSlot) -> None:
        """It was taken, and the next daemon of the mount finds what is open of it elsewhere now."""
        if slot.number >= 0:
            EXTENSION.plane_slots_written_down(slot.number)

    def unknown(self, directory_id: int, names: Sequence[bytes]) -> list[bytes]:
        """Those of them that are not slots, or past their time."""
        unknown: list[bytes] = EXTENSION.plane_slots_unknown(directory_id, list(names))
        return unknown

    def seen(self, directory_id: int, names: Sequence[bytes]) -> bytes:
        """What is known of each, as in `core.seen`: ENOENT of those that are not slots, or past their time."""
        seen: bytes = EXTENSION.plane_slots_seen(directory_id, list(names))
        return seen

    def expire(self, directory_ids: Sequence[int]) -> list[tuple[int, list[bytes]]]:
        """All slots in these directories are past their time from now on. By directory the names of those that the
        kernel holds. In a thread: it goes over all slots, a tenth of a second for a million."""
        held: dict[int, list[bytes]] = {}
        directories = array("Q", sorted(directory_ids))
        for shard in range(_SHARDS):
            found = EXTENSION.plane_slots_expire(shard, directories)
            at = 0
            while at < len(found):
                directory_id, size = _HELD.unpack_from(found, at)
                at += _HELD.size + size
                held.setdefault(directory_id, []).append(found[at - size : at])
        return list(held.items())

    def sweep(self, at_most: int) -> list[int]:
        """Go over a 1024th of it: those go that the kernel does not hold, if they are past their time, or if there are
        more than `at_most` such. The directories of those that went, one for each."""
        found = array("Q", EXTENSION.plane_slots_sweep(at_most))
        return found.tolist()

    def reserve(self, directory_id: int, names: Sequence[bytes]) -> None:
        """These names are ours: nobody puts slots for them in a delegated directory (`kernel.small_fetches`)."""
        EXTENSION.plane_reserve(directory_id, list(names))

    def try_reserve(self, directory_id: int, names: Sequence[bytes]) -> list[bytes]:
        """As `reserve`, but for those that were fetched for a delegated directory, or are just now: which are given."""
        is_ours = EXTENSION.plane_try_reserve(directory_id, list(names))
        return [name for name, ours in zip(names, is_ours, strict=True) if not ours]

    def unreserve(self, directory_id: int, names: Sequence[bytes]) -> None:
        """They are not any more."""
        EXTENSION.plane_unreserve(directory_id, list(names))

    def delegated_slots(self, directory_id: int) -> int:
        """How many slots others have put in a delegated directory since the last call."""
        count: int = EXTENSION.plane_delegated_slots(directory_id)
        return count

    def recall_directory(self, directory_id: int) -> int:
        """It is not delegated any more; the same number."""
        count: int = EXTENSION.plane_recall_directory(directory_id)
        return count

    @property
    def unheld(self) -> int:
        """How many the kernel does not hold."""
        figures = self.figures()
        return figures.known - figures.held

    def figures(self) -> SlotFigures:
        """What is there, and what was answered."""
        return SlotFigures(*EXTENSION.plane_slots_figures())


def _slot(taken: _Taken | None) -> TakenSlot | None:
    if taken is None:
        return None
    node_id, directory_id, name, look_ups, valid_ns, seen, opens, number = taken
    return TakenSlot(node_id, directory_id, name, look_ups, valid_ns / 1e9, seen, opens, number)
