"""Threads whose open was answered with ESTALE: the node's I/O mode stood in the way of a better one, or it has gone.

The kernel looks the name up again, once, and opens the node that it is given then: that open must be answered, whatever
has happened meanwhile, another daemon included. Kept for each node as long as that lives. Event loop only.
"""

from __future__ import annotations

import trio

from hfs.mountd.cache import ToldObjects
from hfs.mountd.namespace import Node

_MAX_THREADS = 64
"""Remembered of a node; more are answered through the page cache, which is always allowed."""

_MAX_STALE = 1024
"""Threads whose open comes back by another node. Those that were sent away first are forgotten."""

_BEFORE_S = 10.0
"""So long after a daemon has taken over, anybody may have been sent away by the one before."""


class SentAway:
    """See the file's story."""

    def __init__(self, telling: ToldObjects | None = None) -> None:
        """`telling`: of overlays, which would not find the other node of a name that they have looked up; None: there
        are none."""
        self._telling = telling
        self._threads: dict[Node, set[int]] = {}
        self._stale: dict[int, None] = {}
        """Sent away from whatever node."""
        self._everybody_until_s: float | None = None

    def inherit(self) -> None:
        """An earlier daemon may have sent anybody away."""
        self._everybody_until_s = trio.current_time() + _BEFORE_S

    def add_stale(self, thread_id: int) -> None:
        """An open by this thread is answered with ESTALE: its node, or the version that it is of, has gone."""
        self._stale.pop(thread_id, None)
        self._stale[thread_id] = None
        if len(self._stale) > _MAX_STALE:
            del self._stale[next(iter(self._stale))]

    def may_have(self, thread_id: int) -> bool:
        """Whether this thread may have been sent away, from whatever node, and by whomever, or must not be."""
        if self._telling is not None and self._telling.has_makers:
            return True
        if self._everybody_until_s is not None and trio.current_time() >= self._everybody_until_s:
            self._everybody_until_s = None
        return thread_id in self._stale or self._everybody_until_s is not None

    def has(self, node: Node, thread_id: int) -> bool:
        """Whether an open of `node` by this thread must be answered; also true once there are too many to tell."""
        threads = self._threads.get(node)
        return threads is not None and (thread_id in threads or len(threads) >= _MAX_THREADS)

    def add(self, node: Node, thread_id: int) -> None:
        """The open of `node` by this thread is answered with ESTALE, or its next one will be of `node`."""
        self._threads.setdefault(node, set()).add(thread_id)

    def came_back(self, node: Node, thread_id: int) -> None:
        """An open of `node` by this thread is answered."""
        self._stale.pop(thread_id, None)
        threads = self._threads.get(node)
        if threads is not None:
            threads.discard(thread_id)
            if not threads:
                del self._threads[node]

    def forget(self, node: Node) -> None:
        """Nobody knows `node` any more."""
        self._threads.pop(node, None)
