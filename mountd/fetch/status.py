"""What `hfs status` tells of fetching: what was fetched ahead, and what waits in which queue."""

from __future__ import annotations

from dataclasses import dataclass

from hfs.mountd.core.buffers import Buffers
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.core.workers import Workers
from hfs.mountd.fetch.chunks.fetcher import Fetcher
from hfs.mountd.fetch.prefetch import Prefetch
from hfs.mountd.source import SourceThreads

_AHEAD = (
    "prefetched_chunks",
    "guessed_chunks",
    "prefetch_dropped",
    "prefetch_yields",
    "stats_ahead",
    "sibling_files",
    "hinted_bytes",
    "hints_missing",
    "pushed_bytes",
)


@dataclass(frozen=True, slots=True)
class FetchStatus:
    """The keys `ahead` and `queues`."""

    fetcher: Fetcher
    prefetch: Prefetch
    source_threads: SourceThreads
    buffers: Buffers
    workers: Workers
    metrics: Metrics

    def gather(self) -> dict[str, object]:
        """The figures of this moment."""
        return {
            "ahead": {name: self.metrics[name] for name in _AHEAD},
            "queues": {
                "fetches": self.fetcher.in_flight,
                **self.prefetch.statistics(),
                **self.source_threads.statistics(),
                "buffers_waiting": self.buffers.waiting,
                "threads_refused": self.workers.refused,
            },
        }
