"""May this be staged: the arithmetic of room, as pure functions of facts that somebody else measured.

Room is accounted before a byte is written, in whole blocks, so what the disk holds never exceeds what is accounted. Two
limits: a capacity in bytes, if one was given, and a floor of free disk space that is left to everybody else, which is
lower where a capacity was given. Knows neither the disk nor the clock.
"""

from __future__ import annotations

from dataclasses import dataclass

BLOCK_BYTES = 4096
"""What local file systems allocate by; st_blocks of a staged file is a multiple of it."""

_CHUNKS_PER_TREE_BLOCK = 128
"""A block of ext4's extent tree holds 340 extents; a chunk on a fragmented disk may need two or three of them."""

_FLOOR_FRACTION = 10
_FLOOR_BYTES = 10 * 1000**3
"""Left free when no size was asked for: a tenth of the disk, and never less than what a job's own output may need."""

_SIZED_FLOOR_FRACTION = 20
_SIZED_FLOOR_BYTES = 1000**3
"""Left free whatever size was asked for: our index and log need some of it, and no program of the machine should find
its disk full because of a cache. Whoever gives a size knows what else the disk is for, so it is little."""


_GRANT_BYTES = 256 << 20
_GRANT_SHARE = 32
"""Room is granted to the data plane ahead of what it stages: at most a 32nd of what the cache may use, since what is
granted looks used."""

COMMIT_EVERY_S = 2.0
"""What is staged becomes durable, and may be evicted, so late: the work that a kill can cost at most. A sync every two
seconds costs a drive nothing."""

COMMIT_BYTES = 256 << 20
"""Or when so much is waiting for it."""


@dataclass(frozen=True, slots=True)
class RoomFacts:
    """What is known of the room at one moment. All in bytes."""

    used_bytes: int
    """Accounted: everything staged, being staged, or evicted but not yet removed from the disk."""
    capacity_bytes: int | None
    """The size that was asked for; None: as much as the floor leaves."""
    free_bytes: int
    """Free on the disk, less what is accounted but not yet written."""
    floor_bytes: int
    """To be left free; 0: the disk is not asked, since what it says of its room means nothing."""


def grant_bytes(limit_bytes: int) -> int:
    """What the data plane is granted at a time of a cache that may hold `limit_bytes`; more once half of it is used."""
    return min(_GRANT_BYTES, limit_bytes // _GRANT_SHARE)


def blocks_bytes(size_bytes: int) -> int:
    """`size_bytes` rounded up to whole blocks: what so many bytes take on the disk."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def object_overhead_bytes(chunks: int) -> int:
    """What a staged file of so many chunks takes besides its bytes: its inode and the blocks that map it."""
    return BLOCK_BYTES * (1 + chunks // _CHUNKS_PER_TREE_BLOCK)


def default_floor_bytes(disk_bytes: int) -> int:
    """How much of a disk of `disk_bytes` stays free when no capacity was given."""
    return max(disk_bytes // _FLOOR_FRACTION, _FLOOR_BYTES)


def sized_floor_bytes(disk_bytes: int) -> int:
    """How much of a disk of `disk_bytes` stays free when a capacity was given; 0 where a disk does not say its size, as
    tmpfs without a limit."""
    return min(disk_bytes // _SIZED_FLOOR_FRACTION, _SIZED_FLOOR_BYTES)


def limit_bytes(facts: RoomFacts) -> int | None:
    """What may be used in all as things stand; None: there is no limit."""
    by_disk = max(0, facts.used_bytes + facts.free_bytes - facts.floor_bytes) if facts.floor_bytes else None
    return min((limit for limit in (facts.capacity_bytes, by_disk) if limit is not None), default=None)


def shortfall_bytes(facts: RoomFacts, wanted_bytes: int) -> int:
    """How many bytes must go before `wanted_bytes` more fit; 0 when they fit now."""
    of_capacity = of_disk = 0
    if facts.capacity_bytes is not None:
        of_capacity = facts.used_bytes + wanted_bytes - facts.capacity_bytes
    if facts.floor_bytes:
        of_disk = facts.floor_bytes + wanted_bytes - facts.free_bytes
    return max(0, of_capacity, of_disk)


def admit(facts: RoomFacts, wanted_bytes: int) -> bool:
    """Whether `wanted_bytes` more may be accounted now."""
    return shortfall_bytes(facts, wanted_bytes) == 0


def over_bytes(facts: RoomFacts) -> int:
    """How many bytes we hold that are no longer ours: the size was lowered, or others have filled the disk.

    Never more than is used: what others hold cannot be given back by evicting.
    """
    return min(shortfall_bytes(facts, 0), facts.used_bytes)
