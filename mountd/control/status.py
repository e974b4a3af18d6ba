"""Status: the one object that `hfs status --json` prints. Each room tells its part, and this joins them in order.

Nothing here waits for the source or a disk: it answers while every reader hangs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from mountd.core.metrics import COUNTERS, Metrics

KEYS = (
    *("pid", "version", "mountpoint", "keeper", "uptime_s"),
    *("io_mode", "opens", "source", "peers", "reads", "read_bytes", "readers", "readers_unknown", "hints"),
    *("source_wait_s", "staged", "scrub", "stage_encoding", "ahead", "queues", "memory", "descriptors", "open"),
    *("faults", "other_users", "background_faults", "evicted", "interrupted", "version_changes", "stale_served"),
    *("page_cache", "data_plane", "leaves", "kernel", "config", "counters"),
)
"""Of the whole object, in the order in which people read them."""

_FAULTS = (
    "staging_errors",
    "staging_dropped",
    "staged_checksum_failures",
    "staged_changed",
    "push_errors",
    "short_replies",
    "unexpected_errors",
)

FORMER_COUNTERS = {
    "peer_turns": "peer_read_slots",
    "peer_turn_wait_ns": "peer_read_slot_wait_ns",
    "reads_alone": "reads_bypass",
    "bytes_alone": "bytes_bypass",
}
"""Names before, shown beside the new ones for one release."""


class StatusSection(Protocol):
    """What one room tells of itself: the values of some of KEYS, which no other section has."""

    def gather(self) -> dict[str, object]:
        """Only numbers, texts, lists and dicts. Never waits."""


class StatusReport:
    """All sections of one daemon."""

    def __init__(self, sections: Sequence[StatusSection], refresh: Callable[[], Awaitable[None]]) -> None:
        """`refresh` has figures that need a look elsewhere looked up again, in 50 ms at most."""
        self._sections = sections
        self._refresh = refresh

    async def gather(self) -> dict[str, object]:
        """The object of `hfs status --json`."""
        await self._refresh()
        found: dict[str, object] = {}
        for section in self._sections:
            found |= section.gather()
        return {key: found[key] for key in KEYS}


class CounterStatus:
    """The keys `faults`, `interrupted` and `counters`: what is only counted, wherever that is."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def gather(self) -> dict[str, object]:
        """The figures of this moment."""
        metrics = self._metrics
        counters = {name: {"value": metrics[name], "meaning": meaning} for name, meaning in COUNTERS.items()}
        return {
            "faults": {name: metrics[name] for name in _FAULTS},
            "interrupted": metrics["interrupted"],
            "counters": counters | {former: counters[name] for former, name in FORMER_COUNTERS.items()},
        }
