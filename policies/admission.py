"""May this be staged: the arithmetic of room, as pure functions of facts that somebody else measured.

Room is accounted before a byte is written, in whole blocks, so what the disk holds never exceeds what is accounted. Two
ways of limiting it: a capacity in bytes, or (none given) a floor of free disk space that is left to everybody else.
Called by `mountd/staging_room.py`; knows neither the disk nor the clock.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "BLOCK_BYTES",
    "RoomFacts",
    "admit",
    "blocks_bytes",
    "default_floor_bytes",
    "object_overhead_bytes",
    "over_bytes",
    "shortfall_bytes",
]

BLOCK_BYTES = 4096
"""What local file systems allocate by; st_blocks of a staged file is a multiple of it."""

_CHUNKS_PER_TREE_BLOCK = 128
"""A block of ext4's extent tree holds 340 extents; a chunk on a fragmented disk may need two or three of them."""

_FLOOR_FRACTION = 10
_FLOOR_BYTES = 10 * 1000**3
"""Left free when no size was asked for: a tenth of the disk, and never less than what a job's own output may need."""


@dataclass(frozen=True, slots=True)
class RoomFacts:
    """What is known of the room at one moment. All in bytes."""

    used_bytes: int
    """Accounted: everything staged, being staged, or evicted but not yet removed from the disk."""
    capacity_bytes: int | None
    """The size that was asked for; None to keep `floor_bytes` of the disk free instead."""
    free_bytes: int
    """Free on the disk, less what is accounted but not yet written."""
    floor_bytes: int
    """To be left free; only looked at without a capacity."""


def blocks_bytes(size_bytes: int) -> int:
    """`size_bytes` rounded up to whole blocks: what so many bytes take on the disk."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def object_overhead_bytes(chunks: int) -> int:
    """What a staged file of so many chunks takes besides its bytes: its inode and the blocks that map it."""
    return BLOCK_BYTES * (1 + chunks // _CHUNKS_PER_TREE_BLOCK)


def default_floor_bytes(disk_bytes: int) -> int:
    """How much of a disk of `disk_bytes` stays free when no capacity was given."""
    return max(disk_bytes // _FLOOR_FRACTION, _FLOOR_BYTES)


def shortfall_bytes(facts: RoomFacts, wanted_bytes: int) -> int:
    """How many bytes must go before `wanted_bytes` more fit; 0 when they fit now."""
    if facts.capacity_bytes is not None:
        return max(0, facts.used_bytes + wanted_bytes - facts.capacity_bytes)
    return max(0, facts.floor_bytes + wanted_bytes - facts.free_bytes)


def admit(facts: RoomFacts, wanted_bytes: int) -> bool:
    """Whether `wanted_bytes` more may be accounted now."""
    return shortfall_bytes(facts, wanted_bytes) == 0


def over_bytes(facts: RoomFacts) -> int:
    """How many bytes we hold that are no longer ours: the size was lowered, or others have filled the disk.

    Never more than is used: what others hold cannot be given back by evicting.
    """
    return min(shortfall_bytes(facts, 0), facts.used_bytes)
