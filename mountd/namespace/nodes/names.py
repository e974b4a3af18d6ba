"""The names that are remembered: what each leads to, and which of them are let go.

A node has one name, which its path is made of; a directory that is found under another has been renamed. Every name is
entered and taken out here and nowhere else.

Names that the kernel does not hold are bounded in number, as a clock does it: all names stand in a ring; each new one
beyond the bound looks at a few of the oldest and drops those that nobody has asked for since the hand came by last. So
the bound costs a new name some microseconds and the event loop never more. `sweep` drops what is past its time, in
slices. Neither drops a node that the kernel, a handle or work under way holds. Event loop only; between two slices
anything may change, so each name is looked at as it is then.
"""

from __future__ import annotations

import errno
import math
import time
from collections import deque
from collections.abc import Callable, Sequence

import trio

from hfs.mountd.core.attributes import Attributes, attributes_of
from hfs.mountd.core.errors import SourceError, shown_path
from hfs.mountd.namespace.nodes.node import Dentry, Node
from hfs.mountd.namespace.nodes.slots import Slots

_SLICE_S = 0.002
"""How long a sweep keeps the event loop; a request takes 40 to 90 us of it."""

_REST_S = 0.008
"""Between two slices: a sweep takes a fifth of the loop at most."""

_LOOKS_A_CLOCK = 64
"""Names looked at between two looks at the clock: some 30 us."""

_LOOKS_A_NAME = 8
"""Old names that each new one beyond the bound looks at, some 2 us. So what is over the bound stays below an eighth of
what the kernel holds, which is passed over."""

_GONE = 1024
"""Places in the ring of names that have gone: let be up to here, and up to a quarter of the names."""


