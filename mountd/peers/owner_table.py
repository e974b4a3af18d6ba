"""The owner table: which node of the job owns a chunk or a small file, by what was agreed and who has gone since.

The table is made anew, in a thread, when a node is lost; until then the old one holds, and what a lost node owned has
no owner.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import xxhash

from hfs.mountd.peers.joining import Agreed
from hfs.policies.cluster.placement import NOBODY, keys, owners


class OwnerTable:
    """Event loop only. `path`: relative to the root of the mount. `index`: of a chunk, 0 for a whole small file."""

    def __init__(self, agreed: Agreed, number: int, run_in_thread: Callable[..., Awaitable[Any]]) -> None:
        """`number`: of this node. `run_in_thread`: as trio.to_thread.run_sync."""
        self.agreed = agreed
        self.number = number
        self.gone: set[int] = set()
        """Nodes that were lost."""
        self._run_in_thread = run_in_thread
        self.table = agreed.nodes.table()
        """int32 [slots]: see `policies.cluster.placement`. Another one when a node was lost."""

    def owner(self, path: bytes, index: int) -> int:
        """The node that stages chunk `index` of the file at `path`, or NOBODY."""
        hashed = np.array([xxhash.xxh3_64_intdigest(path)], np.uint64)
        found = int(owners(self.table, keys(hashed, np.array([index], np.int64)))[0])
        return NOBODY if found in self.gone else found  # the table is being made anew

    def owned_here(self, path: bytes, index: int) -> bool:
        """Whether this node owns it."""
        return self.owner(path, index) == self.number

    def owned_remotely(self, path: bytes, index: int) -> bool:
        """Whether another node owns it, and is to be asked before the source."""
        return self.owner(path, index) not in (self.number, NOBODY)

    def caches_locally(self, path: bytes, index: int) -> bool:
        """Whether this node stages it; else that is left to its owner."""
        return self.agreed.placement == "replicate" or not self.owned_remotely(path, index)

    @property
    def share_bytes(self) -> int | None:
        """How much data this node would stage; None: too much to tell, or nobody has looked."""
        return self.agreed.share_bytes(self.number)

    async def lose(self, node: int) -> None:
        """A node has gone: what it owned belongs to others from now on."""
        if node in self.gone:
            return
        self.gone.add(node)
        while True:
            gone = frozenset(self.gone)
            table = await self._run_in_thread(self.agreed.nodes.table, gone)
            if gone == self.gone:  # else one more was lost meanwhile
                self.table = table
                return
