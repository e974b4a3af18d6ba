"""What the kernel reads of staged files by itself: files that are passed through, and what overlays open.

Of those in overlays nobody hears of an open or a read. Known is that somebody has one, and which files were looked up
in one for the first time since it was made, since they were told then where their object lies. Whether such a file is
read, and how often, is not known. Never waits.
"""

from __future__ import annotations

from hfs.mountd.core.metrics import Metrics
from hfs.mountd.files.overlays import Overlays
from hfs.mountd.files.passthrough import Passthrough
from hfs.mountd.kernel import DataPlane


class KernelReads:
    """Of one mount."""

    def __init__(self, overlays: Overlays, passthrough: Passthrough, plane: DataPlane, metrics: Metrics) -> None:
        self._overlays = overlays
        self._passthrough = passthrough
        self._plane = plane
        self._metrics = metrics

    def has_overlays(self) -> bool:
        """Somebody has an overlay over the mount."""
        return self._overlays.has_makers

    def any(self) -> bool:
        """It may read some now."""
        return len(self._passthrough) > 0 or self.has_overlays()

    def look_ups(self) -> tuple[int, int]:
        """How many were told so far, and the sizes of these files together."""
        figures, metrics = self._plane.figures(), self._metrics
        return (
            metrics["overlay_look_ups"] + figures.overlay_look_ups,
            metrics["overlay_look_up_bytes"] + figures.overlay_look_up_bytes,
        )

    def describe(self) -> dict[str, object]:
        """The key `by_kernel` of the status."""
        look_ups, look_up_bytes = self.look_ups()
        return {"overlays": self.has_overlays(), "look_ups": look_ups, "bytes": look_up_bytes}
