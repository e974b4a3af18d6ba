"""Watching directories of small files: joins `policies.siblings` to nodes and listings.

The policy knows directories as numbers and names as bytes; here they are nodes, and a listing that it wants is fetched
in the background. Called by `read_path`; the fetching itself is ordered by `prefetch`. Event loop only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from mountd.errors import HfsError
from mountd.listing import Listing
from mountd.node import Node
from policies.siblings import Siblings

__all__ = ["SiblingWatch"]


class SiblingWatch:
    """What to fetch because its siblings are read. `wake` is called when a listing has brought new work."""

    def __init__(
        self,
        policy: Siblings,
        nursery: trio.Nursery,
        listing: Callable[[Node], Awaitable[Listing]],
        wake: Callable[[], None],
    ) -> None:
        self._policy = policy
        self._nursery = nursery
        self._listing = listing
        self._wake = wake
        self._directories: dict[int, Node] = {}

    @property
    def ahead_bytes(self) -> int:
        """Bytes fetched ahead and not used yet."""
        return self._policy.ahead_bytes

    def opened(self, node: Node, *, staged: bool) -> None:
        """A small file was opened. `staged`: its bytes were here."""
        directory = node.parent
        if directory is None:
            return
        number, now_s = directory.attributes.inode, trio.current_time()
        if self._policy.opened(number, node.name, node.attributes.size, now_s, staged=staged):
            self._directories[number] = directory
            self._nursery.start_soon(self._list, number, directory)
        elif number in self._directories:
            self._wake()  # a used file makes room in the budget

    def next(self, limit: int) -> list[tuple[Node, bytes]]:
        """At most `limit` files to fetch now; each needs `admit` or `drop`."""
        return [(self._directories[number], name) for number, name in self._policy.next(limit, trio.current_time())]

    def admit(self, directory: Node, name: bytes, size: int) -> bool:
        """True if the file, now known to have `size` bytes, is still to be fetched."""
        return self._policy.admit(directory.attributes.inode, name, size)

    def drop(self, directory: Node, name: bytes) -> None:
        """The file will not be fetched, or could not be."""
        self._policy.drop(directory.attributes.inode, name)

    async def _list(self, number: int, directory: Node) -> None:
        names: list[bytes] = []
        try:
            names = list(await self._listing(directory))
        except HfsError:
            pass  # the policy asks again later
        self._policy.listed(number, names, trio.current_time())
        self._wake()
