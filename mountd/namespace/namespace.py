"""The namespace of one mount: what the kernel knows of the tree, and what the daemon remembers of the source.

    lookups      what a name is now                      asking     questions to the source that are under way
    freshness    whether a node is what it was           names      the names that are remembered
    tree         what the source has shown               nodes      the nodes that are remembered, by id and version
    listings     the names in a directory                holds      what holds a node: the kernel, handles, work
    stat_ahead   which names will be looked up next      silence    whether the source answers
    links        what a path names in the end

This file only makes them and ties them together. Nothing in the room reads or writes bytes of files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from hfs.mountd.cache import Delegation
from hfs.mountd.core.errors import SourceError
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.kernel import SlotTable
from hfs.mountd.namespace.answers import Silence
from hfs.mountd.namespace.asking import Asking
from hfs.mountd.namespace.journal import Journal, NodeFact
from hfs.mountd.namespace.links import Links
from hfs.mountd.namespace.lookups import Freshness, Lookups, StoredFiles, StoredNames
from hfs.mountd.namespace.nodes.names import Names
from hfs.mountd.namespace.nodes.node import Node
from hfs.mountd.namespace.nodes.slots import Slots
from hfs.mountd.namespace.nodes.table import ROOT_ID, NodeTable
from hfs.mountd.namespace.statahead import StatAhead
from hfs.mountd.namespace.tree import Listings, Tree
from hfs.mountd.source import Source

_NAMES_AT_MOST = 1 << 20
"""Names kept besides those that the kernel holds, where nobody says otherwise: 0.8 GB."""


class NodeHolds:
    """What holds a node: the kernel's lookup counts, open handles, and work under way.

    A node that is held keeps its id. Once nothing holds it, it goes with its name. A directory that still has names
    below stays without an id, for the paths of those. Event loop only.

    The counts of all nodes.
    """

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


def inherit(facts: Sequence[NodeFact], nodes: NodeTable, names: Names) -> None:
    """Enter a node for each fact of daemons that have served the mount before, parents first; the first is the root.

    The kernel knows them by their ids and may hold pages of a file's version, so each is what it was: the same id, the
    same version, the same place. Names and attributes are past their time, and the first who needs one asks the source.
    How often the kernel has looked them up is not known (FORGETs that an earlier daemon had taken are lost), so they
    stay as long as this daemon lives.
    """
    for fact in facts:
        parent = nodes.node(fact.parent_id) if fact.parent_id else None
        node = Node(fact.attributes, fact.version, parent, fact.name)
        nodes.attach(node, fact.node_id)
        node.holds, node.expires_s = 1, -math.inf
        node.lookups = 1  # as if: what is pushed only to nodes that the kernel knows is pushed to these
        if fact.version is None:
            nodes.enter(node)
        else:
            node.retired = fact.uncertain  # its pages are for those who have it open alone; the name gets another node
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


@dataclass(frozen=True, slots=True)
class Namespace:
    nodes: NodeTable
    names: Names
    slots: Slots
    kept: StoredNames
    holds: NodeHolds
    tree: Tree
    asking: Asking
    lookups: Lookups
    freshness: Freshness
    listings: Listings
    stat_ahead: StatAhead
    silence: Silence
    links: Links

    @property
    def root(self) -> Node:
        """The directory SOURCE."""
        return self.nodes.root

    def node(self, node_id: int) -> Node:
        """The node that the kernel knows as `node_id`. Raises SourceError(ESTALE) for an id that is not there."""
        try:
            return self.nodes.node(node_id)
        except SourceError:
            node = self.names.node(node_id)
            if node is None:
                raise
            return node

    def becomes_stateless(self) -> None:
        """The kernel is about to be told to open files without asking."""
        if self.slots.table is not None:
            self.slots.table.become_stateless()

    async def sweep(self) -> None:
        """Let go of what is past its time and not held. Called now and then."""
        await self.names.sweep()
        for directory in await self.slots.sweep():
            self.holds.release(directory)


async def open_namespace(
    source: Source,
    metrics: Metrics,
    nursery: trio.Nursery,
    *,
    ttl_s: float,
    strict: bool,
    names_at_most: int = _NAMES_AT_MOST,
    journal: Journal | None = None,
    slot_table: SlotTable | None = None,
    kept: StoredFiles | None = None,
    inherited: Sequence[NodeFact] = (),
    changed: Callable[[Node], object] = lambda _node: None,
    gone: Sequence[Callable[[Node], object]] = (),
    mountpoint: bytes = b"/",
    slot_opened: Callable[[Node, int], object] = lambda _node, _slot: None,
) -> Namespace:
    """Ask the source for its root, or go on with what an earlier daemon has noted. Raises SourceError.

    `ttl_s`: math.inf for `--immutable`. `strict`: wait for the source instead of serving what was known.
    `names_at_most`: how many names are remembered besides those that the kernel holds; slots are a quarter as large,
    and may be twice as many.

    `journal`: notes what the kernel is told. The kernel may hold node ids of daemons that have served the mount before,
    with pages of other versions, so none of them is given out again. `inherited`: the nodes among them that were noted.
    `slot_table`: where files may be that are no nodes here. `kept`: what an earlier mount has seen of names, where
    nothing ever changes.

    `changed` is told of each node whose file was found changed; all of `gone` of each that nothing holds and no name
    leads to: who keeps a table of nodes strikes it out. `slot_opened`: as `opened` of `Slots`. `nursery`: for what
    nobody waits for, listings as they grow and attributes asked for ahead.
    """
    clock = trio.current_time
    silence = Silence(metrics, clock, strict=strict)
    listings = Listings(source.listings, nursery, silence, ttl_s=ttl_s, clock=clock)
    journal = journal or Journal()
    nodes = NodeTable(journal, source.second_looks.holds, (listings.drop, *gone))
    slots = Slots(slot_table, nodes, source, slot_opened, at_most=names_at_most * 2, ttl_s=ttl_s)
    names = Names(nodes.__len__, nodes.let_go, slots, at_most=names_at_most, ttl_s=ttl_s, clock=clock)
    tree = Tree(source, nodes, names, listings, metrics, ttl_s=ttl_s, clock=clock, changed=changed)
    asking = Asking(source.metadata, metrics, nursery, tree, names, slots, silence, shared=ttl_s > 0)
    stat_ahead = StatAhead(listings, nursery, asking.ahead_nowait, sampled=slots.may_be_in, clock=clock)
    kept_names = StoredNames(kept, nodes, names, slots, tree, nursery)
    lookups = Lookups(source.metadata, nodes, names, tree, asking, stat_ahead, silence, kept_names)
    freshness = Freshness(source.metadata, asking, lookups, silence, ttl_s=ttl_s, clock=clock)
    if inherited:
        inherit(inherited, nodes, names)
    else:
        root = Node(await source.metadata.stat(b"", b""), None, None, b"")
        root.lookups = 1
        root.expires_s = clock() + ttl_s
        nodes.attach(root, ROOT_ID)
        nodes.enter(root)
        nodes.note(root)
    holds = NodeHolds(nodes, names)
    links = Links(nodes, lookups, source.metadata, mountpoint)
    return Namespace(
        nodes, names, slots, kept_names, holds, tree, asking, lookups, freshness, listings, stat_ahead, silence, links
    )


def seconds(ttl_s: float, *, immutable: bool) -> float:
    """The time-to-live to work with: infinite for a source that never changes."""
    return math.inf if immutable else ttl_s
