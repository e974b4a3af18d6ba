"""Memory that may still be taken on this node, or in our control group, for pages that nobody has asked for yet.

Asked by `fetcher` before it pushes a chunk into the page cache. The kernel protects pages that are used again and again
from ones that are merely pushed, but a push of more than what is available would only evict itself. Never waits: two
small files of /proc and /sys, looked at once a second.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

__all__ = ["Memory"]

_LOOK_EVERY_S = 1.0
_SHARE = 2
"""Half of what is available: the page cache of the source's files and of the staged ones needs the rest."""


class Memory:
    """What is available. `clock` in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._group = _group()
        self._looked_s = -math.inf
        self._available_bytes = 0

    def available_bytes(self) -> int:
        """What is available now."""
        return available_bytes("/proc/meminfo", self._group)

    def has_room(self, size: int) -> bool:
        """Whether a file of `size` bytes may be put into the page cache as a whole."""
        now_s = self._clock()
        if now_s >= self._looked_s + _LOOK_EVERY_S:
            self._looked_s = now_s
            self._available_bytes = self.available_bytes()
        return size * _SHARE <= self._available_bytes


def available_bytes(meminfo: str, group: str | None) -> int:
    """MemAvailable of `meminfo`, or what the control group at `group` may still have if that is less."""
    available = _field(meminfo, "MemAvailable", 1024)
    if group is None:
        return available
    try:
        with open(f"{group}/memory.max", encoding="ascii") as limit, open(f"{group}/memory.current", "rb") as current:
            free = int(limit.read()) - int(current.read())
        return min(available, free + _field(f"{group}/memory.stat", "inactive_file", 1))
    except (OSError, ValueError):
        return available  # no limit ("max"), or no such controller


def _field(path: str, name: str, unit: int) -> int:
    with open(path, encoding="ascii") as lines:
        found = re.search(rf"^{name}:?\s+(\d+)", lines.read(), re.MULTILINE)
    return int(found[1]) * unit if found else 0


def _group() -> str | None:
    """Our control group (version 2), or None."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as lines:
            return next(f"/sys/fs/cgroup{line[3:].rstrip()}" for line in lines if line.startswith("0::"))
    except (OSError, StopIteration):
        return None
