"""Slots: regular files of which there is no node here. The data plane has them (`kernel.slots`).

Most files of a data set are looked up or listed with their attributes and never opened, or opened much later; a node of
each would cost a kilobyte and 40 us of the event loop. A name is a node's or a slot's, never both: whoever needs the
node of a slot takes it out of the table first, and it never goes back. A directory with slots is held, so that it
keeps its id. Event loop only.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

import trio

from hfs.mountd.core.attributes import Attributes, SeenNames, attributes_of, has_no_acl
from hfs.mountd.core.errors import SourceError
from hfs.mountd.kernel import SlotTable, TakenSlot
from hfs.mountd.namespace.nodes.node import Node
from hfs.mountd.namespace.nodes.table import NodeTable
from hfs.mountd.source import Source

_MOST_OVER = 1 << 14
"""So many more than may be are let be until the next sweep, or until more are put in."""

_NOT = bytes([1, *bytes(255)])
"""For `translate`."""

_SHARDS = 1024
"""Of the table: so many sweeps go over all of it."""

_SLICE_S, _REST_S = 0.002, 0.008
"""A sweep keeps the event loop for so long, and then rests; as that of `Names`."""


class Slots:
    """The slots of one mount."""

    def __init__(
        self,
        table: SlotTable | None,
        nodes: NodeTable,
        source: Source,
        opened: Callable[[Node, int], object] = lambda _node, _slot: None,
        *,
        at_most: int,
        ttl_s: float,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        """`table`: None where there is no data plane. `at_most`: how many are kept that the kernel does not hold.
        `ttl_s`: for how long an answer is good.
        `opened` is told of each slot that is open when it becomes a node, and where it is counted how often."""
        self.table = table
        """What needs no node asks it."""
        self._nodes = nodes
        self._rewritten = source.second_looks.rewritten
        self.source_id = source.source_id
        self._at_most = at_most
        self._ttl_s = ttl_s
        self._clock = clock
        self._stopwatch = time.perf_counter
        self._opened = opened
        self._counts: Counter[Node] = Counter()
        """Of each directory that is held for its slots; 0: until the next sweep."""
        if table is not None:
            table.begin(nodes.first_slot_id)

    def may_be_in(self, directory: Node) -> bool:
        """Whether names of this directory may become slots now."""
        if self.table is None or not self.table.runs:
            return False
        return directory.id != 0 and directory.children is not None and self._ttl_s > 0

    def put(
        self,
        directory: Node,
        found: SeenNames,
        *,
        told: AbstractSet[bytes] = frozenset(),
        objects: Sequence[int] = (),
    ) -> list[tuple[bytes, Attributes | None]]:
        """The source has just said what these names are. Those that are no slots, and what they are: for the tree.

        `told`: names whose look-ups are to come to us. `objects`: the numbers of what is staged of them.
        """
        if self.table is None or not self.may_be_in(directory):
            return [(name, found.attributes(index)) for index, name in enumerate(found.names)]
        skip = found.plain.translate(_NOT)
        if directory.children or told:
            children = directory.children or {}
            for index, name in enumerate(found.names):
                if name in children or name in told:
                    skip[index] = 1
        if len(self._rewritten):
            for index in range(len(found.names)):
                if not skip[index] and self._is_rewritten(found.attributes(index)):
                    skip[index] = 1
        added, left = self.table.put(directory.id, found, skip, valid_s=self._ttl_s, objects=objects)
        if added:
            self._hold(directory, added)
        if self.table.unheld > self._at_most + _MOST_OVER:
            self._sweep_some(self.table)
        return [(found.names[index], found.attributes(index)) for index in left]

    # -- directories that are delegated --------------------------------------------------------------------------------

    def delegate(self, directory: Node) -> None:
        """Others are about to put slots in `directory`, but for the names that are known here."""
        assert self.table is not None
        if not directory.delegated:
            self._hold(directory, 1)
            directory.delegated = True
            self.table.reserve(directory.id, list(directory.children or ()))  # `Names` says which come and go

    def recall_directory(self, directory: Node) -> None:
        """They do not any more."""
        if self.table is None or not directory.delegated:
            return
        directory.delegated = False
        self._counts[directory] += self.table.recall_directory(directory.id) - 1
        self.table.unreserve(directory.id, list(directory.children or ()))

    def reserve(self, directory: Node, name: bytes) -> None:
        """`name` in a delegated directory becomes a node's now. A slot that was put meanwhile lives on for who knows
        it."""
        if self.table is not None:
            self.table.reserve(directory.id, [name])
            self.take(directory, name)

    def try_reserve(self, directory: Node, names: Sequence[bytes]) -> list[bytes]:
        """The files of these names in a delegated directory are about to be fetched here: nobody else does so from now
        on. But those that others have fetched, or are fetching: these names are given."""
        return self.table.try_reserve(directory.id, names) if self.table is not None else []

    def unreserve(self, directory: Node, name: bytes) -> None:
        """Nothing is remembered of it any more."""
        if self.table is not None:
            self.table.unreserve(directory.id, [name])

    def _count(self, directory: Node) -> None:
        """Those that others have put are counted too."""
        if directory.delegated and self.table is not None:
            self._counts[directory] += self.table.delegated_slots(directory.id)

    # -- who needs a node ---------------------------------------------------------------------------------------------

    def unknown(self, directory: Node, names: list[bytes]) -> list[bytes]:
        """Those of `names` that are not slots, or past their time."""
        if self.table is None or not self._counts[directory] or not names:
            return names
        return self.table.unknown(directory.id, names)

    def take(self, directory: Node, name: bytes) -> tuple[Node, float] | None:
        """The node of the slot that has this name, if one has, and until when the name is good."""
        if self.table is None or not self._counts.get(directory):
            return None
        return self._become(self.table.take(directory.id, name))

    def take_id(self, node_id: int) -> tuple[Node, float] | None:
        """The same, by the id that the kernel knows."""
        return self._become(self.table.take_id(node_id)) if self.table is not None else None

    def _become(self, slot: TakenSlot | None) -> tuple[Node, float] | None:
        table = self.table
        if slot is None or table is None:
            return None
        directory = self._directory(slot.directory_id)
        if directory is None:
            table.written_down(slot)
            return None
        self._count(directory)
        self._counts[directory] -= 1
        attributes = attributes_of(slot.seen, 0)
        assert attributes is not None
        version = attributes.version(self.source_id)
        node = Node(attributes, version, directory, slot.name)
        if slot.valid_s <= 0:
            node.expires_s = -math.inf
        else:
            node.expires_s = self._clock() + slot.valid_s if self._ttl_s < math.inf else math.inf
        node.lookups = slot.look_ups
        node.without_acl = has_no_acl(slot.seen)
        if slot.look_ups:
            self._nodes.attach(node, slot.node_id)
        self._nodes.enter(node)
        if self._is_rewritten(attributes):  # since it was seen: what has this id is of the state before
            node.expires_s = -math.inf
        if slot.look_ups:
            self._nodes.told(node)
        if slot.opens:
            self._nodes.note(node)
            self._has_open(table, node, slot)
        table.written_down(slot)
        return node, node.expires_s

    def _has_open(self, table: SlotTable, node: Node, slot: TakenSlot) -> None:
        node.own_opens += slot.opens
        self._opened(node, table.count(node.id, slot.opens))

    def attached(self, directories: Mapping[int, int], noted: AbstractSet[int]) -> None:
        """An earlier daemon has left so many slots in each of these directories, which the kernel knows by these ids.
        `noted`: handles that are in the journal.

        What is a node as well, since that daemon was killed on the way, is none. Nothing is good any more in
        directories that are not known here: the kernel is told that its ids there are stale.
        """
        table = self.table
        if table is None:
            return
        left = Counter(directories)
        for node in self._nodes.files():
            slot = table.take_id(node.id)
            if slot is not None:
                left[slot.directory_id] -= 1
                if slot.opens and node.id not in noted:
                    self._has_open(table, node, slot)
                table.written_down(slot)
        unknown = [directory_id for directory_id in left if self._directory(directory_id) is None]
        if unknown:
            table.expire(unknown)
        for directory_id in left.keys() - set(unknown):
            self._hold(self._nodes.node(directory_id), left[directory_id])

    def _directory(self, directory_id: int) -> Node | None:
        try:
            return self._nodes.node(directory_id)
        except SourceError:
            return None

    def _hold(self, directory: Node, more: int) -> None:
        if directory not in self._counts:
            directory.holds += 1
        self._counts[directory] += more

    def _is_rewritten(self, attributes: Attributes | None) -> bool:
        return attributes is not None and self._rewritten.named(attributes, self.source_id) is not attributes

    # -- letting go ---------------------------------------------------------------------------------------------------

    async def sweep(self) -> list[Node]:
        """Let go of those that nobody needs. The directories that have none any more: each is to be released."""
        if self.table is None:
            return []
        end_s = self._stopwatch() + _SLICE_S
        for _ in range(_SHARDS):
            self._sweep_some(self.table)
            if self._stopwatch() >= end_s:
                await trio.sleep(_REST_S)
                end_s = self._stopwatch() + _SLICE_S
        await trio.lowlevel.checkpoint()
        empty = [directory for directory, count in self._counts.items() if count == 0 and not directory.delegated]
        for directory in empty:
            del self._counts[directory]
        return empty

    def _sweep_some(self, table: SlotTable) -> None:
        for directory_id, count in Counter(table.sweep(self._at_most)).items():
            directory = self._directory(directory_id)
            if directory is not None:
                self._count(directory)
                self._counts[directory] -= count
