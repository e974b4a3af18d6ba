"""What `hfs status` tells of names: who else may read, and how often what was known was old or no longer so."""

from __future__ import annotations

from dataclasses import dataclass

from mountd.core.metrics import Metrics
from mountd.namespace.permissions import Permissions


@dataclass(frozen=True, slots=True)
class NamesStatus:
    """The keys `other_users`, `version_changes` and `stale_served`."""

    permissions: Permissions
    metrics: Metrics

    def gather(self) -> dict[str, object]:
        """The figures of this moment."""
        metrics = self.metrics
        return {
            "other_users": {
                **self.permissions.figures(),
                **{name: metrics["permissions_" + name] for name in ("asked", "refused")},
            },
            "version_changes": metrics["version_changes"],
            "stale_served": metrics["stale_served"],
        }
