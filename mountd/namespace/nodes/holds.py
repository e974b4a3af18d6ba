"""What holds a node: the kernel's lookup counts, open handles, and work under way.

A node that is held keeps its id. Once nothing holds it, it goes with its name. A directory that still has names below
stays without an id, for the paths of those. Event loop only.
"""

from __future__ import annotations

from hfs.mountd.cache import Delegation
from hfs.mountd.core.errors import SourceError
from hfs.mountd.namespace.nodes.names import Names
from hfs.mountd.namespace.nodes.node import Node
from hfs.mountd.namespace.nodes.table import ROOT_ID, NodeTable


class NodeHolds:
    """The counts of all nodes."""

    def __init__(self, nodes: NodeTable, names: Names) -> None:
        self._nodes = nodes
        self._names = names

    def referenced(self, node: Node) -> None:
        """A reply with `node` goes to the kernel now: one lookup count more, and an id if it had none."""
        if node.id == 0:
            self._nodes.identify(node)
            self._enter_again(node)
        node.lookups += 1
        self._nodes.told(node)

    def _enter_again(self, node: Node) -> None:
        """It may have been dropped while an open directory still held it."""
        self._nodes.enter(node)
        if node.parent is not None and self._names.remembered(node.parent, node.name) is None:
            self._names.put(node.parent, node.name, node, node.expires_s)

    def not_referenced(self, node: Node) -> None:
        """The reply with `node` did not reach the kernel after all; another with it may follow."""
        node.lookups -= 1

    def forget(self, node_id: int, count: int) -> None:
        """The kernel gives back `count` lookup counts. Unknown ids are not an error: an unmount forgets the root
        too."""
        if node_id == ROOT_ID:
            return
        try:
            node = self._nodes.node(node_id)
        except SourceError:
            return
        node.lookups -= count
        self._drop_if_unused(node)

    def opened(self, node: Node, *, passed: bool = False) -> None:
        """One open handle more. `passed`: the kernel reads the staged file by itself."""
        self.counted(node, 1, passed=passed)
        self._nodes.note(node)

    def counted(self, node: Node, opens: int, *, passed: bool) -> None:
        """So many handles more, or fewer, are our own to count; others have counted them, or will."""
        node.own_opens += opens
        if passed:
            node.own_passed += opens

    def closed(self, node: Node, *, passed: bool = False) -> None:
        """Undo one `opened`."""
        self.counted(node, -1, passed=passed)
        self._drop_if_unused(node)

    def delegated(self, node: Node, delegation: Delegation | None) -> None:
        """Who answers further opens of `node`; None: we do."""
        node.delegation = delegation

    def hold(self, node: Node) -> None:
        """Keep the id of `node` from being given to another file until `release`."""
        node.holds += 1

    def release(self, node: Node) -> None:
        """Undo one `hold`."""
        node.holds -= 1
        self._drop_if_unused(node)

    def _drop_if_unused(self, node: Node) -> None:
        if node.is_held:
            return
        node.pushed = False
        if node.children:  # it goes when they have gone
            self._nodes.take_id(node)
            return
        self._nodes.let_go(node)
        if node.dentry is not None:
            self._names.drop(node.dentry)
