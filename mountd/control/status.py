"""Status: the one object that `hfs status --json` prints, gathered from everybody's figures.

Nothing here waits for the source or a disk: it answers while every reader hangs. Reads that the kernel answers from its
page cache never reach the daemon, so they are in no counter; what of our files lies in that cache is asked of the
kernel.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Protocol

from mountd.cache import Staging
from mountd.core.background import faults
from mountd.core.buffers import Buffers
from mountd.core.config import Config, describe
from mountd.core.metrics import COUNTERS, Metrics
from mountd.core.open_files import OpenFiles, read_small
from mountd.fetch import Prefetch, Readers
from mountd.files import Handles, IoMode, Residency
from mountd.hints import Learners
from mountd.kernel import KernelSettings, fastpath
from mountd.namespace import Journal, Namespace, Permissions
from mountd.peers import Peers
from mountd.source import Source

__all__ = ["StatusReport"]

_TIERS = ("staged", "flight", "source", "alone")
_SOURCE = ("reads", "read_bytes", "opens", "stats", "listings", "errors", "retries", "abandoned")
_LARGE = ("large_reads", "large_read_bytes", "large_reads_ordered")
_PEERS = ("reads", "read_bytes", "misses", "faults", "served", "served_bytes", "refused_busy")
_FAULTS = (
    "staging_errors",
    "staging_dropped",
    "staged_checksum_failures",
    "staged_changed",
    "push_errors",
    "short_replies",
    "unexpected_errors",
)


class _Ending(Protocol):
    """What is asked of the daemon's end (mountd/daemon/ending.py)."""

    @property
    def keeper(self) -> dict[str, object]:
        """What would start another daemon if this one crashed."""
        ...


class StatusReport:
    """Gathers the figures of one daemon."""

    def __init__(
        self,
        config: Config,
        origins: Mapping[str, str],
        *,
        metrics: Metrics,
        source: Source,
        staging: Staging,
        namespace: Namespace,
        handles: Handles,
        prefetch: Prefetch,
        buffers: Buffers,
        readers: Readers,
        learners: Learners,
        residency: Residency,
        threads_refused: Callable[[], int],
        open_files: OpenFiles,
        io_mode: IoMode,
        peers: Peers,
        permissions: Permissions,
        in_flight: Callable[[], int],
        ending: _Ending,
        journal: Journal,
    ) -> None:
        self._config = config
        self._origins = origins
        self._metrics = metrics
        self._source = source
        self._staging = staging
        self._namespace = namespace
        self._handles = handles
        self._prefetch = prefetch
        self._buffers = buffers
        self._readers = readers
        self._learners = learners
        self._residency = residency
        self._threads_refused = threads_refused
        self._open_files = open_files
        self._io_mode = io_mode
        self._peers = peers
        self._permissions = permissions
        self._in_flight = in_flight
        self._ending = ending
        self._journal = journal
        self._started_s = time.time()
        self._kernel = KernelSettings()

    async def refresh(self) -> None:
        """Have figures that need a look elsewhere looked up again; 50 ms at most."""
        await self._residency.refresh()

    def brief(self) -> dict[str, int]:
        """What one node says of itself among many: bytes, unless the name says otherwise."""
        counts = self._metrics.snapshot()
        staged = self._staging.statistics()
        return {
            "staged": staged.bytes,
            "capacity": staged.capacity_bytes,
            "from_source": counts["source_read_bytes"],
            "from_peers": counts["peer_read_bytes"],
            "from_own_cache": counts["bytes_staged"],
            "to_peers": counts["peer_served_bytes"],
            "peer_misses": counts["peer_misses"],
            "peer_faults": counts["peer_faults"],
        }

    def tuned(self, settings: KernelSettings) -> None:
        """What the kernel took of our settings for the mount."""
        self._kernel = settings

    def gather(self) -> dict[str, object]:
        """The whole object; only numbers, texts, lists and dicts."""
        counts = self._metrics.snapshot()
        staged = dataclasses.asdict(self._staging.statistics())
        staged["unvouched_bytes"] = staged["uncommitted_bytes"]  # its name before; for one release
        return {
            "pid": os.getpid(),
            "version": metadata.version("hfs-cache"),
            "mountpoint": self._config.mountpoint,
            "keeper": {**self._ending.keeper, "journal": self._journal.statistics()},
            "uptime_s": round(time.time() - self._started_s, 1),
            "io_mode": {
                **self._io_mode.describe(),
                "faster_if_reopened": self._handles.from_before_complete() if self._io_mode.passes_files else 0,
            },
            "opens": {name: counts["opens_" + name] for name in ("cached", "passed", "anew", "stateless")},
            "source": {
                "path": self._source.path,
                "id": self._source.source_id,
                "file_systems": self._source.file_systems.shown(),
                **{("bytes" if name == "read_bytes" else name): counts["source_" + name] for name in _SOURCE},
                **{name: counts["source_" + name] for name in _LARGE},
                "direct": self._source.files.direct,
                "in_doubt": len(self._source.doubts),
                "absolute_links": self._source.metadata.absolute_link_count,
                "absolute_links_named": list(self._source.metadata.absolute_links),
            },
            "peers": {**self._peers.shown(), **{name: counts["peer_" + name] for name in _PEERS}},
            "reads": {tier: counts["reads_" + tier] for tier in _TIERS},
            "read_bytes": {tier: counts["bytes_" + tier] for tier in _TIERS},
            "readers": self._readers.shown(),
            "readers_unknown": fastpath.extension_missing(),  # why nobody is named
            "hints": self._learners.shown(),
            "source_wait_s": round(counts["source_wait_ns"] / 1e9, 3),
            "staged": staged,
            "scrub": self._staging.scrub.figures(),
            "stage_encoding": {
                "wanted": self._config.stage_encoding,
                "on": self._staging.encoding.on,
                "reason": self._staging.encoding.reason,
            },
            "ahead": {
                name: counts[name]
                for name in (
                    "prefetched_chunks",
                    "guessed_chunks",
                    "prefetch_dropped",
                    "stats_ahead",
                    "sibling_files",
                    "hinted_bytes",
                    "hints_missing",
                    "pushed_bytes",
                )
            },
            "queues": {
                "fetches": self._in_flight(),
                **self._prefetch.statistics(),
                **self._source.threads.statistics(),
                "buffers_waiting": self._buffers.waiting,
                "threads_refused": self._threads_refused(),
            },
            "memory": {"buffer_bytes": self._buffers.used_bytes, "resident_bytes": _resident_bytes()},
            "descriptors": self._open_files.statistics(),
            "open": {"nodes": len(self._namespace), "names": len(self._namespace.names), **self._handles.statistics()},
            "faults": {name: counts[name] for name in _FAULTS},
            "other_users": {
                **self._permissions.figures(),
                **{name: counts["permissions_" + name] for name in ("asked", "refused")},
            },
            "background_faults": faults(),
            "evicted": {"files": counts["evicted_files"], "bytes": counts["evicted_bytes"]},
            "interrupted": counts["interrupted"],
            "version_changes": counts["version_changes"],
            "stale_served": counts["stale_served"],
            "page_cache": self._residency.figures,
            "kernel": dataclasses.asdict(self._kernel),
            "config": describe(self._config, self._origins),
            "counters": {name: {"value": counts[name], "meaning": meaning} for name, meaning in COUNTERS.items()},
        }


def _resident_bytes() -> int:
    return int(read_small("/proc/self/statm").split()[1]) * os.sysconf("SC_PAGESIZE")
