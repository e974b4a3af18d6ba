"""The nodes that a daemon takes over from the ones that have served the mount before it.

The kernel knows them by their ids and may hold pages of a file's version, so each node is what it was: the same id, the
same version, the same place. Nothing said of them is believed any longer: names and attributes are past their time, and
the first who needs one asks the source. Then a file that is still of its version keeps its node, and one that is not
gets a new one.

How often the kernel has looked them up is not known: FORGETs that an earlier daemon had taken are lost, and those that
come give back look-ups that this one has never counted, some of them or all. So they are not let go by their counts:
they stay as long as this daemon lives. There are never more of them than the journal holds.

Called by `namespace` when it starts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mountd.base.version import Version
from mountd.namespace.journal import NodeFact
from mountd.namespace.names import Names
from mountd.namespace.node import Node, place_of

__all__ = ["inherit"]


def inherit(
    facts: Sequence[NodeFact],
    nodes: dict[int, Node],
    by_version: dict[Version, Node],
    directories: dict[tuple[str, int, int], Node],
    names: Names,
) -> Node:
    """Enter a node for each fact, parents first, into the tables of the namespace. Returns the root."""
    for fact in facts:
        parent = nodes[fact.parent_id] if fact.parent_id else None
        node = nodes[fact.node_id] = Node(fact.attributes, fact.version, parent, fact.name)
        node.id, node.holds, node.expires_s = fact.node_id, 1, -math.inf
        node.lookups = 1  # as if: what is pushed only to nodes that the kernel knows is pushed to these
        if fact.version is None:
            directories.setdefault(place_of(fact.attributes), node)
        else:
            if fact.doubted:
                node.retired = True  # its pages are for those who have it open alone; the name gets another node
            else:
                _enter_version(node, fact.version, by_version)
        if parent is not None:
            _enter_name(node, parent, names)
    return nodes[facts[0].node_id]


def _enter_version(node: Node, version: Version, by_version: dict[Version, Node]) -> None:
    """Of two nodes of one version the later one has the name, the other was retired; ids are given out in order."""
    other = by_version.setdefault(version, node)
    if other is not node:
        earlier, later = sorted((node, other), key=lambda one: one.id)
        earlier.retired = True
        by_version[version] = later


def _enter_name(node: Node, parent: Node, names: Names) -> None:
    """Of two versions under one name it is not known which one is there: the name is asked for, and shows it."""
    before = (parent.children or {}).get(node.name)
    if before is None:
        names.put(parent, node.name, node, -math.inf)
        return
    known = before.node
    if known is None or node.version is None or known.version is None:
        return
    if known.version != node.version:
        node.stale = known.stale = True
    elif known.retired:
        names.put(parent, node.name, node, -math.inf)
