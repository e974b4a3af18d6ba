"""Handles that the data plane has given out for leaves, once these are nodes: all of a leaf have its id for a number.

Such a handle has no staged file until somebody reads by it here: to find one may take a look at the index, and a leaf
becomes a node where nothing may wait. From then on it is a handle like all others. Event loop only.
"""

from __future__ import annotations

from collections.abc import Callable

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.kernel import DataPlane
from hfs.mountd.namespace import Journal, Namespace, Node


class LeafHandles:
    """Those that have no file yet."""

    def __init__(self, journal: Journal, adopt: Callable[[int, Node, StagedFile, int], object]) -> None:
        """`adopt(number, node, file, slot)`: it is a handle like all others from now on."""
        self._journal = journal
        self._adopt = adopt
        self._waiting: dict[int, tuple[Node, int]] = {}
        """Node and slot, by number."""

    def opened(self, node: Node, slot: int) -> None:
        """`node`, which is noted and was a leaf until now, is open; how many have it open is counted in `slot`."""
        self._waiting[node.id] = node, slot
        self._journal.handles.opened(node.id, node.id, 0, 0, 0)

    async def adopt(self, number: int, cache: Cache) -> None:
        """Somebody reads by this handle: have it be like all others. Nothing, if it is."""
        while (waiting := self._waiting.get(number)) is not None:
            node, slot = waiting
            assert node.version is not None
            file = cache.files.get_nowait(node.version, node.path) or await cache.files.get(node.version, node.path)
            if self._waiting.get(number) is waiting:
                del self._waiting[number]
                cache.files.pin(file)
                self._adopt(number, node, file, slot)

    def close(self, number: int, namespace: Namespace, plane: DataPlane) -> bool:
        """One of those who have it has closed it. False: it is like all others."""
        waiting = self._waiting.get(number)
        if waiting is None:
            return False
        node, slot = waiting
        if plane.closed(slot) <= 0:
            del self._waiting[number]
            self._journal.handles.closed(number)
            plane.free_slot(slot)
        namespace.holds.closed(node, passed=False)
        return True
