"""Watching directories of small files: joins `policies.prefetch.siblings` to nodes and listings.

The policy knows directories by their places and names as bytes; here they are nodes, and a listing that it wants is
fetched in the background. The fetching itself is ordered by `prefetch`. Event loop only.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Hashable

import trio

from hfs.mountd.core.background import start_guarded
from hfs.mountd.core.errors import HfsError
from hfs.mountd.namespace import Node, place_of
from hfs.mountd.source import Listing
from hfs.policies.prefetch.siblings import FIRST_S, PAUSE_S, Siblings

_SPARE = 64
"""Directories that are remembered though nobody reads them: below this it is not looked which."""


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
        self._directories: dict[Hashable, Node] = {}
        """Those that the policy follows, those whose listing is on its way, and as many again."""
        self._on_their_way: set[Hashable] = set()
        self._opened_s = self._begin_s = -math.inf
        """The last open, and when fetching may begin."""
        self._limit = 1
        """As many files as were asked for last."""

    @property
    def ahead_bytes(self) -> int:
        """Bytes fetched ahead and not used yet."""
        return self._policy.ahead_bytes

    def opened(self, node: Node, *, staged: bool) -> None:
        """A small file was opened. `staged`: its bytes were here."""
        if node.parent is not None:
            self.opened_in(node.parent, node.name, node.attributes.size, staged=staged)

    def opened_in(self, directory: Node, name: bytes, size: int, *, staged: bool) -> None:
        """The same, of one that need not be a node."""
        place, now_s = place_of(directory.attributes), trio.current_time()
        if now_s > self._opened_s + PAUSE_S:
            self._begin_s = now_s + FIRST_S
            start_guarded(self._nursery, "siblings after the first files", self._begin)
        self._opened_s = now_s
        if self._policy.opened(place, name, size, now_s, staged=staged):
            self._directories[place] = directory
            self._on_their_way.add(place)
            self._forget_some()
            start_guarded(self._nursery, "sibling list", self._list, place, directory)
        elif place in self._directories:
            self._directories[place] = directory  # it may have been forgotten, and be another node now
            if self._policy.has_work(place, self._limit, now_s):
                self._wake()  # a used file makes room in the budget

    def look_again(self) -> None:
        """Some have come, or will not: there may be room for others."""
        self._wake()

    def next(self, limit: int) -> list[tuple[Node, bytes]]:
        """At most `limit` files to fetch now; each needs `fetched` or `drop`, or `admit` before it is fetched."""
        self._limit = limit
        if trio.current_time() < self._begin_s:
            return []
        return [(self._directories[place], name) for place, name in self._policy.next(limit, trio.current_time())]

    def admit(self, directory: Node, name: bytes, size: int) -> bool:
        """True if the file, now known to have `size` bytes, is still to be fetched."""
        return self._policy.admit(place_of(directory.attributes), name, size)

    def is_wanted(self, place: tuple[Node, bytes]) -> bool:
        """False if a file that `next` gave was opened meanwhile, or lies where nobody reads any more."""
        directory, name = place
        return self._policy.is_wanted(place_of(directory.attributes), name)

    def fetched(self, directory: Node, name: bytes, size: int) -> None:
        """The file is here now and has `size` bytes."""
        self._policy.fetched(place_of(directory.attributes), name, size)

    def drop(self, directory: Node, name: bytes) -> None:
        """The file will not be fetched, or could not be."""
        self._policy.drop(place_of(directory.attributes), name)

    async def _begin(self) -> None:
        await trio.sleep_until(self._begin_s)
        self._wake()

    async def _list(self, place: Hashable, directory: Node) -> None:
        try:
            listing = await self._listing(directory)
            steps = self._policy.listed_steps(place, listing.files(), len(listing), trio.current_time())
            await listing.slices.carry_out(steps)
        except HfsError:
            self._policy.listed(place, [], trio.current_time())  # it asks again later
        finally:
            self._on_their_way.discard(place)
            self._wake()

    def _forget_some(self) -> None:
        """Now and then: those that nobody reads any more."""
        if len(self._directories) > 2 * (self._policy.directories + len(self._on_their_way)) + _SPARE:
            self._directories = {
                place: node
                for place, node in self._directories.items()
                if place in self._on_their_way or self._policy.follows(place)
            }
