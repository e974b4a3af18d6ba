"""A simulated source, or the network between nodes: latencies overlap, bandwidth does not.

A fetch is done when its own stream and the link that all share have carried its bytes after all that was asked before,
plus the latency. Knows nothing of caches.
"""

from __future__ import annotations


class Link:
    """Times never go back."""

    def __init__(self, latency_s: float, stream_rate: float, shared_rate: float) -> None:
        self._latency_s = latency_s
        self._stream_rate = stream_rate
        self._shared_rate = shared_rate
        self._free_s = 0.0

    def done_s(self, now_s: float, size_bytes: int) -> float:
        """When a fetch that begins now has ended."""
        self._free_s = max(now_s, self._free_s) + size_bytes / self._shared_rate
        return max(now_s + size_bytes / self._stream_rate, self._free_s) + self._latency_s
