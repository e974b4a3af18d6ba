"""Homes: which node a chunk or a small file belongs to, by what was agreed and who has gone since.

Called by `peers.job`. The table is made anew, in a thread, when a node is lost; until then the old one holds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import xxhash

from mountd.peers.joining import Agreed
from policies.cluster.placement import NOBODY, homes, keys

__all__ = ["Homes"]


class Homes:
    """Event loop only. `run_in_thread`: as trio.to_thread.run_sync."""

    def __init__(self, agreed: Agreed, number: int, run_in_thread: Callable[..., Awaitable[Any]]) -> None:
        self.agreed = agreed
        self.number = number
        """Of this node."""
        self.gone: set[int] = set()
        self._run_in_thread = run_in_thread
        self._table = agreed.nodes.table()

    def home(self, path: bytes, index: int) -> int:
        """The node that stages chunk `index` of the file at `path`, or NOBODY."""
        hashed = np.array([xxhash.xxh3_64_intdigest(path)], np.uint64)
        found = int(homes(self._table, keys(hashed, np.array([index], np.int64)))[0])
        return NOBODY if found in self.gone else found  # the table is being made anew

    async def lose(self, node: int) -> None:
        """A node has gone: what it was home of belongs to others from now on."""
        if node in self.gone:
            return
        self.gone.add(node)
        while True:
            gone = frozenset(self.gone)
            table = await self._run_in_thread(self.agreed.nodes.table, gone)
            if gone == self.gone:  # else one more was lost meanwhile
                self._table = table
                return
