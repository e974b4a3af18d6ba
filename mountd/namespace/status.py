"""What `hfs status` tells of names: who else may read, how often what was known was old, and what is a leaf."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hfs.mountd.core.metrics import Metrics
from hfs.mountd.namespace.permissions import Permissions


@dataclass(frozen=True, slots=True)
class NamesStatus:
    """The keys `other_users`, `version_changes`, `stale_served` and `leaves`."""

    permissions: Permissions
    metrics: Metrics
    leaves: Callable[[], Mapping[str, int]]

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
            "leaves": dict(self.leaves()),
        }
