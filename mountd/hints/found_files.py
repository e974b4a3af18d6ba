"""The whole files of one epoch plan that were found in the namespace: which of its units a node is.

A layout finds a unit by its path in microseconds; an open of a small file has not so long. And of a file that is listed
twice only the one who has looked it up knows which of the two was meant. Event loop only.
"""

from __future__ import annotations

from hfs.mountd.namespace import Node


class FoundFiles:
    """Units by node."""

    def __init__(self) -> None:
        self._units: dict[Node, int] = {}

    def found(self, unit: int, node: Node) -> None:
        """The file of `unit` is this node."""
        self._units[node] = unit

    def unit(self, node: Node) -> int | None:
        """The unit that was found last to be this node."""
        return self._units.get(node)

    def forget(self, node: Node) -> None:
        """Nobody knows `node` any more."""
        self._units.pop(node, None)
