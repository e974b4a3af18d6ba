"""Threads whose open was answered with ESTALE, since the node's I/O mode stood in the way of a better one.

The kernel looks the name up again, once, and opens the node that it is given then: that open must be answered, whatever
has happened meanwhile. Kept for each node as long as that lives. Event loop only.
"""

from __future__ import annotations

from hfs.mountd.namespace import Node

_MAX_THREADS = 64
"""Remembered of a node; more are answered through the page cache, which is always allowed."""


class SentAway:
    """See the file's story."""

    def __init__(self) -> None:
        self._threads: dict[Node, set[int]] = {}

    def has(self, node: Node, thread_id: int) -> bool:
        """Whether an open of `node` by this thread must be answered; also true once there are too many to tell."""
        threads = self._threads.get(node)
        return threads is not None and (thread_id in threads or len(threads) >= _MAX_THREADS)

    def add(self, node: Node, thread_id: int) -> None:
        """The open of `node` by this thread is answered with ESTALE, or its next one will be of `node`."""
        self._threads.setdefault(node, set()).add(thread_id)

    def came_back(self, node: Node, thread_id: int) -> None:
        """An open of `node` by this thread is answered."""
        threads = self._threads.get(node)
        if threads is not None:
            threads.discard(thread_id)
            if not threads:
                del self._threads[node]

    def forget(self, node: Node) -> None:
        """Nobody knows `node` any more."""
        self._threads.pop(node, None)
