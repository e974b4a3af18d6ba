"""The nodes of a job, for `hfs status --cluster` and for samplers: who they are, and what each says of itself."""

from __future__ import annotations

from hfs.mountd.cache import Cache
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.peers import ClusterView


class ClusterStatus:
    """This node among the others."""

    def __init__(self, view: ClusterView, cache: Cache, metrics: Metrics) -> None:
        self._view = view
        self._cache = cache
        self._metrics = metrics

    def own_figures(self) -> dict[str, int]:
        """What this node says of itself: bytes, unless the name says otherwise."""
        metrics, staged = self._metrics, self._cache.statistics()
        return {
            "staged": staged.bytes,
            "capacity": staged.capacity_bytes,
            "from_source": metrics["source_read_bytes"],
            "from_peers": metrics["peer_read_bytes"],
            "from_own_cache": metrics["bytes_staged"],
            "to_peers": metrics["peer_served_bytes"],
            "peer_misses": metrics["peer_misses"],
            "peer_faults": metrics["peer_faults"],
        }

    def directory(self) -> dict[str, object]:
        """What `protocol.Directory` says."""
        return self._view.directory()

    async def all_nodes(self) -> dict[str, object]:
        """What `protocol.Cluster` says. Takes seconds where a node does not answer."""
        return {"nodes": await self._view.figures(self.own_figures())}
