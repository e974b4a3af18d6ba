"""What `hfs status` tells of the other nodes: who they are to us, and what went to and fro."""

from __future__ import annotations

from dataclasses import dataclass

from hfs.mountd.core.metrics import Metrics
from hfs.mountd.peers.cluster_view import ClusterView

_COUNTED = ("reads", "read_bytes", "misses", "faults", "served", "served_bytes", "refused_busy")


@dataclass(frozen=True, slots=True)
class PeersStatus:
    """The key `peers`."""

    view: ClusterView
    metrics: Metrics

    def gather(self) -> dict[str, object]:
        """The figures of this moment."""
        return {"peers": {**self.view.shown(), **{name: self.metrics["peer_" + name] for name in _COUNTED}}}
