"""All eviction policies, by the values of the key `eviction`. A new one is a class and an entry here."""

from __future__ import annotations

from hfs.policies.cache.eviction import EvictionPolicy


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
