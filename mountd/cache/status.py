"""What `hfs status` tells of the cache: what is staged, how the scrub goes, what was evicted."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from hfs.mountd.cache.cache import Cache
from hfs.mountd.core.config import Config
from hfs.mountd.core.metrics import Metrics


@dataclass(frozen=True, slots=True)
class CacheStatus:
    """The keys `staged`, `scrub`, `stage_encoding` and `evicted`."""

    cache: Cache
    metrics: Metrics
    config: Config

    def gather(self) -> dict[str, object]:
        """The figures of this moment."""
        figures = dataclasses.asdict(self.cache.statistics())
        staged = {name.replace("shrunk_", "encoded_"): figure for name, figure in figures.items()}
        staged["unvouched_bytes"] = staged["uncommitted_bytes"]  # its name before; for one release
        encoding = self.cache.shrinking.choice
        return {
            "staged": staged,
            "scrub": self.cache.scrub.figures(),
            "stage_encoding": {"wanted": self.config.stage_encoding, "on": encoding.on, "reason": encoding.reason},
            "evicted": {"files": self.metrics["evicted_files"], "bytes": self.metrics["evicted_bytes"]},
        }
