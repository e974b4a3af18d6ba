"""What `hfs status` tells of the source: its identity, what was asked of it, what is odd about it."""

from __future__ import annotations

from dataclasses import dataclass

from hfs.mountd.core.metrics import Metrics
from hfs.mountd.source.source import Source

_COUNTED = ("opens", "stats", "listings", "errors", "retries", "abandoned")
_LARGE = ("large_reads", "large_read_bytes", "large_reads_ordered")


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """The keys `source` and `source_wait_s`."""

    source: Source
    metrics: Metrics

    def gather(self) -> dict[str, object]:
        """The figures of this moment."""
        source, metrics = self.source, self.metrics
        return {
            "source": {
                "path": source.path,
                "id": source.source_id,
                "file_systems": source.file_systems.shown(),
                "reads": metrics["source_reads"],
                "bytes": metrics["source_read_bytes"],
                **{name: metrics["source_" + name] for name in (*_COUNTED, *_LARGE)},
                "failure": source.threads.failure,
                "direct": source.files.direct,
                "in_doubt": len(source.doubts),
                "wrong_sizes": source.files.wrong_sizes,
                "absolute_links": source.metadata.absolute_link_count,
                "absolute_links_named": list(source.metadata.absolute_links),
            },
            "source_wait_s": round(metrics["source_wait_ns"] / 1e9, 3),
        }
