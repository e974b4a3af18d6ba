"""What a daemon finds in the journal of those before it, as far as it holds together.

A node is of use if its parents are there up to the root, a handle if its node is. What is not of use is taken out of
the log. Pure, but for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hfs.mountd.namespace.journal.facts import (
    DIRECTORY,
    DOUBT,
    FILE,
    MOUNT,
    NODE,
    DirectoryFact,
    HandleFact,
    MountFact,
    NodeFact,
)
from hfs.mountd.namespace.journal.log import JournalLog


class Inherited(NamedTuple):
    """What an earlier daemon has noted."""

    nodes: Sequence[NodeFact] = ()
    """Parents before what is below them; every parent is there, and is a directory."""
    files: Sequence[HandleFact] = ()
    directories: Sequence[DirectoryFact] = ()
    """Open directories."""
    mount: MountFact = MountFact()


def read_inherited(log: JournalLog) -> Inherited:
    """All that is of use in `log`."""
    facts: dict[int, NodeFact] = {}
    files: list[HandleFact] = []
    directories: list[DirectoryFact] = []
    mount = MountFact()
    doubts: set[int] = set()
    for kind, number, value in log.items():
        if kind == NODE:
            facts[number] = NodeFact.read(number, value)
        elif kind == FILE:
            files.append(HandleFact.read(number, value))
        elif kind == DIRECTORY:
            directories.append(DirectoryFact.read(number, value))
        elif kind == MOUNT:
            mount = MountFact.read(value)
        elif kind == DOUBT:
            doubts.add(number)
    nodes = [fact._replace(doubted=fact.node_id in doubts) for fact in _parents_first(facts)]
    kept = {fact.node_id: fact for fact in nodes}
    inherited = Inherited(
        nodes,
        [handle for handle in files if handle.node_id in kept and kept[handle.node_id].version is not None],
        [handle for handle in directories if handle.node_id in kept and kept[handle.node_id].version is None],
        mount,
    )
    for node_id in facts.keys() - kept.keys():
        log.drop(NODE, node_id)
    for node_id in doubts - kept.keys():
        log.drop(DOUBT, node_id)
    for lost in set(files).difference(inherited.files):
        log.drop(FILE, lost.number)
    for shut in set(directories).difference(inherited.directories):
        log.drop(DIRECTORY, shut.number)
    return inherited


def _parents_first(facts: dict[int, NodeFact]) -> Iterator[NodeFact]:
    """Each node behind its parent. What does not lead through directories to the root is left out."""
    done: set[int] = set()
    for start in facts.values():
        way: list[NodeFact] = []
        fact: NodeFact | None = start
        while fact is not None and fact.node_id not in done and len(way) < len(facts):
            way.append(fact)
            fact = facts.get(fact.parent_id)
            if fact is not None and fact.version is not None:
                fact = None
        if fact is None:
            leads_up = way[-1].parent_id == 0
        else:
            leads_up = fact.node_id in done
        if leads_up:
            for node in reversed(way):
                done.add(node.node_id)
                yield node
