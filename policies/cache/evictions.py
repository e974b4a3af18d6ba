"""All eviction policies, by the values of the key `eviction`. A new one is a file beside this, and a line here."""

from __future__ import annotations

from hfs.policies.cache.eviction import EvictionPolicy
from hfs.policies.cache.fill_once import FillOnce
from hfs.policies.cache.lru import Lru

POLICIES: dict[str, EvictionPolicy] = {
    policy.name: policy
    for policy in (
        FillOnce(),
        Lru(),
    )
}
DEFAULT = FillOnce.name
"""What a mount has that asks for none."""
