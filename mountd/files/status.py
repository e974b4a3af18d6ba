"""What `hfs status` tells of open files: how they are served, who reads, what from where, what the page cache holds.

Reads that the kernel answers from its page cache never reach the daemon, so they are in no counter; what of our files
lies in that cache is asked of the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

from hfs.mountd.core.metrics import Metrics
from hfs.mountd.files.delegations import Delegations
from hfs.mountd.files.handles import Handles
from hfs.mountd.files.io_mode import IoMode
from hfs.mountd.files.overlays import KernelReads, Overlays
from hfs.mountd.files.readers import Readers
from hfs.mountd.files.residency import Residency
from hfs.mountd.kernel import DataPlane, PlaneFigures
from hfs.mountd.namespace import Namespace

_OPENS = ("cached", "passed", "anew", "stateless")
TIERS = ("staged", "flight", "source", "bypass")


@dataclass(frozen=True, slots=True)
class FilesStatus:
    """The keys `io_mode`, `by_kernel`, `opens`, `data_plane`, `reads`, `read_bytes`, `readers`, `open` and
    `page_cache`."""

    readers: Readers
    io_mode: IoMode
    overlays: Overlays
    by_kernel: KernelReads
    handles: Handles
    namespace: Namespace
    residency: Residency
    metrics: Metrics
    plane: DataPlane
    delegations: Delegations

    def gather(self) -> dict[str, object]:
        """The figures of this moment; those of the page cache are of the last look (`Residency.refresh`)."""
        namespace, figures, by_kernel = self.namespace, self.plane.figures(), self.by_kernel
        is_faster = self.io_mode.passes_files or by_kernel.has_overlays()
        return {
            "io_mode": {
                **self.io_mode.describe(),
                "overlays": self.overlays.describe(),
                "backing_files": self.io_mode.backing_files - self.delegations.idle_backing_files(),
                "faster_if_reopened": self.handles.from_before_complete() if is_faster else 0,
            },
            "by_kernel": by_kernel.describe(),
            "opens": self._opens(figures),
            "data_plane": {**figures._asdict(), "delegated": len(self.delegations)},
            "reads": self._by_tier("reads_", figures.reads),
            "read_bytes": self._by_tier("bytes_", figures.read_bytes),
            "readers": self.readers.shown(),
            "open": {"nodes": len(namespace.nodes), "names": len(namespace.names), **self.handles.statistics()},
            "page_cache": self.residency.figures,
        }

    def _opens(self, figures: PlaneFigures) -> dict[str, int]:
        without_us = {"cached": figures.opens_cached, "passed": figures.opens_passed}
        return {name: self.metrics["opens_" + name] + without_us.get(name, 0) for name in _OPENS}

    def _by_tier(self, kind: str, staged_without_us: int) -> dict[str, int]:
        found = {tier: self.metrics[kind + tier] for tier in TIERS}
        found["staged"] += staged_without_us
        return {**found, "alone": found["bypass"]}  # its name before; for one release
