"""Status: the one object that `hfs status --json` prints. Each room tells its part, and this joins them in order.

Nothing here waits for the source or a disk: it answers while every reader hangs. Other users than root and the owner of
the mount are told figures, and no name of a file or of somebody else's process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from hfs.mountd.control.traffic import Traffic
from hfs.mountd.core.caller import Credentials
from hfs.mountd.core.metrics import COUNTERS, Metrics
from hfs.mountd.hints import Learners

KEYS = (
    *("pid", "version", "mountpoint", "keeper", "uptime_s", "traffic"),
    *("io_mode", "by_kernel", "opens", "source", "peers", "reads", "read_bytes", "readers", "hints"),
    *("source_wait_s", "staged", "scrub", "stage_encoding", "ahead", "queues", "memory", "descriptors", "open"),
    *("faults", "other_users", "background_faults", "evicted", "interrupted", "version_changes", "stale_served"),
    *("page_cache", "data_plane", "leaves", "kernel", "monitoring", "config", "counters"),
)
"""Of the whole object, in the order in which people read them."""

_FOR_OTHERS = (
    *(
        "pid",
        "version",
        "mountpoint",
        "uptime_s",
        "traffic",
        "io_mode",
        "by_kernel",
        "opens",
        "reads",
        "read_bytes",
        "source_wait_s",
    ),
    *("scrub", "stage_encoding", "ahead", "queues", "memory", "open", "faults", "evicted", "interrupted"),
    *("version_changes", "stale_served", "page_cache", "data_plane", "leaves", "kernel", "counters"),
)
"""What other users are told as it is."""

_FIGURES_FOR_OTHERS: dict[str, tuple[str, ...]] = {"source": (), "staged": ("state",), "peers": ("mode",)}
"""Of these the figures and the texts that are named here: others may name files."""

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

    def __init__(
        self,
        sections: Sequence[StatusSection],
        hints: Learners,
        traffic: Traffic,
        hear_of_small_files: Callable[[], object],
        look_at_page_cache: Callable[[], Awaitable[None]],
    ) -> None:
        """`traffic`: one of the sections. What the data plane has counted since is heard first.
        `look_at_page_cache` takes 50 ms at most."""
        self._sections = sections
        self._hints = hints
        self._traffic = traffic
        self._hear_of_small_files = hear_of_small_files
        self._look_at_page_cache = look_at_page_cache

    def history(self) -> list[dict[str, float]]:
        """The looks of `protocol.History`."""
        return self._traffic.history()

    async def gather(self, reader: Credentials | None, *, page_cache: bool) -> dict[str, object]:
        """The object of `hfs status --json`; for `reader`, another user than root and the owner, what they may see.
        `page_cache`: as in `protocol.Status`."""
        self._hear_of_small_files()
        if page_cache:
            await self._look_at_page_cache()
        hints = {"hints": await self._hints.status(reader)}
        found: dict[str, object] = {}
        for section in self._sections:
            found |= section.gather()
        if reader is None:
            found |= hints
            return {key: found[key] for key in KEYS}
        shown = {key: found[key] for key in _FOR_OTHERS} | hints
        for key, texts in _FIGURES_FOR_OTHERS.items():
            figures = found[key]
            assert isinstance(figures, dict)
            shown[key] = {
                name: told for name, told in figures.items() if isinstance(told, int | float) or name in texts
            }
        return {key: shown[key] for key in KEYS if key in shown}


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
