"""The nodes that a daemon takes over from the ones that have served the mount before it.

The kernel knows them by their ids and may hold pages of a file's version, so each node is what it was: the same id, the
same version, the same place. Nothing said of them is believed any longer: names and attributes are past their time, and
the first who needs one asks the source. Then a file that is still of its version keeps its node, and one that is not
gets a new one.

How often the kernel has looked them up is not known: FORGETs that an earlier daemon had taken are lost, and those that
come give back look-ups that this one has never counted, some of them or all. So they are not let go by their counts:
they stay as long as this daemon lives. There are never more of them than the journal holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hfs.mountd.namespace.journal import NodeFact
from hfs.mountd.namespace.nodes.names import Names
from hfs.mountd.namespace.nodes.node import Node
from hfs.mountd.namespace.nodes.table import NodeTable


def inherit(facts: Sequence[NodeFact], nodes: NodeTable, names: Names) -> None:
    """Enter a node for each fact, parents first; the first is the root."""
    for fact in facts:
        parent = nodes.node(fact.parent_id) if fact.parent_id else None
        node = Node(fact.attributes, fact.version, parent, fact.name)
        nodes.attach(node, fact.node_id)
        node.holds, node.expires_s = 1, -math.inf
        node.lookups = 1  # as if: what is pushed only to nodes that the kernel knows is pushed to these
        if fact.version is None:
            nodes.enter(node)
        else:
            node.retired = fact.doubted  # its pages are for those who have it open alone; the name gets another node
            nodes.enter(node)
        if parent is not None:
            _enter_name(node, parent, names)


def _enter_name(node: Node, parent: Node, names: Names) -> None:
    """Of two nodes of one version the later one has the name, the other was retired; ids are given out in order. Of two
    versions it is not known which one is there: the name is asked for, and shows it."""
    before = names.remembered(parent, node.name)
    known = before.node if before is not None else None
    if known is None or known.version is None or node.version is None:
        if before is None:
            names.put(parent, node.name, node, -math.inf)
        return
    if known.version != node.version:
        node.stale = known.stale = True
        return
    earlier, later = sorted((node, known), key=lambda one: one.id)
    earlier.retired = True
    names.put(parent, node.name, later, -math.inf)
