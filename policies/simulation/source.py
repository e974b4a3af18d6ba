"""A simulated source, or the network between nodes: latencies overlap, bandwidth does not.

A fetch is done when the link that all share has carried its bytes after all that was asked before, plus the latency.
Latencies are spread a little, always in the same way: else what is begun together comes together, again and again.
Knows nothing of caches.
"""

from __future__ import annotations

_SPREAD = 0.5
"""From three to five quarters of the mean, as those of servers without load are."""
_GOLDEN = 0.6180339887498949
"""Its multiples fill the unit interval evenly, whatever their number (Weyl)."""


class Link:
    """Times never go back."""

    def __init__(self, latency_s: float, rate: float) -> None:
        self._latency_s = latency_s
        self._rate = rate
        self._free_s = 0.0
        self._fetches = 0

    def done_s(self, now_s: float, size_bytes: int) -> float:
        """When a fetch that begins now has ended."""
        self._fetches += 1
        latency_s = self._latency_s * (1 + _SPREAD * (self._fetches * _GOLDEN % 1 - 0.5))
        self._free_s = max(now_s, self._free_s) + size_bytes / self._rate
        return self._free_s + latency_s
