"""Eviction `lru`, on request: the least recently used go."""

from __future__ import annotations

from hfs.policies.cache.eviction import EvictionPolicy


class Lru(EvictionPolicy):
    """See above."""

    name = "lru"
    help = "the longest unused"
    use_every_s = 60
    makes_room = True