class Names:
    """All dentries. `len()`: how many."""

    def __init__(
        self,
        held: Callable[[], int],
        unused: Callable[[Node], None],
        slots: Slots,
        *,
        at_most: int,
        ttl_s: float,
        clock: Callable[[], float],
        stopwatch: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`held()`: how many nodes the kernel knows; `at_most`: how many names besides. `ttl_s`: for how long a name is
        good; math.inf: for ever.

        `unused(node)` is told of a node that has lost its last name and that nothing holds. `slots`: where names are
        besides; one that is wanted here is taken out there. `clock` says when names are
        past their time, `stopwatch` how long a slice lasts; both in seconds.
        """
        self._held = held
        self._unused = unused
        self._slots = slots
        self._at_most = at_most
        self._ttl_s = ttl_s
        self._clock = clock
        self._stopwatch = stopwatch
        self._ring: deque[Dentry] = deque()
        """Each name once, and those that have gone since the hand came by."""
        self._count = 0
        self.is_partial = False
        """Some were let go before their time that the kernel may remember as not existing."""

    def __len__(self) -> int:
        return self._count

    def known_nowait(self, directory: Node, name: bytes) -> Dentry | None:
        """What `name` in `directory` is known to be, if that is still good. Raises SourceError(ENOTDIR)."""
        if directory.children is None:
            raise SourceError(errno.ENOTDIR, shown_path(directory.path))
        dentry = self.remembered(directory, name)
        if dentry is None or dentry.expires_s <= self._clock():
            return None
        dentry.used = True
        return dentry

    def remembered(self, directory: Node, name: bytes) -> Dentry | None:
        """What `name` in `directory` was last, past its time or not."""
        if directory.children is None:
            return None
        dentry = directory.children.get(name)
        if dentry is None:
            taken = self._slots.take(directory, name)
            if taken is not None:
                dentry = self.put(directory, name, *taken)
        return dentry

    def node(self, node_id: int) -> Node | None:
        """The node of the slot that the kernel knows by this id."""
        taken = self._slots.take_id(node_id)
        if taken is None:
            return None
        node, expires_s = taken
        assert node.parent is not None
        self.put(node.parent, node.name, node, expires_s)
        return node

    def unknown_nowait(self, directory: Node, names: Sequence[bytes]) -> list[bytes]:
        """Those of `names` of which nothing is known that is still good; slots stay slots."""
        children = directory.children
        if not children:
            return self._slots.unknown(directory, list(names))
        unknown = [name for name in names if name not in children]
        past = [name for name in names if name in children and self.known_nowait(directory, name) is None]
        return self._slots.unknown(directory, unknown) + past

    def slots_seen(self, directory: Node, names: list[bytes]) -> list[Attributes | None]:
        """The attributes of those of `names` that are slots, and stay slots."""
        table = self._slots.table
        found = table.seen(directory.id, names) if table is not None and directory.id and names else None
        return [attributes_of(found, index) if found is not None else None for index in range(len(names))]

    def put(self, directory: Node, name: bytes, node: Node | None, expires_s: float) -> Dentry:
        """`name` in `directory` leads to `node` until `expires_s`, or to nothing. What it led to before loses it."""
        if directory.children is None:
            return Dentry(node, expires_s)  # it is a file meanwhile: nothing is below it
        before = directory.children.get(name)
        if before is None and directory.delegated:
            self._slots.reserve(directory, name)
        if before is not None and before.node is node:
            before.expires_s = expires_s
            return before
        dentry = directory.children[name] = Dentry(node, expires_s, directory, name)
        self._ring.append(dentry)
        if node is not None:
            self._name(node, directory, name)
        if before is None:
            self._count += 1
        else:
            before.directory = None
            if before.node is not None:
                self._tell_unused(before.node)
        self._bound()
        return dentry

    def drop(self, dentry: Dentry) -> None:
        """Remember nothing of this name. Who has the dentry from before may still use it."""
        directory = dentry.directory
        if directory is None or directory.children is None:
            return  # it has gone already
        del directory.children[dentry.name]
        dentry.directory = None
        if directory.delegated:
            self._slots.unreserve(directory, dentry.name)
        self._count -= 1
        if dentry.node is not None:
            self._tell_unused(dentry.node)
        self._tell_unused(directory)

    def _name(self, node: Node, directory: Node, name: bytes) -> None:
        """`name` leads to `node` now. A node that has lost its name keeps the place of it: its path is made of that."""
        before = node.dentry
        if node.parent is directory and node.name == name:
            return
        node.parent, node.name = directory, name
        if before is not None:
            self.drop(before)  # a directory that was renamed

    def _tell_unused(self, node: Node) -> None:
        if not (node.is_held or node.children or node.dentry is not None):
            self._unused(node)

    # -- letting go ---------------------------------------------------------------------------------------------------

    async def sweep(self) -> int:
        """Drop names that are past their time and lead to nothing that is held. How many went. Called now and then."""
        if self._ttl_s == math.inf and self.gone <= len(self):
            return 0  # none is ever past its time
        left, dropped = len(self._ring), 0
        while left > 0:
            end_s, now_s = self._stopwatch() + _SLICE_S, self._clock()
            while left > 0:
                looks = min(left, len(self._ring), _LOOKS_A_CLOCK)
                dropped += sum(self._let_go_if_past(now_s) for _ in range(looks))
                left = left - looks if looks else 0
                if self._stopwatch() >= end_s:
                    break
            await trio.sleep(_REST_S if left else 0)
        return dropped

    @property
    def gone(self) -> int:
        """Names that are not remembered any more and still take some memory, until the next sweep."""
        return len(self._ring) - self._count

    def _let_go_if_past(self, now_s: float) -> bool:
        """The hand goes on by one name. True if that was dropped."""
        dentry = self._ring.popleft()
        if dentry.directory is None:
            return False
        if dentry.expires_s <= now_s and _may_go(dentry):
            self.drop(dentry)
            return True
        self._ring.append(dentry)
        return False

    def _bound(self) -> None:
        """After each new name: let go of old ones, if there are more than may be."""
        for _ in range(_LOOKS_A_NAME):
            crowded = self._count - self._held() > self._at_most
            if not crowded and self.gone <= self._count // 4 + _GONE:
                return
            dentry = self._ring.popleft()
            if dentry.directory is None:
                continue
            if crowded and not dentry.used and _may_go(dentry):
                self.is_partial |= dentry.node is None and dentry.expires_s > self._clock()
                self.drop(dentry)
            else:
                dentry.used = dentry.used and not crowded
                self._ring.append(dentry)


def _may_go(dentry: Dentry) -> bool:
    """Nothing is lost but the answer to a question."""
    node = dentry.node
    return node is None or not (node.is_held or node.children)
