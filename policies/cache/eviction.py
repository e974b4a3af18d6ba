"""What must go: which staged files make room, in which order.

Two policies. `fill-once`, the default: what is staged stays, and what finds the cache full is read from the source
every time. Training reads in a new random order each epoch, where "least recently used" evicts just what the next
epoch reads first; so under fill-once only what is certainly or probably dead makes room: superseded versions, and
files that nobody has opened for a day. `lru`, on request: the least recently used go.

What an order of a learner names (`mountd/hints/space_reservation.py`) is no business of either: it goes when the order
says so. And while such orders lack room, fill-once gives up what nobody has opened for an hour.

When the room is no longer ours (others fill the disk, the size was lowered) both give up the least recently used.
Pinned (open) files never go. Asked with a page of the oldest entries at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Policy = Literal["fill-once", "lru"]

IDLE_S = 24 * 3600
"""Unopened for so long, a file belongs to a job that is over: an epoch that takes longer than a day is not worth
protecting, and without this a cache filled by last month's data set would never serve another."""


HINTED_IDLE_S = 3600
"""The same while a job that says what it will read lacks room. Who else is at work has opened most of its files within
the hour, or has a cache that serves it no more."""


PAGE_ENTRIES = 512
"""Looked at together. Their order is that of the index, which learns of uses late; within a page it is exact."""

USE_EVERY_S = {"lru": 60, "fill-once": 3600}
"""How exactly the index knows last uses. fill-once only asks whether a file was used today; each note costs a write."""

NOTED_EVERY_S = 600
"""And of small files that the data plane opens by itself: NOTED_EVERY_NS in mountd/native/plane/contents.c."""

USES_FLUSHED_EVERY_S = 30.0
"""Uses wait so long until they are written to the index, many together."""

FRUITLESS_S = 30.0
"""When nothing could go, it is not tried again for so long: each try asks the index."""

_AHEAD_BYTES = 256 << 20
_AHEAD_FRACTION = 8
"""lru keeps a quarter of a gigabyte free, a tenth of a second of a fast drive; of a small cache an eighth."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One staged file as eviction sees it."""

    key: int
    """Whatever the caller knows it by; smaller is older."""
    room_bytes: int
    """What evicting it gives back."""
    last_use_s: int
    """Seconds since the epoch."""
    superseded: bool = False
    """A newer version of the same file is known."""
    pinned: bool = False
    """Open, being written or not yet durable: must stay."""
    hinted: bool = False
    """An order names it."""


def ahead_bytes(limit_bytes: int) -> int:
    """What lru keeps free of a cache that may hold `limit_bytes`, ahead of the puts, which cannot wait for room."""
    return min(_AHEAD_BYTES, limit_bytes // _AHEAD_FRACTION)


def idle_before_s(policy: Policy, now_s: int, *, forced: bool, idle_s: int = IDLE_S) -> int | None:
    """The last use before which a file may go, superseded ones aside; None when any file may."""
    return None if forced or policy == "lru" else now_s - idle_s


def victims(
    entries: Iterable[Entry],
    need_bytes: int,
    policy: Policy,
    *,
    now_s: int,
    forced: bool = False,
    idle_s: int = IDLE_S,
) -> list[Entry]:
    """The entries to evict, in order, until `need_bytes` are given back or no more may go.

    `forced`: the room is not ours any more, so fill-once too gives up what is in use, and orders do not count.
    """
    before_s = idle_before_s(policy, now_s, forced=forced, idle_s=idle_s)
    allowed = [
        entry
        for entry in entries
        if not entry.pinned
        and (entry.superseded or before_s is None or entry.last_use_s < before_s)
        and (entry.superseded or forced or not entry.hinted)
    ]
    allowed.sort(key=lambda entry: (not entry.superseded, entry.last_use_s, entry.key))
    chosen: list[Entry] = []
    for entry in allowed:
        if need_bytes <= 0:
            break
        chosen.append(entry)
        need_bytes -= entry.room_bytes
    return chosen
