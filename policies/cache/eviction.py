"""What must go: which staged files make room, in which order. What all policies share, and the
policies. A new one is a class and an entry in `POLICIES`, by the values of the key `eviction`.

What an order of a learner names (`mountd/hints/space_reservation.py`) is no business of theirs: it goes when the order
says so. When the room is no longer ours (others fill the disk, the size was lowered) each gives up what is in use too.
Pinned (open) files never go. Asked with a page of the oldest entries at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

IDLE_S = 24 * 3600
"""Unopened for so long, a file belongs to a job that is over: an epoch that takes longer than a day is not worth
protecting, and without this a cache filled by last month's data set would never serve another."""


HINTED_IDLE_S = 3600
"""The same while a job that says what it will read lacks room. Who else is at work has opened most of its files within
the hour, or has a cache that serves it no more."""


PAGE_ENTRIES = 512
"""Looked at together. Their order is that of the index, which learns of uses late; within a page it is exact."""

NOTED_EVERY_S = 600
"""And of small files that the data plane opens by itself: NOTED_EVERY_NS in mountd/native/plane/contents.c."""

USES_FLUSHED_EVERY_S = 30.0
"""Uses wait so long until they are written to the index, many together."""

FRUITLESS_S = 30.0
"""When nothing could go, it is not tried again for so long: each try asks the index."""

_AHEAD_BYTES = 256 << 20
_AHEAD_FRACTION = 8
"""A quarter of a gigabyte is a tenth of a second of a fast drive; of a small cache an eighth."""

RENEWAL_SHARE = 25
"""Of the cache a 25th goes at a time where overlays have what is staged open: for each time all of them are made anew.
It may be empty then, so it costs as many hits at most."""


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


class EvictionPolicy:
    """A policy: facts and decisions, no state. All else asks it, and nobody asks for its name."""

    name: ClassVar[str]
    """A value of the key `eviction`."""
    help: ClassVar[str]
    """What goes when the cache is full, after "`name`: "."""
    use_every_s: ClassVar[int]
    """How exactly the index knows last uses; each note costs a write."""
    makes_room: ClassVar[bool]
    """What finds the cache full goes in for something that is in use. So room is kept free ahead of the puts, and what
    was fetched ahead may be gone before its use. False: it is read from the source each time."""

    def before_s(self, now_s: int, idle_s: int) -> int | None:  # noqa: ARG002 - for those that ask
        """The last use before which a file may go, superseded ones aside; None: any file may. `idle_s`: unopened for so
        long, a file is taken for dead."""
        return None

    def order(self, entry: Entry) -> tuple[float, ...]:
        """Of those that may go the smallest go first."""
        return entry.last_use_s, entry.key


def ahead_bytes(limit_bytes: int) -> int:
    """What a policy that makes room keeps free of a cache that may hold `limit_bytes`, ahead of the puts, which cannot
    wait for it."""
    return min(_AHEAD_BYTES, limit_bytes // _AHEAD_FRACTION)


def idle_before_s(policy: EvictionPolicy, now_s: int, *, forced: bool, idle_s: int = IDLE_S) -> int | None:
    """The last use before which a file may go, superseded ones aside; None when any file may."""
    return None if forced else policy.before_s(now_s, idle_s)


def victims(
    entries: Iterable[Entry],
    need_bytes: int,
    policy: EvictionPolicy,
    *,
    now_s: int,
    forced: bool = False,
    idle_s: int = IDLE_S,
) -> list[Entry]:
    """The entries to evict, in order, until `need_bytes` are given back or no more may go.

    `forced`: the room is not ours any more, so what is in use goes too, and orders do not count.
    """
    before_s = idle_before_s(policy, now_s, forced=forced, idle_s=idle_s)
    allowed = [
        entry
        for entry in entries
        if not entry.pinned
        and (entry.superseded or before_s is None or entry.last_use_s < before_s)
        and (entry.superseded or forced or not entry.hinted)
    ]
    allowed.sort(key=lambda entry: (not entry.superseded, policy.order(entry)))
    chosen: list[Entry] = []
    for entry in allowed:
        if need_bytes <= 0:
            break
        chosen.append(entry)
        need_bytes -= entry.room_bytes
    return chosen


class FillOnce(EvictionPolicy):
    """The default: what is staged stays, and what finds the cache full is read from the source every time.

    Training reads in a new random order each epoch, where "least recently used" evicts just what the next epoch reads
    first; so only what is certainly or probably dead makes room: superseded versions, and files that nobody has opened
    for a day. While orders of learners lack room, also what nobody has opened for an hour.
    """

    name = "fill-once"
    help = (
        "nothing, except files that nobody has opened for a day "
        "(random epochs over more data than fits make LRU useless)"
    )
    use_every_s = 3600  # it only asks whether a file was used today
    makes_room = False

    def before_s(self, now_s: int, idle_s: int) -> int | None:
        return now_s - idle_s


class Lru(EvictionPolicy):
    """On request: the least recently used go."""

    name = "lru"
    help = "the longest unused"
    use_every_s = 60
    makes_room = True


POLICIES: dict[str, EvictionPolicy] = {policy.name: policy for policy in (FillOnce(), Lru())}
DEFAULT = FillOnce.name
"""What a mount has that asks for none."""
