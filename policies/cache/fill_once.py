"""Eviction `fill-once`, the default: what is staged stays, and what finds the cache full is read from the source every
time.

Training reads in a new random order each epoch, where "least recently used" evicts just what the next epoch reads
first; so only what is certainly or probably dead makes room: superseded versions, and files that nobody has opened for
a day. While orders of learners lack room, also what nobody has opened for an hour.
"""

from __future__ import annotations

from hfs.policies.cache.eviction import EvictionPolicy


class FillOnce(EvictionPolicy):
    """See above."""

    name = "fill-once"
    help = (
        "nothing, except files that nobody has opened for a day "
        "(random epochs over more data than fits make LRU useless)"
    )
    use_every_s = 3600  # it only asks whether a file was used today
    makes_room = False

    def before_s(self, now_s: int, idle_s: int) -> int | None:
        return now_s - idle_s
